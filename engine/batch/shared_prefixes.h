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
  // nested, such as a system prompt of all rows and a longer conversation of a few, those few share
  // what saves more: the longer prefix, or the one of all. Finds nothing if all together save fewer
  // than `least_saved_keys`. Changes the order of `rows`, and compares each block of a row at most
  // once. The results are those of AttentionPlanArgs, and are valid until the next call.
  void Find(std::span<PrefixRow> rows, int64_t least_saved_keys);

  std::span<const int32_t> seqs() const { return seqs_; }
  std::span<const kernels::SharedKeys> keys() const { return keys_; }
  // Returns the keys that sharing saves: of each prefix, once for every row but the first.
  int64_t num_saved() const { return num_saved_; }

  // A shorter prefix is read in less time than the merge of its results takes.
  static constexpr int64_t kLeastKeys = 256;
  // Prefixes that are nested more deeply are not found. This bounds the time and the stack where
  // each row goes on from the row before.
  static constexpr int kMostLevels = 64;

 private:
  // Rows that have one more block in common than others, and the prefixes that were found for them.
  struct Branch {
    size_t begin = 0, end = 0;        // of its rows
    size_t end_seq = 0, end_key = 0;  // the ends of its part of seqs_ and keys_
    int64_t saved = 0;
    bool keeps_own = false;
  };

  // Adds the best prefixes of `rows`, of which the first `depth` blocks are equal, down to `levels`
  // levels of nested prefixes. Returns the keys that they save.
  int64_t AddBest(std::span<PrefixRow> rows, size_t depth, int levels);
  // Removes the prefixes of branches that do not keep their own. Those of all branches are what
  // seqs_ and keys_ have from `first_seq` and `first_key` on.
  void KeepOwn(std::span<const Branch> branches, size_t first_seq, size_t first_key);

  const int32_t block_size_;
  std::vector<Branch> branches_;  // of the nodes from the root to the present one
  std::vector<int32_t> seqs_;
  std::vector<kernels::SharedKeys> keys_;
  int64_t num_saved_ = 0;
};

}  // namespace quire::engine
