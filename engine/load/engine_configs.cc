#include "engine/load/engine_configs.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "engine/kv/kv_budget.h"

namespace quire::engine {
namespace {

// Returns why no request may have a cache window, or nothing if requests may.
std::string WhyNoCacheWindow(const ModelConfig& model, const KvCache& cache) {
  if (model.learned_positions) return "the model's tokens hold the positions they came with";
  const bool has_holes = std::ranges::any_of(
      LayerPatterns(model), [](const auto& pattern) { return pattern.has_holes(); });
  return cache.groups().size() == 1 && !has_holes ? "" : kSeesPartOfContext;
}

// Returns why no request may search with beams, or nothing if requests may.
std::string WhyNoBeams(const kernels::Backend& backend) {
  if (backend.info().lists_best) return "";
  return absl::StrCat("the sampler of the backend \"", backend.info().name,
                      "\" lists too few tokens; serve on the CPU");
}

// Returns the most sequences that always have room in the windows together, whatever is pinned.
int64_t MostTogether(const EngineParts& parts, double max_pinned_share) {
  int64_t most = std::numeric_limits<int32_t>::max();
  for (const LedgerGroup& group : LedgerGroups(parts.cache, parts.limits)) {
    if (group.for_one == 0) continue;
    most = std::min(most, (group.num_blocks - group.MostPinned(max_pinned_share)) / group.for_one);
  }
  return most;
}

}  // namespace

FrontendLimits FrontendLimitsOf(const EngineParts& parts, const EngineConfig& config,
                                std::function<int64_t()> num_pinned_blocks) {
  return {.vocab_size = static_cast<int32_t>(parts.model->config().vocab_size),
          .max_model_len = parts.limits.max_model_len,
          .max_prompt_bytes = config.max_prompt_bytes,
          .cache_tokens = parts.cache.groups()[0].num_blocks * parts.limits.block_size,
          .block_size = parts.limits.block_size,
          .max_num_seqs = static_cast<int32_t>(parts.limits.max_seqs),
          .no_chat = parts.no_chat,
          .no_cache_window = WhyNoCacheWindow(parts.model->config(), parts.cache),
          .no_beams = WhyNoBeams(*parts.backend),
          .most_together = MostTogether(parts, config.max_pinned_share),
          .num_pinned_blocks = std::move(num_pinned_blocks)};
}

std::vector<LedgerGroup> LedgerGroups(const KvCache& cache, const StepLimits& limits) {
  const BlockManagerConfig config =
      BlockConfigFor(cache.groups(), limits.block_size, limits.max_tokens, limits.pipeline_depth);
  std::vector<LedgerGroup> groups;
  for (size_t g = 0; g < cache.groups().size(); ++g) {
    const KvGroup& group = cache.groups()[g];
    groups.push_back({.num_blocks = group.num_blocks,
                      .for_one = g == 0 ? 0 : WindowBlocksPerSequence(group.pattern, config)});
  }
  return groups;
}

std::function<std::vector<int64_t>(int64_t)> PinnedBlocksOf(const EngineParts& parts) {
  std::vector<kernels::AttentionPattern> windows;
  for (const KvGroup& group : parts.cache.groups().subspan(1)) windows.push_back(group.pattern);
  return [windows, block_size = parts.limits.block_size](int64_t num_tokens) {
    return PinnedBlocks(windows, block_size, num_tokens);
  };
}

PrefixRegistryConfig PrefixConfigOf(const EngineParts& parts) {
  PrefixRegistryConfig config{.model = parts.model_info.name,
                              .model_digest = parts.server_info.model_digest,
                              .block_size = parts.limits.block_size,
                              .blocks_of = PinnedBlocksOf(parts)};
  for (const KvGroup& group : parts.cache.groups()) {
    config.bytes_per_block.push_back(parts.cache.shape().bytes_per_block(group));
  }
  return config;
}

}  // namespace quire::engine
