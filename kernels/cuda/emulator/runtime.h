#pragma once

// The functions that the emulated primitives call. They act on the running block, and only emulated
// threads call them. A misuse ends the launch with an error that names `where`. Every kernel
// includes this header, so it contains no more than the primitives need.

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

struct Index3 {
  unsigned x, y, z;
};

// Ends the launch with an error that names this thread. The stack of the thread is abandoned.
[[noreturn]] void Fault(std::string message, Where where);

// Returns the dynamic shared memory of the block. It is aligned to 1024 bytes, as the swizzle of
// TMA requires.
unsigned char* SharedMemory();
// Faults unless [address, address + bytes) is in shared memory and `address` is a multiple of
// `alignment`. The error calls the address `what`.
void CheckShared(const void* address, int64_t bytes, int64_t alignment, const char* what,
                 Where where);
void CheckAligned(const void* address, int64_t alignment, const char* what, Where where);

// The accesses that the emulator counts (access_counter.h).
enum class Access {
  // In shared memory. Banks are 4 bytes wide, and there are 32. A pass serves as many lanes as have
  // 128 bytes together: the 8 rows of a matrix, for example. Lanes that access different words of
  // one bank need a pass each.
  kLdMatrix,
  kSharedStore,  // StoreVector
  kCopyTarget,   // CpAsync
  // In global memory, whose sectors are 32 bytes.
  kGlobalLoad,   // LoadReadOnly
  kGlobalStore,  // StoreVector
  kCopySource,   // CpAsync
};
// Counts an access of the running thread, if the device counts accesses.
void CountAccess(Access access, const void* address, int bytes, Where where);
// Checks and counts a load of a vector from global memory, and a store to global or shared memory.
void CheckVectorLoad(const void* address, int bytes, Where where);
void CheckVectorStore(const void* address, int bytes, Where where);

// Faults if the compute capability of the chip is below 9.0. The error names the feature `what`,
// which such a chip does not have.
void RequireHopper(const char* what, Where where);

int Lane();

// Lets other threads and other blocks run now and then, if threads run in random order.
void LetOthersRun();

// __syncthreads. All threads that have not ended must call it, all at the same line.
void SyncThreads(Where where);
// bar.sync of barrier `id`, 1 to 15, for `num_threads` threads, a multiple of 32. The threads may
// call it at different lines.
void SyncNamed(int id, int num_threads, Where where);
void SyncWarp(uint32_t mask, Where where);

// A WarpOperation computes out[lane] for each lane of `mask`, from the inputs in[] of all lanes of
// `mask`. For other lanes, in[lane] and out[lane] are null.
using WarpOperation = void (*)(const void* const* in, void* const* out, uint32_t mask, Where where);
// Waits until all lanes of `mask` have called this function at the same line. The last lane to
// arrive runs `operation` for all of them. As on a GPU, this does not order memory accesses.
void MeetLanes(uint32_t mask, const void* in, void* out, WarpOperation operation, Where where);

uint32_t Ballot(uint32_t mask, bool predicate, Where where);

// GridDependencyWait(). A block that runs ahead of the work before its launch waits here for this
// work. A block of a launch with overlaps_previous must not end without this call.
void WaitForPreviousLaunch(Where where);

enum class ShuffleKind { kIndex, kXor, kUp, kDown };
// Replaces `value`, of up to 16 bytes, by the value of the lane that `kind` and `argument` select.
void ShuffleBytes(uint32_t mask, void* value, int bytes, ShuffleKind kind, int argument,
                  Where where);

template <typename T>
T Shuffle(uint32_t mask, T value, ShuffleKind kind, int argument, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  ShuffleBytes(mask, &value, sizeof(T), kind, argument, where);
  return value;
}

// cp.async. `target` holds poison until the thread waits for the group of the copy. The source is
// read only then. If source_bytes < bytes, the rest of the target is filled with zeros.
void IssueCopy(void* target, const void* source, int bytes, int source_bytes, Where where);
void CommitCopies();
void WaitCopies(int groups_in_flight);

// ldmatrix of 1, 2 or 4 matrices of 8 x 8 elements of 16 bits. Each of the first 8, 16 or 32 lanes
// passes the address of one matrix row as `row`. The `row` of the other lanes is not used.
void LoadMatrices(uint32_t* result, int num_matrices, bool transposed, const void* row,
                  Where where);

enum class MatrixType { kBf16, kF16 };
// mma.m16n8k16: computes c += a b, with sums in float32.
void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, MatrixType type,
                  Where where);

// mbarriers. WaitMbarrier returns once the phase of the given parity is complete.
void InitMbarrier(uint64_t* barrier, int arrivals, Where where);
void ArriveMbarrier(uint64_t* barrier, int expected_bytes, Where where);
void WaitMbarrier(uint64_t* barrier, int parity, Where where);

// A TMA load. `target` holds poison until the bytes are delivered. The delivery may come as late as
// the moment when no thread can continue without it.
void LoadTensor(void* target, const TensorMap& map, uint64_t* barrier, const int* coordinates,
                int rank, Where where);
void FenceAsyncProxy();

// One thread's part of wgmma.m64nNk16, which computes d = a b or d = a b + d. N is twice the number
// of accumulators. The operand b is in shared memory. If a is in shared memory too, both have k as
// the contiguous dimension. If a is in registers, b has n as the contiguous dimension.
inline constexpr int kMostWgmmaAccumulators = 128;
struct WgmmaProduct {
  float* d;
  int num_accumulators;
  uint64_t a, b;  // descriptors of operands in shared memory
  uint32_t a_registers[4];
  bool a_in_registers;
  bool accumulate;
  MatrixType type;
};
void FenceWgmma(Where where);
void IssueWgmma(const WgmmaProduct& product, Where where);
void CommitWgmma(Where where);
void WaitWgmma(int groups_in_flight, Where where);

}  // namespace quire::kernels::cuda::emulator
