#pragma once

// A set of token ids, stored as a bitmap, so that a look-up costs the same for lists of any length.

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace quire::kernels {

class TokenSet {
 public:
  TokenSet() = default;
  // `ids` are 0 .. vocab_size - 1; repeats are allowed.
  TokenSet(std::span<const int32_t> ids, int32_t vocab_size) {
    if (ids.empty()) return;
    words_.resize((static_cast<size_t>(vocab_size) + 63) / 64);
    for (const int32_t id : ids) {
      QUIRE_CHECK(id >= 0 && id < vocab_size) << "token " << id;
      words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    }
  }

  // Id i is bit i % 64 of word i / 64. Later ids are not in the set.
  std::span<const uint64_t> words() const { return words_; }
  bool empty() const { return words_.empty(); }
  bool Contains(int32_t id) const {
    const auto word = static_cast<size_t>(id) / 64;
    return word < words_.size() && (words_[word] >> (id % 64) & 1) != 0;
  }
  // Calls `use` with every id below `end`, in order.
  template <typename Use>
  void ForEachBelow(int64_t end, const Use& use) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t left = words_[i]; left != 0; left &= left - 1) {
        const auto id = static_cast<int64_t>(i) * 64 + std::countr_zero(left);
        if (id >= end) return;
        use(id);
      }
    }
  }

 private:
  std::vector<uint64_t> words_;  // empty: no id
};

}  // namespace quire::kernels
