#include "base/resource_name.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace quire::base {
namespace {

// Crockford's base32 in lower case, without letters that look like digits.
constexpr std::string_view kDigits = "0123456789abcdefghjkmnpqrstvwxyz";
constexpr size_t kNumDigits = 26;  // 128 bits, 5 to a digit

}  // namespace

std::string NewResourceName(std::string_view collection) {
  thread_local std::random_device random;  // the system's: the names must not be guessed
  std::string name(collection);
  name.push_back('/');
  uint64_t bits = 0;
  int num_bits = 0;
  for (size_t i = 0; i < kNumDigits; ++i) {
    if (num_bits < 5) {
      bits |= uint64_t{random()} << num_bits;
      num_bits += 32;
    }
    name.push_back(kDigits[bits % 32]);
    bits /= 32;
    num_bits -= 5;
  }
  return name;
}

bool IsResourceName(std::string_view collection, std::string_view name) {
  if (!name.starts_with(collection)) return false;
  name.remove_prefix(collection.size());
  return name.size() == 1 + kNumDigits && name[0] == '/' &&
         std::ranges::all_of(name.substr(1),
                             [](char c) { return kDigits.find(c) != kDigits.npos; });
}

}  // namespace quire::base
