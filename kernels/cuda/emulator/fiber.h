#pragma once

// A fiber is a stack that code can leave and enter again. With fibers, one CPU thread runs all
// threads of a CUDA block.
//
// On x86-64 a switch between fibers takes about 15 instructions (fiber_switch.h). On other
// machines, and with QUIRE_FIBER_UCONTEXT, a switch calls swapcontext, which is some ten times
// slower. A fiber stays on the CPU thread that created it.

#include <cstddef>
#include <memory>

namespace quire::kernels::cuda::emulator {

struct FiberStack;
struct FiberContext;

class Fiber {
 public:
  // The type of the function that a fiber runs. The function must never return.
  using Entry = void (*)();

  explicit Fiber(Entry entry);
  ~Fiber();
  Fiber(Fiber&& other) noexcept;

  // Runs the fiber until it suspends. The first call starts at the entry. The fiber itself must not
  // call this.
  void Resume();
  // Suspends the fiber and returns to the caller of Resume(). Only the fiber itself may call this.
  void Suspend();

 private:
  std::unique_ptr<FiberStack> stack_;
  std::unique_ptr<FiberContext> context_;
};

}  // namespace quire::kernels::cuda::emulator
