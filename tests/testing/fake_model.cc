#include "tests/testing/fake_model.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "tests/testing/seen_keys.h"

namespace quire::testing {

FakeModel::FakeModel(int64_t num_ids, int32_t block_size, int64_t num_layers, int64_t num_padding)
    : num_drawable_(num_ids - 2), block_size_(block_size) {
  config_.architecture = "fake";
  config_.vocab_size = num_ids + num_padding;
  config_.layers.resize(static_cast<size_t>(num_layers));
}

int32_t FakeModel::NextToken(std::span<const int32_t> context) const {
  uint64_t hash = 0x9E3779B97F4A7C15;
  for (const int32_t token : context) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xBF58476D1CE4E5B9;
    hash ^= hash >> 29;
  }
  return static_cast<int32_t>(hash % static_cast<uint64_t>(num_drawable_));
}

int64_t FakeModel::Slot(const engine::GroupInput& group, int64_t seq, int32_t position) const {
  const int32_t block = group.block_table[seq * group.max_blocks_per_seq + position / block_size_];
  return int64_t{block} * block_size_ + position % block_size_;
}

int32_t& FakeModel::Held(const engine::KvCache& cache, size_t group, int64_t slot) {
  const kernels::TensorView blocks = cache.blocks(group);
  if (blocks.empty()) {
    slots_.resize(static_cast<size_t>(cache.groups()[group].num_blocks * block_size_), 0);
    return slots_[static_cast<size_t>(slot)];
  }
  const int64_t bytes = cache.shape().bytes_per_block(cache.groups()[group]);
  auto* const tokens = static_cast<char*>(blocks.raw()) + slot / block_size_ * bytes;
  return reinterpret_cast<int32_t*>(tokens)[slot % block_size_];
}

absl::StatusOr<kernels::TensorView> FakeModel::Forward(const engine::ModelInput& input,
                                                       engine::KvCache& cache) {
  if (num_forwards > 0 && before_forward) before_forward();
  if (num_forwards++ == fail_at_forward) return absl::InternalError("the device is on fire");
  if (on_forward) on_forward(input);
  num_tokens += input.num_tokens();
  num_copies += static_cast<int64_t>(input.groups[0].copies.size());
  max_step_tokens = std::max<int64_t>(max_step_tokens, input.num_tokens());
  QUIRE_CHECK(input.groups.size() == cache.groups().size());
  const size_t num_groups = input.groups.size();
  for (size_t g = 0; g < num_groups; ++g) {
    for (const kernels::BlockCopy& copy : input.groups[g].copies) {
      std::copy_n(&Held(cache, g, int64_t{copy.source} * block_size_), block_size_,
                  &Held(cache, g, int64_t{copy.destination} * block_size_));
    }
    for (int64_t t = 0; t < input.num_tokens(); ++t) {
      Held(cache, g, input.groups[g].slot_mapping[t]) = input.token_ids[t] + 1;
    }
  }

  const int64_t vocab = config_.vocab_size;
  logits_.assign(input.num_logit_rows() * vocab, 0.0f);
  std::vector<int32_t> context;
  for (int64_t row = 0; row < input.num_logit_rows(); ++row) {
    const int32_t token = input.logit_rows[row];
    const auto after = std::ranges::upper_bound(input.query_starts, token);
    const int64_t seq = after - input.query_starts.begin() - 1;
    context.clear();
    for (int32_t position = 0; position <= input.positions[token]; ++position) {
      const int32_t held = Held(cache, 0, Slot(input.groups[0], seq, position));
      QUIRE_CHECK(held > 0) << "position " << position << " reads a slot that was never written";
      for (size_t g = 1; g < num_groups; ++g) {
        if (!Sees(cache.groups()[g].pattern, input.positions[token], position)) continue;
        QUIRE_CHECK(Held(cache, g, Slot(input.groups[g], seq, position)) == held)
            << "position " << position << " in KV group " << g;
      }
      context.push_back(held - 1);
    }
    if (void_rows) {
      std::fill_n(logits_.begin() + row * vocab, vocab, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    // Two runners-up beside the likeliest token give sampling something to choose from.
    const int32_t best = NextToken(context);
    float* logits = logits_.data() + row * vocab;
    logits[(best + 3) % num_drawable_] = 7.0f;
    logits[(best + 5) % num_drawable_] = 7.5f;
    logits[best] = kBestLogit;
    if (vocab > num_drawable_ + 2) logits[vocab - 1] = kPaddingLogit;
    if (row == nan_row) std::fill_n(logits, vocab, std::numeric_limits<float>::quiet_NaN());
  }
  return kernels::TensorView(logits_.data(), kernels::DType::kF32, {input.num_logit_rows(), vocab});
}

}  // namespace quire::testing
