#pragma once

// A model without weights whose output depends on the whole context. The next token is a hash of
// the tokens that the model reads back through the block table of KV group 0. So a wrong, lost or
// overwritten block changes the next token. The model checks that every other KV group has the same
// tokens in its window.

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/model.h"

namespace quire::testing {

class FakeModel final : public engine::Model {
 public:
  // `num_padding` ids follow the `num_ids` ids of the tokenizer, as in models that pad their
  // vocabulary. In each row, the last padding id has the largest logit, kPaddingLogit.
  FakeModel(int64_t num_ids, int32_t block_size, int64_t num_layers, int64_t num_padding = 0);
  static constexpr float kBestLogit = 8.0f;  // the logit of NextToken
  static constexpr float kPaddingLogit = 9.0f;

  // Returns the greedy token that follows `context`. The token is never one of the last two ids of
  // a fake tokenizer, which are its special tokens.
  int32_t NextToken(std::span<const int32_t> context) const;

  // Called at the start of each Forward except the first, which is the warm-up's.
  std::function<void()> before_forward;
  // Called in each Forward. Set it before the first Forward.
  std::function<void(const engine::ModelInput&)> on_forward;
  std::atomic<int64_t> num_forwards = 0;
  std::atomic<int64_t> num_tokens = 0;
  std::atomic<int64_t> num_copies = 0;
  // The number of tokens of the largest step.
  std::atomic<int64_t> max_step_tokens = 0;
  // If not -1, the Forward with this number, counted from 0, fails.
  std::atomic<int64_t> fail_at_forward = -1;
  // When not -1, the logits in this row are NaN in every step.
  std::atomic<int64_t> nan_row = -1;

  // When true, all logits are NaN, as from a broken device.
  std::atomic<bool> void_rows = false;

  const engine::ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  int64_t step_bytes() const override { return 0; }
  int64_t num_parameters() const override { return 0; }
  absl::StatusOr<kernels::TensorView> Forward(const engine::ModelInput& input,
                                              engine::KvCache& cache) override;

 private:
  // Returns the slot in a KV group that holds `position` of sequence number `seq` of the step.
  int64_t Slot(const engine::GroupInput& group, int64_t seq, int32_t position) const;
  // Returns the token in a slot of a KV group plus 1, which stands where a real model has K and V
  // of the slot's block; 0: never written.
  int32_t& Held(const engine::KvCache& cache, size_t group, int64_t slot);

  engine::ModelConfig config_;
  const int64_t num_drawable_;
  const int32_t block_size_;
  std::vector<int32_t> slots_;  // of a KV group 0 without layers, which has no memory
  std::vector<float> logits_;
};

}  // namespace quire::testing
