#include "engine/model/layers/device_input.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace quire::engine {
namespace {

// Each vector starts on a cache line of its own.
constexpr int64_t kAlignment = 64;

int64_t Align(int64_t bytes) { return base::RoundUp(bytes, kAlignment); }

}  // namespace

absl::StatusOr<DeviceInput> DeviceInput::Create(kernels::Backend& backend,
                                                const ModelConfig& config,
                                                const StepLimits& limits) {
  const int64_t max_blocks = base::CeilDiv(limits.max_model_len, limits.block_size);
  DeviceInput input;
  input.max_blocks_ = max_blocks;
  const kernels::BackendInfo info = backend.info();
  input.records_ = info.records;
  for (const LayerSpec& layer : config.layers) input.plans_[layer.attention.plan_key()] = nullptr;
  const int64_t bytes_per_group =
      Align(limits.max_tokens * 8) + Align(limits.max_seqs * max_blocks * 4);
  input.capacity_bytes_ = 3 * Align(limits.max_tokens * 4) + Align((limits.max_seqs + 1) * 4) +
                          Align(limits.max_seqs * 4) + Align(limits.max_logit_rows * 4) +
                          std::ssize(DifferentPatterns(config)) * bytes_per_group;
  ASSIGN_OR_RETURN(input.buffer_, backend.Allocate(input.capacity_bytes_));
  if (!info.host_memory) {
    for (kernels::DeviceBuffer& staging : input.staging_) {
      ASSIGN_OR_RETURN(staging, backend.AllocateHost(input.capacity_bytes_));
    }
  }
  return input;
}

absl::Status DeviceInput::Upload(kernels::Backend& backend, const ModelInput& input,
                                 std::span<const KvGroup> groups) {
  const int64_t num_tokens = input.num_tokens();
  const int64_t num_seqs = input.num_seqs();
  const bool fixed = records_ && num_tokens == num_seqs;
  last_staging_ = 1 - last_staging_;
  const kernels::DeviceBuffer& staging = staging_[last_staging_];
  auto* const host = static_cast<char*>(staging.bytes() > 0 ? staging.data() : buffer_.data());
  int64_t offset = 0;
  const auto place = [&](kernels::TensorView& view, const auto& values, kernels::DType dtype,
                         std::initializer_list<int64_t> shape) {
    view = kernels::TensorView(static_cast<char*>(buffer_.data()) + offset, dtype, shape);
    const int64_t bytes = view.num_bytes();
    QUIRE_CHECK(offset + Align(bytes) <= capacity_bytes_) << "a step larger than its limits";
    // A step without logits has no rows to copy.
    if (bytes > 0) std::memcpy(host + offset, values.data(), static_cast<size_t>(bytes));
    offset += Align(bytes);
  };
  using enum kernels::DType;
  place(token_ids_, input.token_ids, kI32, {num_tokens});
  place(token_sources_, input.token_sources, kI32, {std::ssize(input.token_sources)});
  place(positions_, input.positions, kI32, {num_tokens});
  place(query_starts_, input.query_starts, kI32, {num_seqs + 1});
  place(context_lens_, input.context_lens, kI32, {num_seqs});
  place(logit_rows_, input.logit_rows, kI32, {input.num_logit_rows()});
  QUIRE_CHECK(input.groups.size() == groups.size())
      << input.groups.size() << " KV groups, of " << groups.size();
  groups_.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].layers.empty()) continue;
    const GroupInput& from = input.groups[g];
    place(groups_[g].slot_mapping, from.slot_mapping, kI64, {num_tokens});
    const int64_t blocks = from.max_blocks_per_seq;
    if (!fixed) {
      place(groups_[g].block_table, from.block_table, kI32, {num_seqs, blocks});
      continue;
    }
    // The width of the table is rounded up to a power of two, so that few recordings serve all
    // steps. Attention never reads the padding of a row.
    const int64_t width =
        std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks)), max_blocks_);
    table_.assign(static_cast<size_t>(num_seqs * width), 0);
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      std::copy_n(from.block_table.begin() + seq * blocks, blocks, table_.begin() + seq * width);
    }
    place(groups_[g].block_table, table_, kI32, {num_seqs, width});
  }
  if (staging.bytes() > 0) {
    RETURN_IF_ERROR(backend.CopyToDevice(buffer_.data(), host, offset));
  }
  for (auto& [key, plan] : plans_) {
    ASSIGN_OR_RETURN(plan, backend.Plan({.context_lens = input.context_lens,
                                         .query_lens = input.query_lens,
                                         .heads = key.heads,
                                         .pattern = key.pattern,
                                         .fixed_launches = fixed}));
  }
  launch_key_.clear();
  if (!fixed) return absl::OkStatus();
  launch_key_ = {num_seqs, input.num_logit_rows(), std::ssize(input.token_sources)};
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].layers.empty()) launch_key_.push_back(groups_[g].block_table.dim(1));
  }
  for (const auto& [key, plan] : plans_) backend.AppendLaunchKey(*plan, launch_key_);
  return absl::OkStatus();
}

}  // namespace quire::engine
