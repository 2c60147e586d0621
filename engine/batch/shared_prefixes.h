#pragma once

// Finds the decodes of a step whose block tables begin with the same blocks.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/paged_attention.h"

namespace quire::engine {

// One decode of a step.
struct PrefixRow {
  int32_t seq = 0;  // its index in the step
  // The blocks whose keys are all before its query, in order.
  std::span<const int32_t> blocks;
};

// Kept for the capacity of its vectors. Not thread-safe.
class SharedPrefixes {
 public:
  explicit SharedPrefixes(int32_t block_size) : block_size_(block_size) {}

  // Finds prefixes of at least kLeastKeys keys. A row is in at most one of them. Where prefixes are
  // nested, such as one of all rows and longer ones of a few, those are chosen that save the most
  // keys. Finds nothing if all together save fewer than `least_saved_keys`. Changes the order of
  // `rows`, and compares each block of a row at most once. The results are those of
  // AttentionPlanArgs, and are valid until the next call.
  void Find(std::span<PrefixRow> rows, int64_t least_saved_keys);

  std::span<const int32_t> seqs() const { return seqs_; }
  std::span<const kernels::SharedKeys> keys() const { return keys_; }
  // Returns the keys that sharing saves: of each prefix, once for every row but the first.
  int64_t num_saved() const { return num_saved_; }

  // A shorter prefix is read in less time than the merge of its results takes.
  static constexpr int64_t kLeastKeys = 256;

 private:
  // Adds the best prefixes of `rows`, of which the first `depth` blocks are equal. Returns the keys
  // that they save.
  int64_t AddBest(std::span<PrefixRow> rows, size_t depth);

  const int32_t block_size_;
  std::vector<int32_t> seqs_;
  std::vector<kernels::SharedKeys> keys_;
  int64_t num_saved_ = 0;
};

}  // namespace quire::engine
