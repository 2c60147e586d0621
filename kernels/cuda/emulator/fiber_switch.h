#pragma once

// StackPointer is the only machine-dependent part of a fiber. It holds the position at which
// suspended code continues. Switch() leaves the current stack and continues on another. The
// assembly is in fiber.cc.

#include <cstddef>

#if !defined(__x86_64__) && !defined(QUIRE_FIBER_UCONTEXT)
#define QUIRE_FIBER_UCONTEXT 1
#endif

#if defined(QUIRE_FIBER_UCONTEXT)
#include <ucontext.h>
#else
#include <cstdint>
#endif

namespace quire::kernels::cuda::emulator {

#if defined(QUIRE_FIBER_UCONTEXT)

class StackPointer {
 public:
  // Sets the saved position to the start of `entry` on the stack [bottom, bottom + bytes).
  void Prepare(void* bottom, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = bottom;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  // Saves the present position in `from` and continues at the position saved in `to`.
  static void Switch(StackPointer& from, StackPointer& to) {
    swapcontext(&from.context_, &to.context_);
  }

 private:
  ucontext_t context_;
};

#else

// Pushes the registers that a function must preserve onto the current stack, stores the stack
// pointer in `*from`, and continues on the stack `to`. The floating-point control words are the
// same in all fibers and are not saved.
extern "C" void QuireFiberSwitch(void** from, void* to);

class StackPointer {
 public:
  void Prepare(void* bottom, size_t bytes, void (*entry)()) {
    const uintptr_t end = reinterpret_cast<uintptr_t>(bottom) + bytes;
    void** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
    *--top = nullptr;  // in place of a return address, as the stack has one after a call
    *--top = reinterpret_cast<void*>(entry);
    for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
    top_ = top;
  }
  static void Switch(StackPointer& from, StackPointer& to) {
    QuireFiberSwitch(&from.top_, to.top_);
  }

 private:
  void* top_ = nullptr;
};

#endif

}  // namespace quire::kernels::cuda::emulator
