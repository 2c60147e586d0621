#pragma once

// The content of memory that was not written yet, or not validly: one byte value everywhere.

#include <bit>
#include <cstdint>

namespace quire::kernels::cuda::emulator {

enum class Poison : unsigned char {
  kNaN = 0xff,    // as float, f16 and bf16: spoils every sum, loses every maximum
  kLarge = 0x7b,  // a number in each of them, larger than any in use: wins every maximum
};

inline float FloatOf(Poison poison) {
  return std::bit_cast<float>(0x01010101u * static_cast<uint32_t>(poison));
}

}  // namespace quire::kernels::cuda::emulator
