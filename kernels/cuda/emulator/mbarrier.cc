#include "kernels/cuda/emulator/mbarrier.h"

#include <cstring>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

namespace {

constexpr uint32_t kInitialized = 5;  // neither zeros nor poison give this value
constexpr int kMaxArrivals = (1 << 14) - 1;

// The emulator's layout of the eight bytes of an mbarrier.
struct State {
  int32_t missing_bytes;
  uint32_t missing_arrivals : 14;
  uint32_t arrivals : 14;  // expected in each phase
  uint32_t phase : 1;      // parity of the phase that is not complete yet
  uint32_t initialized : 3;
};
static_assert(sizeof(State) == sizeof(uint64_t));

// Returns the address that represents a phase to ThreadSanitizer. Each parity has its own address,
// because threads may be in the next phase before the last waiter has left.
const char* PhaseTag(const uint64_t* barrier, uint32_t phase) {
  return reinterpret_cast<const char*>(barrier) + 4 * phase;
}

State Load(const uint64_t* barrier, Where where) {
  CheckShared(barrier, sizeof(uint64_t), sizeof(uint64_t), "an mbarrier", where);
  State state;
  std::memcpy(&state, barrier, sizeof(state));
  if (state.initialized != kInitialized) Fault("an mbarrier is used before its init", where);
  return state;
}

// Stores `state` after an arrival or a delivery of bytes. If the phase is complete now, opens the
// next phase and wakes the threads that wait.
void Store(uint64_t* barrier, State state) {
  if (state.missing_arrivals == 0 && state.missing_bytes == 0) {
    state.phase ^= 1;
    state.missing_arrivals = state.arrivals;
    for (Thread& thread : ThreadBlock::current().threads()) {
      if (thread.waits_for_phase == barrier) {
        thread.waits_for_phase = nullptr;
        ThreadBlock::current().Wake(thread);
      }
    }
  }
  std::memcpy(barrier, &state, sizeof(state));
}

}  // namespace

void InitMbarrier(uint64_t* barrier, int arrivals, Where where) {
  RequireHopper("an mbarrier", where);
  CheckShared(barrier, sizeof(uint64_t), sizeof(uint64_t), "an mbarrier", where);
  if (arrivals < 1 || arrivals > kMaxArrivals) {
    Fault(absl::StrCat("an mbarrier for ", arrivals, " arrivals"), where);
  }
  TsanWrite(barrier, sizeof(uint64_t));
  const EmulatorsOwn own;
  State state = {};
  state.arrivals = static_cast<uint32_t>(arrivals);
  state.missing_arrivals = state.arrivals;
  state.initialized = kInitialized;
  std::memcpy(barrier, &state, sizeof(state));
}

void ArriveMbarrier(uint64_t* barrier, int expected_bytes, Where where) {
  // Arrivals are atomic and do not race with each other, so ThreadSanitizer sees an arrival only as
  // a read. It still reports an arrival that races with the init.
  TsanRead(barrier, sizeof(uint64_t));
  const EmulatorsOwn own;
  State state = Load(barrier, where);
  if (state.missing_arrivals == 0) Fault("too many arrivals on an mbarrier", where);
  TsanRelease(PhaseTag(barrier, state.phase));
  --state.missing_arrivals;
  state.missing_bytes += expected_bytes;
  Store(barrier, state);
}

void WaitMbarrier(uint64_t* barrier, int parity, Where where) {
  TsanRead(barrier, sizeof(uint64_t));
  const EmulatorsOwn own;
  const uint32_t awaited = static_cast<uint32_t>(parity) & 1;
  ThreadBlock& block = ThreadBlock::current();
  while (Load(barrier, where).phase == awaited) {
    block.thread().waits_for_phase = barrier;
    block.Wait("an mbarrier", where);
  }
  TsanAcquire(PhaseTag(barrier, awaited));
}

void CompleteBytes(uint64_t* barrier, int64_t bytes, Where where) {
  State state = Load(barrier, where);
  TsanRelease(PhaseTag(barrier, state.phase));
  state.missing_bytes -= static_cast<int32_t>(bytes);
  Store(barrier, state);
}

}  // namespace quire::kernels::cuda::emulator
