#pragma once

// Mixtures of experts of random weights, and what plain loops in double make of them.

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

// The weights as a file has them; the router's are float32, or bf16 where `type` is.
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

  // One token by plain loops. The products are `linear`'s; hidden units and the output round to
  // `rounding`, relative to their size. `margin` is how far the logits stand apart that choose
  // experts, less what float arithmetic may move them: more than 0, or the choice is not certain.
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

// One call of the op; tensors in the host's memory, as the CPU backend takes them.
std::vector<float> RunMixture(kernels::Backend& backend, const TestMixture::Prepared& weights,
                              const MixtureShape& shape, const std::vector<float>& input,
                              const std::vector<float>& residual = {});

}  // namespace quire::testing
