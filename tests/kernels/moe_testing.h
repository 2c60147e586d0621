#pragma once

// Mixtures of experts with random weights, and their output computed by plain loops in double.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tests/kernels/exact_product.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::testing {

struct MixtureShape {
  int64_t num_experts = 5;
  int64_t hidden = 64;
  int64_t intermediate = 96;
  int64_t num_chosen = 2;
  bool softmax_over_chosen = true;
};

// The weights of a mixture, as a file stores them. The router's weights are float32 if `type` is
// quantised in blocks.
class TestMixture {
 public:
  TestMixture(kernels::WeightType type, const MixtureShape& shape, uint64_t seed);

  const MixtureShape& shape() const { return shape_; }
  TestWeight& router() { return router_; }
  // Makes `expert` the first choice of every token whose first element is positive.
  void Prefer(int64_t expert);

  struct Prepared {
    std::unique_ptr<kernels::PreparedWeight> router, up, down;
  };
  Prepared Prepare(kernels::Backend& backend) const;

  // The output for one token, computed by plain loops with ExactProduct. Each hidden unit and each
  // output may be rounded by `rounding`, relative to its size. `margin` is the distance from the
  // last chosen logit to the next logit, less the most that errors of float arithmetic can take
  // from it. The choice of experts is certain only where `margin` is more than 0.
  struct Answer {
    std::vector<Exact> out;
    std::vector<int64_t> chosen;
    double margin = 0.0;
  };
  Answer Naive(std::span<const float> input, std::span<const float> residual,
               double rounding = 0.0) const;

 private:
  std::vector<Exact> Expert(int64_t expert, std::span<const Exact> input, double rounding) const;

  MixtureShape shape_;
  bool quantized_;
  TestWeight router_;
  std::vector<TestWeight> gates_, ups_, downs_;
};

// Calls the op Moe once and returns its output. The backend's activation dtype must be able to hold
// the inputs.
std::vector<float> RunMixture(kernels::Backend& backend, const TestMixture::Prepared& weights,
                              const MixtureShape& shape, const std::vector<float>& input,
                              const std::vector<float>& residual = {});

// Returns the weights that a router gives to the experts, [num_tokens, num_experts]. The logits of
// a token are its elements of `logits` times `gain`. An expert that was not chosen has weight 0.
std::vector<float> RoutingWeights(kernels::Backend& backend, const std::vector<float>& logits,
                                  int64_t num_experts, int64_t num_chosen,
                                  bool softmax_over_chosen = true, float gain = 1.0f);

// Expects that the experts' outputs are added in the router's order: the sums are made again from
// the output and weight of each expert and must agree to the bit. Only for backends whose
// activations are float32.
void ExpectRouterOrder(kernels::Backend& backend);

}  // namespace quire::testing
