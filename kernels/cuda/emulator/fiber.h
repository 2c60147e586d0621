#pragma once

// A stack that can be left and entered again, by which one CPU thread runs all threads of a CUDA
// block.
//
// On x86-64 a switch is a dozen instructions (fiber_switch.h); elsewhere, and with
// QUIRE_FIBER_UCONTEXT, it is swapcontext, some ten times slower. A fiber stays on the thread that
// created it.

#include <cstddef>
#include <memory>

namespace quire::kernels::cuda::emulator {

struct FiberStack;
struct FiberContext;

class Fiber {
 public:
  // The function that a fiber runs; it must never return.
  using Entry = void (*)();

  explicit Fiber(Entry entry);
  ~Fiber();
  Fiber(Fiber&& other) noexcept;

  // Called from outside: runs the fiber, from its entry the first time, until it suspends.
  void Resume();
  // Called by the fiber itself: returns to the caller of Resume().
  void Suspend();

 private:
  std::unique_ptr<FiberStack> stack_;
  std::unique_ptr<FiberContext> context_;
};

}  // namespace quire::kernels::cuda::emulator
