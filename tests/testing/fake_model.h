#pragma once

// A model without numbers that still needs its whole context: the next token is a hash of the
// tokens that it reads back through the block table, so a wrong, lost or overwritten block changes
// it; what windows must hold of them has to agree.

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/model.h"

namespace quire::testing {

class FakeModel final : public engine::Model {
 public:
  // `num_padding` ids follow those that a tokenizer knows, as models pad their vocabulary; the last
  // of them has each row's largest logit, kPaddingLogit.
  FakeModel(int64_t num_ids, int32_t block_size, int64_t num_padding = 0);
  static constexpr float kBestLogit = 8.0f;  // of NextToken
  static constexpr float kPaddingLogit = 9.0f;

  // The token that follows `context`, greedily. It is never one of the last two ids, which are a
  // fake tokenizer's special tokens.
  int32_t NextToken(std::span<const int32_t> context) const;

  // Called at the start of each Forward after the first (the warm-up's).
  std::function<void()> before_forward;
  // Called in each Forward; set before the first.
  std::function<void(const engine::ModelInput&)> on_forward;
  std::atomic<int64_t> num_forwards = 0;
  std::atomic<int64_t> num_tokens = 0;
  std::atomic<int64_t> num_copies = 0;
  // Tokens of the largest step.
  std::atomic<int64_t> max_step_tokens = 0;
  // When set, the step of this number fails.
  std::atomic<int64_t> fail_at_forward = -1;
  // When set, the logits of this row of a step's logits are no numbers, in every step.
  std::atomic<int64_t> nan_row = -1;

  // Every row is NaN, as of a broken device.
  std::atomic<bool> void_rows = false;

  const engine::ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  int64_t step_bytes() const override { return 0; }
  int64_t num_parameters() const override { return 0; }
  absl::StatusOr<kernels::TensorView> Forward(const engine::ModelInput& input,
                                              engine::KvCache& cache) override;

 private:
  // Slot of a position in a KV group.
  int64_t Slot(const engine::GroupInput& group, int64_t seq, int32_t position) const;

  engine::ModelConfig config_;
  const int64_t num_drawable_;
  const int32_t block_size_;
  // By KV group: the token that each slot of the cache holds; -1: never written.
  std::vector<std::vector<int32_t>> slots_;
  std::vector<float> logits_;
};

}  // namespace quire::testing
