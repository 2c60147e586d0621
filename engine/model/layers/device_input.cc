#include "engine/model/layers/device_input.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::TensorView;

// Each vector starts on a cache line of its own.
constexpr int64_t kAlignment = 64;

int64_t Align(int64_t bytes) { return base::RoundUp(bytes, kAlignment); }

}  // namespace

absl::StatusOr<DeviceInput> DeviceInput::Create(kernels::Backend& backend,
                                                const ModelConfig& config,
                                                const StepLimits& limits) {
  DeviceInput input;
  const kernels::BackendInfo info = backend.info();
  input.records_ = info.records;
  input.max_tokens_ = limits.max_tokens;
  input.max_seqs_ = limits.max_seqs;
  input.max_context_len_ = limits.max_model_len;
  for (const LayerSpec& layer : config.layers) input.plans_[layer.attention.plan_key()] = nullptr;
  const int64_t num_groups = std::ssize(DifferentPatterns(config));
  const int64_t max_blocks = base::CeilDiv(limits.max_model_len, limits.block_size);
  ASSIGN_OR_RETURN(input.tables_, BlockTables::Create(backend, num_groups, limits.max_seqs,
                                                      max_blocks, limits.block_size));
  input.capacity_bytes_ =
      3 * Align(limits.max_tokens * 4) + Align((limits.max_seqs + 1) * 4) +
      Align(limits.max_seqs * 4) + Align(limits.max_logit_rows * 4) +
      num_groups * Align(limits.max_tokens * 8) + Align(input.tables_.max_changes_bytes()) +
      Align(backend.MostSampleChanges(limits.max_logit_rows, limits.max_logit_rows) *
            int64_t{sizeof(kernels::TableChange)});
  ASSIGN_OR_RETURN(input.buffer_, backend.Allocate(input.capacity_bytes_));
  if (!info.host_memory) {
    for (kernels::DeviceBuffer& staging : input.staging_) {
      ASSIGN_OR_RETURN(staging, backend.AllocateHost(input.capacity_bytes_));
    }
  }
  return input;
}

void DeviceInput::Pad(const ModelInput& input, int64_t num_seqs) {
  const auto size = static_cast<size_t>(num_seqs);
  const auto pad = [size](auto& to, const auto& from, auto value) {
    to = from;
    to.resize(size, value);
  };
  pad(padded_.token_ids, input.token_ids, 0);
  padded_.token_sources.clear();
  // The launches of a step must not depend on whether it has sources.
  if (!input.drawn.empty()) pad(padded_.token_sources, input.token_sources, -1);
  pad(padded_.positions, input.positions, 0);
  pad(padded_.query_lens, input.query_lens, 1);
  pad(padded_.context_lens, input.context_lens, 1);
  padded_.query_starts = input.query_starts;
  while (padded_.query_starts.size() <= size) {
    padded_.query_starts.push_back(padded_.query_starts.back() + 1);
  }
  padded_.logit_rows = input.logit_rows;
  if (input.num_logit_rows() == input.num_seqs()) padded_.logit_rows.resize(size, 0);
  padded_.groups.resize(input.groups.size());
  for (size_t group = 0; group < input.groups.size(); ++group) {
    pad(padded_.groups[group].slot_mapping, input.groups[group].slot_mapping, -1);
  }
}

void DeviceInput::Place(const ModelInput& input, std::span<const KvGroup> groups,
                        std::span<const kernels::TableChange> changes,
                        std::span<const kernels::TableChange> sampler_changes, char* host) {
  placed_bytes_ = 0;
  const auto place = [&](const auto& values, DType dtype, std::initializer_list<int64_t> shape) {
    const TensorView view(static_cast<char*>(buffer_.data()) + placed_bytes_, dtype, shape);
    const int64_t bytes = view.num_bytes();
    QUIRE_CHECK(placed_bytes_ + Align(bytes) <= capacity_bytes_) << "a step larger than its limits";
    // A step without logits has no rows to copy.
    if (bytes > 0) std::memcpy(host + placed_bytes_, values.data(), static_cast<size_t>(bytes));
    placed_bytes_ += Align(bytes);
    return view;
  };
  using enum DType;
  token_ids_ = place(input.token_ids, kI32, {input.num_tokens()});
  token_sources_ = place(input.token_sources, kI32, {std::ssize(input.token_sources)});
  positions_ = place(input.positions, kI32, {input.num_tokens()});
  query_starts_ = place(input.query_starts, kI32, {input.num_seqs() + 1});
  context_lens_ = place(input.context_lens, kI32, {input.num_seqs()});
  logit_rows_ = place(input.logit_rows, kI32, {input.num_logit_rows()});
  QUIRE_CHECK(input.groups.size() == groups.size())
      << input.groups.size() << " KV groups, of " << groups.size();
  slot_mappings_.resize(groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].layers.empty()) continue;
    slot_mappings_[group] = place(input.groups[group].slot_mapping, kI64, {input.num_tokens()});
  }
  // The changes come last. Their number differs from step to step, and no other address depends on
  // it.
  table_changes_ = place(changes, kI32, {std::ssize(changes), 2});
  sampler_changes_ = place(sampler_changes, kI32, {std::ssize(sampler_changes), 2});
}

absl::Status DeviceInput::Upload(kernels::Backend& backend, const ModelInput& input,
                                 const KvCache& cache) {
  const std::span<const KvGroup> groups = cache.groups();
  const bool is_decode = records_ && input.num_tokens() == input.num_seqs();
  if (is_decode) Pad(input, DecodeBucket(input.num_seqs(), max_seqs_));
  const ModelInput& step = is_decode ? padded_ : input;
  last_staging_ = 1 - last_staging_;
  const kernels::DeviceBuffer& staging = staging_[last_staging_];
  auto* const host = static_cast<char*>(staging.bytes() > 0 ? staging.data() : buffer_.data());
  Place(step, groups, tables_.Changes(input, groups), input.sampler_update.changes, host);
  if (staging.bytes() > 0) {
    RETURN_IF_ERROR(backend.CopyToDevice(buffer_.data(), host, placed_bytes_));
  }
  RETURN_IF_ERROR(tables_.Update(backend, table_changes_));
  if (sampler_changes_.dim(0) > 0) {
    RETURN_IF_ERROR(
        backend.UpdateTable({.table = input.sampler_update.table, .changes = sampler_changes_}));
  }
  const std::span shared_seqs = input.shared_seqs;
  const std::span shared_keys = input.shared_keys;
  for (auto& [key, plan] : plans_) {
    // Only the layers of group 0 share keys.
    const bool shares =
        std::ranges::find(groups.subspan(1), key.pattern, &KvGroup::pattern) == groups.end();
    ASSIGN_OR_RETURN(
        plan, backend.Plan({.context_lens = step.context_lens,
                            .query_lens = step.query_lens,
                            .heads = key.heads,
                            .pattern = key.pattern,
                            .alibi_is_rounded = key.alibi_is_rounded,
                            .cache_dtype = cache.shape().dtype,
                            .fixed_launches = is_decode,
                            .device_context_lens = context_lens_,
                            .most_tokens = max_tokens_,
                            .most_seqs = max_seqs_,
                            .most_context_len = max_context_len_,
                            .shared_seqs = shared_seqs.first(shares ? shared_seqs.size() : 0),
                            .shared_keys = shared_keys.first(shares ? shared_keys.size() : 0)}));
  }
  launch_key_.clear();
  if (!is_decode) return absl::OkStatus();
  launch_key_ = {step.num_seqs(), step.num_logit_rows(), std::ssize(step.token_sources)};
  for (const auto& [key, plan] : plans_) backend.AppendLaunchKey(*plan, launch_key_);
  return absl::OkStatus();
}

}  // namespace quire::engine
