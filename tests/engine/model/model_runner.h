#pragma once

// Runs one model on one backend without scheduler and block manager. The test makes the input of
// each step.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "engine/model/model.h"
#include "tests/engine/model/golden_logits.h"
#include "tests/testing/model_steps.h"

namespace quire::testing {

// The runner has its own KV cache. The cache has the dtype of the backend's activations, if no
// other is given, and is filled with NaN at first.
class ModelRunner {
 public:
  static constexpr engine::StepLimits kLimits = {.max_tokens = 128,
                                                 .max_seqs = 8,
                                                 .max_logit_rows = 128,
                                                 .max_model_len = 256,
                                                 .block_size = 16};

  // `model` must be made on `backend` for kLimits. `backend` must outlive this.
  ModelRunner(std::unique_ptr<engine::Model> model, kernels::Backend& backend,
              std::optional<kernels::DType> cache_dtype = std::nullopt)
      : backend_(backend),
        model_(std::move(model)),
        cache_(*engine::KvCache::Create(backend,
                                        {.layers = KvLayerShapes(model_->config()),
                                         .block_size = kLimits.block_size,
                                         .dtype = cache_dtype.value_or(backend.activation_dtype())},
                                        Groups(model_->config()))) {
    // In any dtype, bytes of 0xff are NaN.
    const std::vector<uint8_t> poison(static_cast<size_t>(cache_.bytes()), 0xff);
    for (size_t group = 0; group < cache_.groups().size(); ++group) {
      if (cache_.groups()[group].layers.empty()) continue;
      const kernels::TensorView blocks = cache_.blocks(group);
      EXPECT_TRUE(backend.CopyToDevice(blocks.raw(), poison.data(), blocks.num_bytes()).ok());
      EXPECT_TRUE(backend.Synchronize().ok());
    }
  }

  // Runs one step and returns its logits. All KV groups use the same block numbers, each in its own
  // memory. The step first makes the block copies in `copies`.
  Logits Step(const std::vector<StepChunk>& chunks,
              const std::vector<kernels::BlockCopy>& copies = {}) {
    engine::ModelInput input = MakeStep(chunks, kLimits.block_size);
    input.groups[0].copies = copies;
    input.groups.resize(cache_.groups().size(), input.groups[0]);
    const absl::StatusOr<kernels::TensorView> logits = model_->Forward(input, cache_);
    EXPECT_TRUE(logits.ok()) << logits.status();
    Logits on_host(static_cast<size_t>(logits->num_elements()));
    EXPECT_TRUE(backend_.CopyToHost(on_host.data(), logits->raw(), logits->num_bytes()).ok());
    EXPECT_TRUE(backend_.Synchronize().ok());
    return on_host;
  }

  // Runs a whole prompt, `chunk` tokens a step, in blocks that are not neighbours. Returns the
  // logits of all tokens.
  Logits Prefill(const std::vector<int32_t>& ids, int64_t chunk = kLimits.max_tokens) {
    Logits all;
    const int64_t size = static_cast<int64_t>(ids.size());
    for (int64_t begin = 0; begin < size; begin += chunk) {
      const Logits part = Step({{.tokens = &ids,
                                 .begin = begin,
                                 .count = std::min(chunk, size - begin),
                                 .blocks = kBlocks}});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  static inline const std::vector<int32_t> kBlocks = {7, 2, 19, 4, 30};

 private:
  static std::vector<engine::KvGroup> Groups(const engine::ModelConfig& config) {
    std::vector<engine::KvGroup> groups =
        engine::GroupLayers(LayerPatterns(config), kLimits.max_model_len);
    for (engine::KvGroup& group : groups) group.num_blocks = 32;
    return groups;
  }

  kernels::Backend& backend_;
  std::unique_ptr<engine::Model> model_;
  engine::KvCache cache_;
};

}  // namespace quire::testing
