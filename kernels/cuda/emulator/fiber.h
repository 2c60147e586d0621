#pragma once

// A stack that can be left and entered again: how one CPU thread plays all threads of a CUDA block.
//
// On x86-64 a switch is a dozen instructions (fiber_switch.h); elsewhere, and with
// QUIRE_FIBER_UCONTEXT, it is swapcontext, some ten times slower. A fiber stays on the thread that
// made it.

#include <cstddef>
#include <memory>

namespace quire::kernels::cuda::emulator {

struct FiberStack;
struct FiberContext;

class Fiber {
 public:
  // What a fiber runs; must never return.
  using Entry = void (*)();

  explicit Fiber(Entry entry);
  ~Fiber();
  Fiber(Fiber&& other) noexcept;

  // Called from outside: runs the fiber until it suspends. The first time, from its entry.
  void Resume();
  // Called by the fiber itself: goes back to who resumed it.
  void Suspend();

 private:
  std::unique_ptr<FiberStack> stack_;
  std::unique_ptr<FiberContext> context_;
};

}  // namespace quire::kernels::cuda::emulator
