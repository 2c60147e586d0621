#pragma once

// The running block's functions for the emulated primitives: a narrow header, since every kernel
// includes it. Emulated threads call them, and a misuse ends the launch with an error that names
// `where`.

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/cuda/emulator/where.h"
#include "kernels/cuda/tensor_map.h"

namespace quire::kernels::cuda::emulator {

struct Index3 {
  unsigned x, y, z;
};

// Ends the launch with an error of this thread, whose stack is abandoned.
[[noreturn]] void Fault(std::string message, Where where);

// The dynamic shared memory of the block, aligned to 1024 bytes, as TMA's swizzle requires.
unsigned char* SharedMemory();
// Faults unless [address, address + bytes) is shared memory and aligned.
void CheckShared(const void* address, int64_t bytes, int64_t alignment, const char* what,
                 Where where);
void CheckAligned(const void* address, int64_t alignment, const char* what, Where where);

// Faults on a chip before compute capability 9.0, which does not have `what`.
void RequireHopper(const char* what, Where where);

int Lane();

// __syncthreads: all threads that have not ended must meet, at one line.
void SyncThreads(Where where);
// bar.sync of barrier `id` for `num_threads` threads, a multiple of 32; any line.
void SyncNamed(int id, int num_threads, Where where);
void SyncWarp(uint32_t mask, Where where);

// The lanes of `mask` meet at one line, and the last to arrive computes for all, from in[lane] to
// out[lane] of the lanes in mask. Orders no memory, as on the device.
using WarpOperation = void (*)(const void* const* in, void* const* out, uint32_t mask, Where where);
void MeetLanes(uint32_t mask, const void* in, void* out, WarpOperation operation, Where where);

uint32_t Ballot(uint32_t mask, bool predicate, Where where);

// A launch that may overlap the one before waits for it here. Launches run one after another, so
// the emulator only checks that every block of such a launch makes this call.
void WaitForPreviousLaunch();

enum class ShuffleKind { kIndex, kXor, kUp, kDown };
// Moves a value of up to 16 bytes.
void ShuffleBytes(uint32_t mask, void* value, int bytes, ShuffleKind kind, int argument,
                  Where where);

template <typename T>
T Shuffle(uint32_t mask, T value, ShuffleKind kind, int argument, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  ShuffleBytes(mask, &value, sizeof(T), kind, argument, where);
  return value;
}

// cp.async: `target` is poison until the group of the copy has been waited for; the source is read
// only then. source_bytes < bytes fills with zeros.
void IssueCopy(void* target, const void* source, int bytes, int source_bytes, Where where);
void CommitCopies();
void WaitCopies(int groups_in_flight);

// ldmatrix of 1, 2 or 4 matrices of 8 x 8 16-bit elements; `row` counts in the first 8, 16 or 32
// lanes.
void LoadMatrices(uint32_t* result, int num_matrices, bool transposed, const void* row,
                  Where where);

enum class MatrixType { kBf16, kF16 };
// mma.m16n8k16, c += a b, in float32.
void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, MatrixType type,
                  Where where);

// mbarriers. WaitMbarrier returns once the phase of this parity is complete.
void InitMbarrier(uint64_t* barrier, int arrivals, Where where);
void ArriveMbarrier(uint64_t* barrier, int expected_bytes, Where where);
void WaitMbarrier(uint64_t* barrier, int parity, Where where);

// TMA: `target` is poison until the bytes are delivered, which may happen as late as when no thread
// can continue without them.
void LoadTensor(void* target, const TensorMap& map, uint64_t* barrier, const int* coordinates,
                int rank, Where where);
void FenceAsyncProxy();

// wgmma.m64n128k16 of one thread: d = a b (+ d), b in shared memory, a there too (both with k
// contiguous) or in registers (b with its columns contiguous).
inline constexpr int kWgmmaAccumulators = 64;
struct WgmmaProduct {
  float* d;
  uint64_t a, b;  // descriptors
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
