#pragma once

// A resident thread block. Its threads are fibers. The block knows where each thread waits, and for
// what. Other files of the emulator build barriers, collectives and late deliveries on this class.
//
// The emulation is adversarial on purpose. Asynchronous work ends as late as allowed, except that
// kRandom also delivers TMA loads earlier. Shared memory starts as poison in every block. The order
// in which threads run is an option. Some errors show only in another interleaving. These are left
// to ThreadSanitizer, which sees each thread as a fiber.

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/cuda/emulator/access_counter.h"
#include "kernels/cuda/emulator/async_copy.h"
#include "kernels/cuda/emulator/fiber.h"
#include "kernels/cuda/emulator/poison.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/shared_memory.h"
#include "kernels/cuda/emulator/warpgroup.h"

namespace quire::kernels::cuda::emulator {

// The order in which ready threads run: by number for kForward, and by descending number for
// kReverse. kRandom runs one random warp alone for a while, so that some warps get far ahead and
// others fall behind.
enum class ThreadOrder { kForward, kReverse, kRandom };

struct ExecutionOptions {
  ThreadOrder order = ThreadOrder::kForward;
  uint64_t seed = 0;  // for kRandom
  Poison poison = Poison::kNaN;
};

inline constexpr int kWarpSize = 32;

// Two masks of the lanes of a warp. The lanes in `ended` have ended and can no longer join a
// collective. The lanes in `meeting` wait in a collective.
struct Warp {
  uint32_t ended = 0;
  uint32_t meeting = 0;
};

// One emulated CUDA thread.
struct Thread {
  enum class State { kReady, kWaiting, kDone };

  Thread(int number, Index3 thread_index, Fiber::Entry entry)
      : index(thread_index), warp(number / kWarpSize), lane(number % kWarpSize), fiber(entry) {}

  Index3 index;
  int warp;
  int lane;
  Fiber fiber;
  State state = State::kReady;
  Where where;                            // the place of the present or last wait
  const char* waits_for = "";             // named in the report of a deadlock
  const void* waits_for_phase = nullptr;  // the mbarrier that the thread waits for, or null

  // The arguments that this thread passed to the collective in which it waits.
  const void* in = nullptr;
  void* out = nullptr;
  WarpOperation operation = nullptr;
  uint32_t mask = 0;
  WarpgroupOperation warpgroup_operation = nullptr;

  CopyQueue copies;

  // ThreadSanitizer synchronizes on the addresses of these members. before_meeting orders this
  // thread's earlier accesses before the meeting. after_meeting orders the accesses of all threads
  // that met before this thread continues.
  char before_meeting = 0;
  char after_meeting = 0;
};

// The work of an asynchronous unit, such as a TMA load. It runs once, at a time that the block
// chooses.
using Delivery = std::function<void()>;

// A ThreadBlock runs several blocks of a launch, one after another. `launch` must outlive it.
class ThreadBlock {
 public:
  // The accesses are added to `counts`, unless it is null.
  ThreadBlock(const KernelLaunch& launch, const ExecutionOptions& options, int compute_capability,
              AccessCounts* counts);
  ThreadBlock(const ThreadBlock&) = delete;
  ThreadBlock& operator=(const ThreadBlock&) = delete;

  // Starts the block of this index. The block before must have ended.
  void Start(Index3 block_index);
  // Lets some threads run until each of them waits or ends. If a misuse stops the block, returns an
  // error that describes the misuse.
  absl::Status Advance();
  bool has_ended() const { return num_live_ == 0; }

  // True if no thread can continue before the work that precedes the launch has ended.
  bool awaits_previous_launch() const { return is_ahead_; }
  // To be called when the preceding work has ended. From then on no thread waits for it.
  void PreviousLaunchHasEnded();
  // Orders the accesses of all threads before those that the host makes from now on.
  void OrderBeforeHost() {
    for (const char& end : ends_) TsanAcquire(&end);
  }

  // Returns the block that runs on this CPU thread.
  static ThreadBlock& current();
  // Returns the thread that runs now.
  Thread& thread() { return *running_; }
  Thread& thread(int warp, int lane) { return threads_[warp * kWarpSize + lane]; }
  std::vector<Thread>& threads() { return threads_; }
  Warp& warp(int i) { return warps_[i]; }
  Warpgroup& warpgroup(int i) { return warpgroups_[i]; }
  SharedMemoryImage& shared_memory() { return shared_memory_; }
  const ExecutionOptions& options() const { return options_; }
  int compute_capability() const { return compute_capability_; }

  // Suspends the running thread until Wake() is called with it.
  void Wait(const char* for_what, Where where);
  void Wake(Thread& thread);
  // Orders the memory accesses of the threads in `members`: those before their meeting precede
  // those after it.
  template <typename Members>
  static void OrderMemory(const Members& members);

  void ArriveAtBarrier(int id, int num_threads, Where where);
  void CountAccess(Access access, const void* address, int bytes, Where where);
  // Called when lanes have met, with a mask of those lanes.
  void LanesHaveMet(int warp, uint32_t mask);
  void DeliverLater(Delivery delivery) { deliveries_.push_back(std::move(delivery)); }
  void WaitForPreviousLaunch(Where where);
  void LetOthersRun();

  [[noreturn]] void Fail(std::string message, Where where);

 private:
  struct Barrier {
    std::vector<Thread*> arrived;
    // The number of threads expected at the barrier. 0 means all threads that have not ended.
    int num_threads = 0;
  };
  static constexpr int kNumBarriers = 16;

  static void ThreadMain();
  void Suspend();
  void RunThread(Thread& thread);
  // Runs threads that can continue. Returns false if there was none.
  bool RunReadyThreads();
  bool RunReadyThreadsOf(std::span<const int> threads);
  bool RunReadyThreadsOfOneWarp();
  absl::Status CheckEnd() const;
  void DeliverOne();
  void FinishThread();
  void OpenBarrier(Barrier& barrier);
  void WarpsHaveMet();
  std::string DescribeDeadlock() const;

  const KernelLaunch& launch_;
  const ExecutionOptions options_;
  const int compute_capability_;
  AccessCounts* const counts_;
  std::vector<WarpAccesses> accesses_;  // of each warp
  SharedMemoryImage shared_memory_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<int> order_;       // the numbers of all threads, in the order in which they run
  std::vector<int> warp_order_;  // all warps, for kRandom; the first that can continue runs
  std::mt19937_64 random_;
  std::array<Barrier, kNumBarriers> barriers_;
  std::vector<Delivery> deliveries_;
  Index3 index_ = {};
  size_t end_of_block_ = 0;  // the place in ends_
  int num_live_ = 0;
  bool previous_launch_has_ended_;
  bool waited_for_previous_launch_ = false;
  bool is_ahead_ = false;
  std::vector<Thread*> ahead_;  // the threads that wait for the previous launch
  Thread* running_ = nullptr;
  absl::Status failure_;
  // ThreadSanitizer synchronizes on the addresses of these members. start_ orders the host's work
  // before the launch before the work of each thread. previous_ does so for the work of the launch
  // before, where a thread waits for it. ends_ order the work of a block before the next block that
  // runs here, because the two have the same shared memory. Blocks take turns with the two ends, so
  // that a thread is not ordered after one of its own block that has ended before it begins.
  char start_ = 0;
  char previous_ = 0;
  std::array<char, 2> ends_ = {};
};

template <typename Members>
void ThreadBlock::OrderMemory(const Members& members) {
  for (Thread* member : members) TsanAcquire(&member->before_meeting);
  for (Thread* member : members) TsanRelease(&member->after_meeting);
}

}  // namespace quire::kernels::cuda::emulator
