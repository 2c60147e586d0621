#pragma once

// What memory holds that nothing was written to yet, or not by right: one byte, everywhere.

#include <bit>
#include <cstdint>

namespace quire::kernels::cuda::emulator {

enum class Poison : unsigned char {
  kNaN = 0xff,    // as float, f16 and bf16: spoils every sum, and loses against every number
  kLarge = 0x7b,  // a number in each of them, larger than any in use: wins every maximum
};

inline float FloatOf(Poison poison) {
  return std::bit_cast<float>(0x01010101u * static_cast<uint32_t>(poison));
}

}  // namespace quire::kernels::cuda::emulator
