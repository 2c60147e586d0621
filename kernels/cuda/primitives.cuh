#pragma once

// The instructions that CUDA C++ cannot express, as functions. PTX appears only in
// primitives_ptx.cuh; a C++ compiler gets the same functions from emulator/primitives_host.h, with
// checks, and runs the same kernels without a GPU.
//
// How to write a kernel
//   - A .cuh holds the parameter struct, the __device__ helpers and the __global__ function; a .cu
//     validates the arguments and calls Launch() (launch.h). Neither includes a CUDA header.
//   - Plain CUDA C++ for the rest: threadIdx, blockIdx, __syncthreads(), __syncwarp(),
//     __shfl_*_sync(), __ballot_sync(), float4, fmaxf, std::min, std::bit_cast. Blocks are
//     one-dimensional where lanes matter.
//   - Shared memory is DynamicShared<T>(), its size the launch's. Every block finds poison in it:
//     NaN, or in one of the emulator's thread orders large numbers.
//   - A shuffle or a vote orders no memory between lanes; __syncwarp() does.
//   - A cp.async target is poison until its group has been waited for; other threads may read it
//     only after a barrier that follows that wait.
//   - Offsets into tensors are int64_t.
// A misuse ends the launch with an error that names block, thread, file and line; run the tests of
// a kernel in the three thread orders, and under AddressSanitizer and ThreadSanitizer.
//
// The functions (T is Bf16 or F16, both 16-bit structs; ToFloat also takes float)
//   float ToFloat(T);  T FromFloat<T>(float);        nearest even
//   uint32_t Pack2<T>(float low, float high);  float2 Unpack2<T>(uint32_t);
//   V LoadReadOnly<V>(const void*);  void StoreVector<V>(void*, V);      4, 8 or 16 bytes, aligned
//   float Exp2(float), Log2(float);                                      approximate: 2 to 4 ulp
//   CpAsync<4|8|16>(shared, global, valid);  CpAsyncCommit();  CpAsyncWait<groups in flight>();
//       not valid: zeros, and the source is not read
//   LdMatrix(uint32_t (&r)[1|2|4], row);  LdMatrixTransposed(...)        row: this lane's 16 bytes
//   Mma<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)    m16n8k16, c += a b
//   NamedBarrier(id 1..15, threads)                                      of some warps of the block
//   GridDependencyWait(), GridDependencyLaunch()                         programmatic launch, sm_90
// sm_90 and up
//   MbarrierInit(uint64_t*, arrivals), MbarrierArrive, MbarrierArriveExpect(.., bytes),
//   MbarrierWait(.., parity): until the phase of that parity is complete; FenceMbarrierInit()
//   TmaLoad(shared, map, barrier, int (&coordinates)[2..5])     128-byte swizzle; zeros outside
//   FenceAsyncProxy()       before TMA or wgmma read shared memory that threads wrote
//   ShrinkRegisters<n>(), GrowRegisters<n>()                             setmaxnreg
// sm_90a, all four warps of a warpgroup together: m64n128k16
//   WgmmaFence() after the registers were touched; WgmmaShared<T>(float (&d)[64], a, b, accumulate)
//   with WgmmaDescriptor(shared, leading bytes, stride bytes); WgmmaRegisters<T>(d, a[4], b), whose
//   b has its columns contiguous; WgmmaCommit(); WgmmaWait<groups left in flight>()
//   d[i] of thread t: row t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8,
//                     col i / 4 * 8 + t % 4 * 2 + i % 2
//
// Fragments of m16n8k16, for lane l with row = l / 4 and col = l % 4 * 2 (pairs, low half first)
//   a[0]: (row, col)  a[1]: (row + 8, col)  a[2]: (row, col + 8)  a[3]: (row + 8, col + 8)
//   b0: (k = col, n = row)  b1: (k = col + 8, n = row)
//   c[0..1]: (row, col), (row, col + 1)   c[2..3]: (row + 8, col), (row + 8, col + 1)

#include "kernels/cuda/element_types.h"

#if defined(__CUDACC__)
#include "kernels/cuda/primitives_ptx.cuh"
#else
#include "kernels/cuda/emulator/primitives_host.h"
#endif
