#pragma once

// Functions for the instructions that CUDA C++ cannot express. The CUDA compiler gets them from
// primitives_ptx.cuh, the only file with PTX. A C++ compiler gets the same functions, with checks,
// from emulator/primitives_host.h. With these the same kernels run without a GPU.
//
// How to write a kernel
//   - The .cuh file holds the parameter struct, the __device__ helpers and the __global__ function.
//     The .cu file validates the arguments and calls Launch() (launch.h). Neither file includes a
//     CUDA header.
//   - Everything else is plain CUDA C++: threadIdx, blockIdx, __syncthreads(), __syncwarp(),
//     __shfl_*_sync(), __ballot_sync(), float4, fmaxf, std::min, std::bit_cast. A kernel that uses
//     lanes has one-dimensional blocks.
//   - Shared memory is DynamicShared<T>(). The launch sets its size. In the emulator, it holds
//     poison when a block starts: NaN, or large numbers when tests run threads in reverse order.
//   - A shuffle or a vote does not order the memory accesses of lanes; __syncwarp() does.
//   - In the emulator, the target of a cp.async holds poison until the thread that issued it has
//     waited for the copy's group. Other threads may read the target only after a barrier that
//     follows this wait.
//   - Offsets into tensors are int64_t.
// A misuse ends an emulated launch with an error that names block, thread, file and line. Run the
// tests of a kernel in all three thread orders, and under AddressSanitizer and ThreadSanitizer.
//
// The functions (T is Bf16 or F16, both 16-bit structs)
//   float ToFloat(T);  T FromFloat<T>(float);        rounds to nearest even; also E4M3 and float
//   uint32_t Pack2<T>(float low, float high);  float2 Unpack2<T>(uint32_t);
//   V LoadReadOnly<V>(const void*);  void StoreVector<V>(void*, V);      4, 8 or 16 bytes, aligned
//   uint32_t AndOr(word, mask, bits)                 (word & mask) | bits, in one instruction
//   uint32_t SignExtend<low, high>(word)             two of its bytes, each as 16 bits
//   uint32_t MultiplyBf16(pair, pair)                the products of the halves, rounded
//   int Opaque(int)                                  the same, but the compiler does not know that
//   float Exp2(float), Log2(float), Reciprocal(float);                   approximate: 1 to 4 ulp
//   T AtomicAdd(T*, T);                              4- or 8-byte integers; orders no other access
//   void AtomicMax(int32_t*, int32_t);               orders no other access
//   CpAsync<4|8|16>(shared, global, valid);  CpAsyncCommit();  CpAsyncWait<groups in flight>();
//       if not valid: writes zeros and does not read the source
//   CpAsyncIf(wanted, shared, global, valid)         CpAsync<16>, or nothing: without a branch
//   LdMatrix(uint32_t (&r)[1|2|4], row);  LdMatrixTransposed(...)        row: this lane's 16 bytes
//   Mma<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)    m16n8k16, c += a b
//   NamedBarrier(id 1..15, threads)                 a barrier for some warps of the block
//   GridDependencyWait(), GridDependencyLaunch()    programmatic dependent launch, sm_90
// sm_90 and up
//   MbarrierInit(uint64_t*, arrivals), MbarrierArrive, MbarrierArriveExpect(.., bytes),
//   MbarrierWait(.., parity): waits until the phase with this parity is complete
//   FenceMbarrierInit()
//   TmaLoad(shared, map, barrier, int (&coordinates)[2..5]): uses the 128-byte swizzle, and writes
//       zeros for elements outside the tensor
//   FenceAsyncProxy(): call before TMA or wgmma reads shared memory that threads wrote
//   ShrinkRegisters<n>(), GrowRegisters<n>()                             setmaxnreg
// sm_90a: m64nNk16, to be called by all four warps of a warpgroup together. N is 8 * kTiles.
//   WgmmaFence(): call after threads accessed the registers of d or a
//   WgmmaShared<T>(float (&d)[kTiles][4], a, b, accumulate): N = 64 or 128; a and b come from
//       WgmmaDescriptor(shared, leading bytes, stride bytes)
//   WgmmaRegisters<T>(d, a[4], b): N = 64, 128 or 256; in this b, the elements of one k are
//       contiguous (N-major)
//   WgmmaCommit(); WgmmaWait<groups left in flight>()
//   d[n][i] of thread t: row t / 32 * 16 + t % 32 / 4 + i / 2 * 8, col n * 8 + t % 4 * 2 + i % 2
//
// Fragments of m16n8k16, for lane l with row = l / 4 and col = l % 4 * 2. Each of a[i], b0 and b1
// holds the element named here in its low half and the next one in its high half.
//   a[0]: (row, col)  a[1]: (row + 8, col)  a[2]: (row, col + 8)  a[3]: (row + 8, col + 8)
//   b0: (k = col, n = row)  b1: (k = col + 8, n = row)
//   c[0..1]: (row, col), (row, col + 1)   c[2..3]: (row + 8, col), (row + 8, col + 1)

#include "kernels/cuda/device/element_types.h"

#if defined(__CUDACC__)
#include "kernels/cuda/device/primitives_ptx.cuh"
#else
#include "kernels/cuda/emulator/primitives_host.h"
#endif
