#pragma once

// Mixtures of experts with random weights, and their output computed by plain loops in double.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/expert_weights.h"
#include "tests/kernels/exact_product.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::testing {

struct MixtureShape {
  int64_t num_experts = 5;
  int64_t hidden = 64;
  int64_t intermediate = 96;
  int64_t num_chosen = 2;
  kernels::ExpertWeights weights = kernels::ExpertWeights::kSoftmaxOfChosen;
  bool weights_scale_input = false;
  bool biases = false;  // true: the router and every expert have biases
  bool choice_bias = false;
  // The limit of kClampedSiluMul. 0 means that the activation is kSiluMul.
  float limit = 0.0f;
  std::optional<kernels::WeightType> down_type;  // none: the type of the other weights
  bool fused = false;                            // true: the gate and up of an expert are one part
};

// The weights of a mixture, as a file stores them. The router's weights are float32 if `type` is
// quantised in blocks.
class TestMixture {
 public:
  TestMixture(kernels::WeightType type, const MixtureShape& shape, uint64_t seed);

  const MixtureShape& shape() const { return shape_; }
  TestWeight& router() { return router_; }
  // Returns the same mixture, with every weight rounded to `dtype` and stored in it.
  TestMixture Rounded(kernels::DType dtype) const;
  // Makes `expert` the first choice of every token whose first element is at least 0.1.
  void Prefer(int64_t expert);
  // Rounds the router's weights to multiples of 2^-6. The logits of an input whose elements are the
  // products of one power of two and integers from -128 to 128 are then exact in any order of sums.
  void RoundRouter();

  struct Prepared {
    std::unique_ptr<kernels::PreparedWeight> router, up, down;
    kernels::DeviceBuffer router_bias = {}, up_bias = {}, down_bias = {};  // empty: none
    kernels::DeviceBuffer choice_bias = {};
  };
  Prepared Prepare(kernels::Backend& backend) const;

  // The output for one token, computed by plain loops with ExactProduct. The bounds allow a
  // relative rounding error of `rounding` in each hidden unit and in each output. Experts are
  // ranked by a value. `margin` is the distance from the smallest chosen value to the largest one
  // that is not chosen, minus the largest error of float arithmetic in this distance. The choice of
  // experts is certain only where `margin` is more than 0.
  struct Answer {
    std::vector<Exact> out;
    std::vector<int64_t> chosen;
    double margin = 0.0;
  };
  Answer Naive(std::span<const float> input, std::span<const float> residual,
               double rounding = 0.0) const;

 private:
  std::vector<Exact> Expert(int64_t expert, std::span<const Exact> input, double rounding) const;
  void SetRouterWeight(size_t at, float weight);

  MixtureShape shape_;
  bool quantized_;
  TestWeight router_;
  std::vector<TestWeight> gates_, ups_, downs_;
  std::vector<float> router_bias_, up_bias_, down_bias_,
      choice_bias_;  // as in MoeArgs; empty: none
};

// Calls the op Moe once and returns its output. Converts `input` and `residual` to the activation
// dtype of `backend`, which should represent their values exactly.
std::vector<float> RunMixture(kernels::Backend& backend, const TestMixture::Prepared& weights,
                              const MixtureShape& shape, const std::vector<float>& input,
                              const std::vector<float>& residual = {});

// Returns the weights that a router gives to the experts, [num_tokens, num_experts]. The logits of
// a token are its row of `logits`, [num_tokens, num_experts], times `gain`. An expert that was not
// chosen has weight 0.
std::vector<float> RoutingWeights(
    kernels::Backend& backend, const std::vector<float>& logits, int64_t num_experts,
    int64_t num_chosen, kernels::ExpertWeights kind = kernels::ExpertWeights::kSoftmaxOfChosen,
    float gain = 1.0f);

// Checks that `backend` adds the outputs of the experts in the router's order, largest logit first.
// The function computes the sums again from the output and the weight of each expert, and expects
// the same bits. The activation dtype of `backend` must be float32.
void ExpectRouterOrder(kernels::Backend& backend);

}  // namespace quire::testing
