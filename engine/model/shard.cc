#include "engine/model/shard.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

absl::Status WantGot(const std::string& where, const std::string& want, int64_t got) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": want ", want, ", got ", got));
}

absl::Status CheckLayer(const LayerSpec& layer, const std::string& where, int32_t num_ranks) {
  const auto multiple = [&](const char* what, int64_t got) -> absl::Status {
    if (got % num_ranks == 0) return absl::OkStatus();
    return WantGot(where, absl::StrCat("a multiple of ", num_ranks, " ", what), got);
  };
  const AttentionSpec& attention = layer.attention;
  RETURN_IF_ERROR(multiple("query heads", attention.num_heads));
  if (num_ranks % attention.num_kv_heads != 0) {
    RETURN_IF_ERROR(multiple("KV heads, or a divisor of it", attention.num_kv_heads));
  }
  RETURN_IF_ERROR(multiple("inner units", layer.feed_forward.inner_size));
  const char* unsupported = nullptr;
  if (layer.has_experts()) unsupported = "a mixture of experts";
  if (attention.qk_norm == QkNormScope::kToken) unsupported = "a norm over all heads";
  if (attention.pattern.head_step != 0) unsupported = "a pattern that differs between heads";
  if (unsupported == nullptr || num_ranks == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": want a layer that several ranks can share, got ", unsupported));
}

// Leaves the given rows of a parameter, counted over its stacked parts.
void SelectRows(const std::vector<RowRange>& wanted, StoredParameter& parameter) {
  std::vector<NamedRows> selected;
  for (const RowRange& want : wanted) {
    int64_t begin = 0;  // the row of the parameter at which the present range begins
    for (const NamedRows& part : parameter.parts) {
      for (const RowRange& range : RangesOf(part)) {
        const int64_t first = std::max(want.begin - begin, int64_t{0});
        const int64_t end = std::min(want.end - begin, range.end - range.begin);
        begin += range.end - range.begin;
        if (first >= end) continue;
        selected.push_back(part);
        selected.back().ranges = {{range.begin + first, range.begin + end}};
      }
    }
  }
  parameter.parts = std::move(selected);
}

RowRange Scaled(const RowRange& range, int64_t factor) {
  return {range.begin * factor, range.end * factor};
}

RowRange Moved(const RowRange& range, int64_t distance) {
  return {range.begin + distance, range.end + distance};
}

void ShardLayer(const LayerSpec& spec, const kernels::Rank& rank, LayerTensors& layer) {
  const AttentionSpec& attention = spec.attention;
  const RowRange heads = ShareOf(rank, attention.num_heads);
  const RowRange kv_heads = ShareOf(rank, attention.num_kv_heads);
  const std::vector<RowRange> qkv = {
      Scaled(heads, attention.key_dim),
      Moved(Scaled(kv_heads, attention.key_dim), attention.q_size()),
      Moved(Scaled(kv_heads, attention.value_dim), attention.q_size() + attention.k_size())};
  SelectRows(qkv, layer.qkv);
  SelectRows(qkv, layer.qkv_bias);
  SelectRows({heads}, layer.sinks);
  layer.o.wanted_cols = Scaled(heads, attention.value_dim);

  const int64_t inner_size = spec.feed_forward.inner_size;
  const RowRange inner = ShareOf(rank, inner_size);
  std::vector<RowRange> up = {inner};
  if (IsGated(spec.feed_forward.activation)) up.push_back(Moved(inner, inner_size));
  SelectRows(up, layer.up);
  SelectRows(up, layer.up_bias);
  layer.down.wanted_cols = inner;
  if (rank.index == 0) return;
  layer.o_bias.parts.clear();
  layer.down_bias.parts.clear();
}

}  // namespace

RowRange ShareOf(const kernels::Rank& rank, int64_t size) {
  const int64_t begin = rank.index * size / rank.size;
  return {begin, begin + std::max<int64_t>(1, size / rank.size)};
}

absl::StatusOr<ModelConfig> Shard(const ModelConfig& config, const kernels::Rank& rank) {
  ModelConfig part = config;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    LayerSpec& layer = part.layers[static_cast<size_t>(i)];
    RETURN_IF_ERROR(CheckLayer(layer, absl::StrCat("tensor parallel: layer ", i), rank.size));
    layer.attention.num_heads /= rank.size;
    layer.attention.num_kv_heads = std::max<int64_t>(1, layer.attention.num_kv_heads / rank.size);
    layer.feed_forward.inner_size /= rank.size;
  }
  return part;
}

void ShardTensors(const ModelConfig& config, const kernels::Rank& rank, DecoderTensors& tensors) {
  if (rank.size == 1) return;
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    ShardLayer(config.layers[i], rank, tensors.layers[i]);
  }
}

}  // namespace quire::engine
