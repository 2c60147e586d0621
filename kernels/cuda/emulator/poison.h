#pragma once

// Poison fills memory whose content a kernel must not use: memory that was not written yet, and the
// target of an asynchronous write that is not complete. All its bytes have the same value.

#include <bit>
#include <cstdint>

namespace quire::kernels::cuda::emulator {

enum class Poison : unsigned char {
  // A NaN as float, f16 and bf16. It makes every sum NaN and loses every maximum.
  kNaN = 0xff,
  // A number as float, f16 and bf16, and larger than any number in use. It wins every maximum.
  kLarge = 0x7b,
};

inline float FloatOf(Poison poison) {
  return std::bit_cast<float>(0x01010101u * static_cast<uint32_t>(poison));
}

}  // namespace quire::kernels::cuda::emulator
