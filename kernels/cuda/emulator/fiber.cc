#include "kernels/cuda/emulator/fiber.h"

#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "base/check.h"
#include "kernels/cuda/emulator/fiber_switch.h"
#include "kernels/cuda/emulator/sanitizers.h"

#if !defined(QUIRE_FIBER_UCONTEXT)
asm(R"(
.text
.globl QuireFiberSwitch
.hidden QuireFiberSwitch
.type QuireFiberSwitch, @function
QuireFiberSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size QuireFiberSwitch, .-QuireFiberSwitch
)");
#endif

namespace quire::kernels::cuda::emulator {

// The memory of one fiber's stack. An access to the page below the stack faults, so that an
// overflow is noticed.
struct FiberStack {
  static constexpr size_t kBytes = 512 << 10;  // most pages are never touched, so need no memory

  FiberStack() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapping_bytes = kBytes + page;
    mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_CHECK(mapping != MAP_FAILED) << "no memory for the stack of an emulated thread";
    QUIRE_CHECK(mprotect(mapping, page, PROT_NONE) == 0);
    bottom = static_cast<char*>(mapping) + page;
  }
  ~FiberStack() { munmap(mapping, mapping_bytes); }
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  void* mapping = nullptr;
  size_t mapping_bytes = 0;
  char* bottom = nullptr;
};

namespace {

// Returns the stacks that this CPU thread keeps for the next launch. Mapping new stacks would cost
// more time than most kernels take.
std::vector<std::unique_ptr<FiberStack>>& SpareStacks() {
  static thread_local std::vector<std::unique_ptr<FiberStack>> spare;
  return spare;
}

std::unique_ptr<FiberStack> TakeStack() {
  if (SpareStacks().empty()) return std::make_unique<FiberStack>();
  std::unique_ptr<FiberStack> stack = std::move(SpareStacks().back());
  SpareStacks().pop_back();
  return stack;
}

}  // namespace

struct FiberContext {
  Fiber::Entry entry = nullptr;
  StackPointer own;      // the fiber's position while suspended
  StackPointer resumer;  // Resume()'s position while the fiber runs
#if defined(QUIRE_EMULATOR_TSAN)
  void* tsan_own = nullptr;
  void* tsan_resumer = nullptr;
#endif
#if defined(QUIRE_EMULATOR_ASAN)
  void* fake_stack = nullptr;
  const void* resumer_bottom = nullptr;
  size_t resumer_bytes = 0;
#endif
};

namespace {

// The fiber that Resume() enters. Begin() reads it when a fiber is entered for the first time.
thread_local FiberContext* starting = nullptr;

void Begin() {
  FiberContext& context = *starting;
#if defined(QUIRE_EMULATOR_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &context.resumer_bottom, &context.resumer_bytes);
#endif
  context.entry();
}

}  // namespace

Fiber::Fiber(Entry entry) : stack_(TakeStack()), context_(std::make_unique<FiberContext>()) {
  context_->entry = entry;
  context_->own.Prepare(stack_->bottom, FiberStack::kBytes, &Begin);
#if defined(QUIRE_EMULATOR_TSAN)
  context_->tsan_own = __tsan_create_fiber(0);
#endif
}

Fiber::Fiber(Fiber&& other) noexcept = default;

Fiber::~Fiber() {
  if (stack_ == nullptr) return;  // moved from
#if defined(QUIRE_EMULATOR_TSAN)
  // Tells ThreadSanitizer that the accesses of this fiber happen before the next use of its stack,
  // even if the fiber was abandoned midway.
  __tsan_acquire(context_.get());
  __tsan_destroy_fiber(context_->tsan_own);
#endif
#if defined(QUIRE_EMULATOR_ASAN)
  // The frames on the stack never return, so their red zones are still poisoned.
  __asan_unpoison_memory_region(stack_->bottom, FiberStack::kBytes);
#endif
  SpareStacks().push_back(std::move(stack_));
}

void Fiber::Resume() {
  FiberContext& context = *context_;
  starting = &context;
#if defined(QUIRE_EMULATOR_TSAN)
  constexpr unsigned kOrdersNothing = 1;
  context.tsan_resumer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(context.tsan_own, kOrdersNothing);
#endif
#if defined(QUIRE_EMULATOR_ASAN)
  void* resumer_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&resumer_fake_stack, stack_->bottom, FiberStack::kBytes);
#endif
  StackPointer::Switch(context.resumer, context.own);
#if defined(QUIRE_EMULATOR_ASAN)
  __sanitizer_finish_switch_fiber(resumer_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
  FiberContext& context = *context_;
#if defined(QUIRE_EMULATOR_TSAN)
  constexpr unsigned kOrdersNothing = 1;
  __tsan_release(&context);
  __tsan_switch_to_fiber(context.tsan_resumer, kOrdersNothing);
#endif
#if defined(QUIRE_EMULATOR_ASAN)
  __sanitizer_start_switch_fiber(&context.fake_stack, context.resumer_bottom,
                                 context.resumer_bytes);
#endif
  StackPointer::Switch(context.own, context.resumer);
#if defined(QUIRE_EMULATOR_ASAN)
  __sanitizer_finish_switch_fiber(context.fake_stack, &context.resumer_bottom,
                                  &context.resumer_bytes);
#endif
}

}  // namespace quire::kernels::cuda::emulator
