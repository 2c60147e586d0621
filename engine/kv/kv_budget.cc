#include "engine/kv/kv_budget.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "base/math.h"

namespace quire::engine {
namespace {

// The most blocks of group 0 when every layer has a window. Group 0 then has no K/V memory, but
// each of its blocks still costs a node in the prefix tree.
constexpr int64_t kMaxBlocksWithoutMemory = 1 << 18;

int64_t BlocksOf(int64_t tokens, int32_t block_size) { return base::CeilDiv(tokens, block_size); }

}  // namespace

BlockManagerConfig BlockConfigFor(std::span<const KvGroup> groups, int32_t block_size,
                                  int64_t max_step_tokens, int32_t pipeline_depth) {
  BlockManagerConfig config{.num_blocks = static_cast<int32_t>(groups[0].num_blocks),
                            .block_size = block_size,
                            .max_step_tokens = max_step_tokens,
                            .pipeline_depth = pipeline_depth};
  for (const KvGroup& group : groups.subspan(1)) {
    config.windows.push_back(
        {.pattern = group.pattern, .num_blocks = static_cast<int32_t>(group.num_blocks)});
  }
  return config;
}

absl::Status DivideKvMemory(const KvCacheShape& shape, const KvBudget& budget,
                            std::vector<KvGroup>& groups) {
  const BlockManagerConfig config =
      BlockConfigFor(groups, shape.block_size, budget.max_step_tokens, budget.pipeline_depth);
  // Returns the most blocks of a group that one sequence needs.
  const auto most = [&](const KvGroup& group) {
    return WindowBlocksPerSequence(group.pattern, config);
  };
  // Sets num_blocks for contexts of `length` blocks and returns the bytes of all groups. For a
  // length of 0, a window has the blocks of one sequence.
  const auto divide = [&](int64_t length) {
    const int64_t window = length == 0 ? 0 : length + 1;
    int64_t bytes = 0;
    for (KvGroup& group : groups) {
      group.num_blocks = budget.max_seqs * length;
      if (!group.pattern.sees_all()) {
        group.num_blocks = std::max(most(group), budget.max_seqs * std::min(window, most(group)));
      }
      bytes += group.num_blocks * shape.bytes_per_block(group);
    }
    return bytes;
  };

  const int64_t longest = BlocksOf(budget.max_model_len, shape.block_size);
  int64_t fits = 0;
  for (int64_t above = longest + 1; above - fits > 1;) {
    const int64_t middle = (fits + above) / 2;
    (divide(middle) <= budget.bytes ? fits : above) = middle;
  }
  const int64_t used = divide(fits);
  KvGroup& all = groups[0];
  if (fits == longest && budget.use_all && used > 0) {
    const double more = static_cast<double>(budget.bytes) / static_cast<double>(used);
    for (KvGroup& group : groups) {
      group.num_blocks = static_cast<int64_t>(static_cast<double>(group.num_blocks) * more);
    }
  } else if (fits < longest && !all.layers.empty()) {
    all.num_blocks = std::max(int64_t{0}, budget.bytes - used) / shape.bytes_per_block(all) +
                     budget.max_seqs * fits;
  }
  if (all.layers.empty()) {
    all.num_blocks = std::min(budget.max_seqs * longest, kMaxBlocksWithoutMemory);
  }
  int64_t needed = 2 * shape.bytes_per_block(all);
  for (const KvGroup& group : groups) {
    if (!group.pattern.sees_all()) needed += most(group) * shape.bytes_per_block(group);
  }
  if (all.num_blocks < 2 || needed > budget.bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the KV cache has %d bytes and needs at least %d; raise --kv_cache_mib or lower "
        "--block_size",
        budget.bytes, needed));
  }
  for (KvGroup& group : groups) group.num_blocks = std::min<int64_t>(group.num_blocks, INT32_MAX);
  return absl::OkStatus();
}

}  // namespace quire::engine
