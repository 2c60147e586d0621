#pragma once

// Hashes the bits of numbers, for tests of equal bits.

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace quire::testing {

// FNV-1a, number by number.
class BitHash {
 public:
  void Add(float x) { AddBits(std::bit_cast<uint32_t>(x)); }
  void Add(double x) { AddBits(std::bit_cast<uint64_t>(x)); }
  template <typename Numbers>
  void AddAll(const Numbers& numbers) {
    for (const auto x : numbers) Add(x);
  }
  void AddBits(uint64_t bits) { hash_ = (hash_ ^ bits) * 0x100000001B3; }
  // Returns "name hash", with a newline.
  std::string Line(const std::string& name) const {
    return absl::StrFormat("%s %016x\n", name, hash_);
  }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace quire::testing
