#pragma once

// The only machine-dependent part of a fiber: leaving this stack and continuing on another.

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
  // Makes a switch to this start `entry` on the memory given.
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

// Saves the registers that the calling convention preserves on the stack that is left.
// Floating-point control words are the same everywhere and are not saved.
extern "C" void QuireFiberSwitch(void** from, void* to);

class StackPointer {
 public:
  void Prepare(void* bottom, size_t bytes, void (*entry)()) {
    const uintptr_t end = reinterpret_cast<uintptr_t>(bottom) + bytes;
    void** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
    *--top = nullptr;  // instead of a return address: the stack looks as after a call
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
