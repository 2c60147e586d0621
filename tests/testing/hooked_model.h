#pragma once

// A model that calls a function of the test before each step, so that the test can hold the step.

#include <functional>
#include <memory>
#include <utility>

#include "engine/model/model.h"

namespace quire::testing {

class HookedModel final : public engine::Model {
 public:
  explicit HookedModel(std::unique_ptr<engine::Model> model) : model_(std::move(model)) {}

  // Called at the start of each Forward.
  std::function<void()> before_forward;

  const engine::ModelConfig& config() const override { return model_->config(); }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }
  int64_t step_bytes() const override { return model_->step_bytes(); }
  int64_t num_parameters() const override { return model_->num_parameters(); }
  absl::StatusOr<kernels::TensorView> Forward(const engine::ModelInput& input,
                                              engine::KvCache& cache) override {
    if (before_forward) before_forward();
    return model_->Forward(input, cache);
  }

 private:
  const std::unique_ptr<engine::Model> model_;
};

}  // namespace quire::testing
