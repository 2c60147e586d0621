#pragma once

#include <cstdint>

namespace quire::kernels::cuda::emulator {

// Applies the 128-byte swizzle of TMA and wgmma to an offset into shared memory. On a GPU the
// swizzle applies to addresses. The result is the same, because shared memory is aligned to 1024
// bytes.
inline int64_t Swizzle128(int64_t offset) { return offset ^ ((offset >> 7 & 7) << 4); }

}  // namespace quire::kernels::cuda::emulator
