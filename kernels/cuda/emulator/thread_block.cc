#include "kernels/cuda/emulator/thread_block.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/check.h"
#include "kernels/cuda/emulator/cuda_keywords.h"
#include "kernels/cuda/emulator/sanitizers.h"

constinit thread_local quire::kernels::cuda::emulator::Index3 threadIdx = {};
constinit thread_local quire::kernels::cuda::emulator::Index3 blockIdx = {};
constinit thread_local quire::kernels::cuda::emulator::Index3 blockDim = {};
constinit thread_local quire::kernels::cuda::emulator::Index3 gridDim = {};

namespace quire::kernels::cuda::emulator {

namespace {

thread_local ThreadBlock* current_block = nullptr;

// Returns the file, without its folders, and the line: for example "norm.cuh:41".
std::string Describe(Where where) {
  const std::string file = where.file;
  return absl::StrCat(file.substr(file.rfind('/') + 1), ":", where.line);
}

}  // namespace

ThreadBlock::ThreadBlock(const KernelLaunch& launch, const ExecutionOptions& options,
                         int compute_capability, AccessCounts* counts)
    : launch_(launch),
      options_(options),
      compute_capability_(compute_capability),
      counts_(counts),
      shared_memory_(launch.config.shared_bytes),
      random_(options.seed),
      previous_launch_has_ended_(!launch.config.overlaps_previous) {
  QUIRE_CHECK(current_block == nullptr) << "a kernel launches a kernel";
  const Dim3 block = launch.config.block;
  const unsigned num_threads = block.x * block.y * block.z;
  threads_.reserve(num_threads);
  for (unsigned i = 0; i < num_threads; ++i) {
    const Index3 index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    threads_.emplace_back(static_cast<int>(i), index, &ThreadMain);
  }
  order_.resize(num_threads);
  std::iota(order_.begin(), order_.end(), 0);
  if (options.order == ThreadOrder::kReverse) std::reverse(order_.begin(), order_.end());
  warp_order_.resize((num_threads + kWarpSize - 1) / kWarpSize);
  std::iota(warp_order_.begin(), warp_order_.end(), 0);
  TsanRelease(&start_);
}

ThreadBlock& ThreadBlock::current() { return *current_block; }

absl::Status ThreadBlock::Advance() {
  const Dim3 block = launch_.config.block, grid = launch_.config.grid;
  current_block = this;
  blockIdx = index_;
  blockDim = {block.x, block.y, block.z};
  gridDim = {grid.x, grid.y, grid.z};
  // With kRandom, deliveries happen at random times and in random order. With the other orders, a
  // delivery happens only when no thread can continue without it.
  const bool now = options_.order == ThreadOrder::kRandom && random_() % 16 == 0;
  if (now && !deliveries_.empty()) DeliverOne();
  if (!RunReadyThreads() && failure_.ok()) {
    if (!deliveries_.empty()) {
      DeliverOne();
    } else if (!ahead_.empty()) {
      is_ahead_ = true;
    } else {
      failure_ = absl::InternalError(DescribeDeadlock());
    }
  }
  if (has_ended() && failure_.ok()) {
    WarpsHaveMet();
    failure_ = CheckEnd();
  }
  current_block = nullptr;
  return failure_;
}

absl::Status ThreadBlock::CheckEnd() const {
  const char* fault = nullptr;
  if (!deliveries_.empty()) fault = "TMA loads in flight";
  if (launch_.config.overlaps_previous && !waited_for_previous_launch_) {
    fault = "no GridDependencyWait() in a launch that may overlap the one before it";
  }
  if (fault == nullptr) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("emulator: block (%u,%u,%u) ends with %s", index_.x,
                                             index_.y, index_.z, fault));
}

void ThreadBlock::Start(Index3 block_index) {
  index_ = block_index;
  end_of_block_ = 1 - end_of_block_;
  num_live_ = static_cast<int>(threads_.size());
  waited_for_previous_launch_ = false;
  for (Thread& thread : threads_) thread.state = Thread::State::kReady;
  warps_.assign((threads_.size() + kWarpSize - 1) / kWarpSize, Warp{});
  warpgroups_.assign(threads_.size() / kWarpgroupSize + 1, Warpgroup{});
  accesses_.resize(warps_.size());
  const uint32_t missing = static_cast<uint32_t>(-num_live_) % kWarpSize;
  if (missing != 0) warps_.back().ended = ~uint32_t{0} << (kWarpSize - missing);
  shared_memory_.Fill(options_.poison);
}

bool ThreadBlock::RunReadyThreads() {
  return options_.order == ThreadOrder::kRandom ? RunReadyThreadsOfOneWarp()
                                                : RunReadyThreadsOf(order_);
}

// Runs the first warp in warp_order_ that can continue. On average, one call in 64 first shuffles
// warp_order_. So one warp runs ahead of the others for about 64 calls, unless it must wait.
// Returns false if no warp can continue.
bool ThreadBlock::RunReadyThreadsOfOneWarp() {
  if (random_() % 64 == 0) std::shuffle(warp_order_.begin(), warp_order_.end(), random_);
  for (const int warp : warp_order_) {
    const auto first = order_.begin() + warp * kWarpSize;
    const auto end = first + std::min<std::ptrdiff_t>(kWarpSize, order_.end() - first);
    std::shuffle(first, end, random_);
    if (RunReadyThreadsOf({first, end})) return true;
  }
  return false;
}

bool ThreadBlock::RunReadyThreadsOf(std::span<const int> threads) {
  bool any = false;
  for (const int i : threads) {
    Thread& thread = threads_[i];
    if (thread.state != Thread::State::kReady) continue;
    any = true;
    RunThread(thread);
    if (!failure_.ok()) break;
  }
  return any;
}

void ThreadBlock::RunThread(Thread& thread) {
  running_ = &thread;
  threadIdx = thread.index;
  const int depth = EmulatorsOwn::Leave();
  thread.fiber.Resume();
  EmulatorsOwn::Return(depth);
  running_ = nullptr;
}

void ThreadBlock::Suspend() {
  const KernelsOwn kernel;
  running_->fiber.Suspend();
}

// The function that each fiber runs. A fiber has one thread number. It runs the thread of this
// number in each block, block after block.
void ThreadBlock::ThreadMain() {
  for (;;) {
    ThreadBlock& block = current();
    TsanAcquire(&block.start_);
    const size_t end = block.end_of_block_;
    TsanAcquire(&block.ends_[1 - end]);
    block.launch_.call(block.launch_.kernel, block.launch_.params.data());
    TsanRelease(&block.ends_[end]);
    block.FinishThread();
  }
}

void ThreadBlock::FinishThread() {
  {
    const EmulatorsOwn own;
    if (!running_->copies.empty()) Fail("a thread ends with cp.async in flight", running_->where);
    running_->state = Thread::State::kDone;
    warps_[running_->warp].ended |= 1u << running_->lane;
    --num_live_;
    // The other threads may wait at __syncthreads only for this thread, which ends.
    Barrier& barrier = barriers_[0];
    if (!barrier.arrived.empty() && static_cast<int>(barrier.arrived.size()) == num_live_) {
      OpenBarrier(barrier);
    }
  }
  Suspend();
}

void ThreadBlock::DeliverOne() {
  size_t chosen = 0;
  if (options_.order == ThreadOrder::kReverse) chosen = deliveries_.size() - 1;
  if (options_.order == ThreadOrder::kRandom) chosen = random_() % deliveries_.size();
  const Delivery delivery = std::move(deliveries_[chosen]);
  deliveries_.erase(deliveries_.begin() + static_cast<std::ptrdiff_t>(chosen));
  delivery();
}

void ThreadBlock::Wait(const char* for_what, Where where) {
  running_->state = Thread::State::kWaiting;
  running_->waits_for = for_what;
  running_->where = where;
  Suspend();
}

void ThreadBlock::Wake(Thread& thread) { thread.state = Thread::State::kReady; }

void ThreadBlock::ArriveAtBarrier(int id, int num_threads, Where where) {
  const EmulatorsOwn own;
  Barrier& barrier = barriers_[id];
  if (barrier.arrived.empty()) {
    barrier.num_threads = num_threads;
  } else if (barrier.num_threads != num_threads) {
    Fail(absl::StrFormat("barrier %d: one thread waits for %d threads, another for %d", id,
                         barrier.num_threads, num_threads),
         where);
  } else if (id == 0 && barrier.arrived[0]->where.line != where.line) {
    Fail(absl::StrCat("threads of one block meet at different barriers, another is at line ",
                      barrier.arrived[0]->where.line),
         where);
  }
  Thread& self = *running_;
  self.where = where;
  TsanRelease(&self.before_meeting);
  barrier.arrived.push_back(&self);
  const int wanted = num_threads != 0 ? num_threads : num_live_;
  if (static_cast<int>(barrier.arrived.size()) == wanted) {
    OpenBarrier(barrier);
  } else {
    Wait(id == 0 ? "__syncthreads" : "a named barrier", where);
  }
  TsanAcquire(&self.after_meeting);
}

void ThreadBlock::WaitForPreviousLaunch(Where where) {
  if (!previous_launch_has_ended_) running_->copies.ReadSources();
  const EmulatorsOwn own;
  waited_for_previous_launch_ = true;
  if (!previous_launch_has_ended_) {
    ahead_.push_back(running_);
    Wait("GridDependencyWait", where);
  }
  TsanAcquire(&previous_);
}

void ThreadBlock::LetOthersRun() {
  const EmulatorsOwn own;
  if (options_.order == ThreadOrder::kRandom && random_() % 4 == 0) Suspend();
}

void ThreadBlock::CountAccess(Access access, const void* address, int bytes, Where where) {
  if (counts_ == nullptr) return;
  const EmulatorsOwn own;
  accesses_[static_cast<size_t>(running_->warp)].Add(access, running_->lane, address, bytes, where);
}

void ThreadBlock::LanesHaveMet(int warp, uint32_t mask) {
  if (counts_ == nullptr || (mask | warps_[warp].ended) != ~uint32_t{0}) return;
  accesses_[static_cast<size_t>(warp)].CountInto(*counts_);
}

void ThreadBlock::WarpsHaveMet() {
  if (counts_ == nullptr) return;
  for (WarpAccesses& accesses : accesses_) accesses.CountInto(*counts_);
}

void ThreadBlock::PreviousLaunchHasEnded() {
  TsanRelease(&previous_);
  previous_launch_has_ended_ = true;
  is_ahead_ = false;
  for (Thread* thread : ahead_) Wake(*thread);
  ahead_.clear();
}

void ThreadBlock::OpenBarrier(Barrier& barrier) {
  if (barrier.num_threads == 0) WarpsHaveMet();
  OrderMemory(barrier.arrived);
  for (Thread* thread : barrier.arrived) Wake(*thread);
  barrier.arrived.clear();
}

void ThreadBlock::Fail(std::string message, Where where) {
  {
    // The Suspend() below does not return, so no object that stays on this stack may own memory.
    const std::string text = std::move(message);
    failure_ = absl::InternalError(absl::StrFormat(
        "emulator: %s: block (%u,%u,%u) thread (%u,%u,%u) at %s", text, index_.x, index_.y,
        index_.z, running_->index.x, running_->index.y, running_->index.z, Describe(where)));
  }
  Suspend();
  std::abort();
}

std::string ThreadBlock::DescribeDeadlock() const {
  std::map<std::string, int> waiting;
  for (const Thread& thread : threads_) {
    if (thread.state != Thread::State::kWaiting) continue;
    ++waiting[absl::StrCat(thread.waits_for, " at ", Describe(thread.where))];
  }
  std::string text =
      absl::StrFormat("emulator: deadlock: block (%u,%u,%u):", index_.x, index_.y, index_.z);
  const char* separator = " ";
  for (const auto& [place, count] : waiting) {
    absl::StrAppend(&text, separator, count,
                    count == 1 ? " thread waits for " : " threads wait for ", place);
    separator = ", ";
  }
  return text;
}

// --- The functions for the primitives (runtime.h)

void Fault(std::string message, Where where) {
  const EmulatorsOwn own;
  ThreadBlock::current().Fail(std::move(message), where);
}

unsigned char* SharedMemory() { return ThreadBlock::current().shared_memory().data(); }

void CheckAligned(const void* address, int64_t alignment, const char* what, Where where) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) != 0) {
    Fault(absl::StrCat(what, " is not ", alignment, "-byte aligned"), where);
  }
}

void CountAccess(Access access, const void* address, int bytes, Where where) {
  ThreadBlock::current().CountAccess(access, address, bytes, where);
}

void CheckVectorLoad(const void* address, int bytes, Where where) {
  CheckAligned(address, bytes, "a vector load", where);
  CountAccess(Access::kGlobalLoad, address, bytes, where);
}

void CheckVectorStore(const void* address, int bytes, Where where) {
  CheckAligned(address, bytes, "a vector store", where);
  const bool shared = ThreadBlock::current().shared_memory().Contains(address, bytes);
  CountAccess(shared ? Access::kSharedStore : Access::kGlobalStore, address, bytes, where);
}

void CheckShared(const void* address, int64_t bytes, int64_t alignment, const char* what,
                 Where where) {
  if (!ThreadBlock::current().shared_memory().Contains(address, bytes)) {
    Fault(absl::StrCat(what, " is not in shared memory"), where);
  }
  CheckAligned(address, alignment, what, where);
}

void RequireHopper(const char* what, Where where) {
  const int capability = ThreadBlock::current().compute_capability();
  if (capability >= 90) return;
  Fault(absl::StrFormat("%s needs compute capability 9.0, and this chip has %d.%d", what,
                        capability / 10, capability % 10),
        where);
}

void WaitForPreviousLaunch(Where where) { ThreadBlock::current().WaitForPreviousLaunch(where); }

void LetOthersRun() { ThreadBlock::current().LetOthersRun(); }

int Lane() { return ThreadBlock::current().thread().lane; }

void SyncThreads(Where where) { ThreadBlock::current().ArriveAtBarrier(0, 0, where); }

void SyncNamed(int id, int num_threads, Where where) {
  if (id < 1 || id > 15) Fault(absl::StrCat("named barrier ", id, ": want 1 to 15"), where);
  if (num_threads <= 0 || num_threads % kWarpSize != 0) {
    Fault(absl::StrCat("named barrier for ", num_threads, " threads: want a multiple of 32"),
          where);
  }
  ThreadBlock::current().ArriveAtBarrier(id, num_threads, where);
}

}  // namespace quire::kernels::cuda::emulator
