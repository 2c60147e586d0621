#pragma once

// The keys that a query sees in one head, by the definition of each AttentionPattern rule.

#include <cstdint>

#include "kernels/ops/attention_pattern.h"

namespace quire::testing {

inline bool Sees(const kernels::AttentionPattern& pattern, int64_t query, int64_t key,
                 int64_t head = 0) {
  if (key > query) return false;
  switch (pattern.rule) {
    case kernels::AttentionPattern::Rule::kAll:
      return true;
    case kernels::AttentionPattern::Rule::kWindow:
      return query - key < pattern.tokens;
    case kernels::AttentionPattern::Rule::kChunk:
      return key / pattern.tokens == query / pattern.tokens;
    case kernels::AttentionPattern::Rule::kBlocks: {
      const int64_t key_block = key / pattern.tokens;
      return query / pattern.tokens - key_block < pattern.local_blocks ||
             (key_block + head * pattern.head_step + 1) % pattern.stride == 0;
    }
  }
  return false;
}

// Returns the first key that a query sees under a rule without holes.
inline int64_t FirstSeenKey(const kernels::AttentionPattern& pattern, int64_t query) {
  int64_t key = 0;
  while (key < query && !Sees(pattern, query, key)) ++key;
  return key;
}

}  // namespace quire::testing
