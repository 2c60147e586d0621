#pragma once

// Parts that the benchmarks of single ops share: the sizes of a model, memory for inputs and
// weights, and the order in which cases are measured.

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "bench/gpu/ops_bench.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"
#include "kernels/tensor_view.h"

namespace quire::bench {

struct MixtureShape {
  const char* name;
  int64_t num_experts, num_chosen, hidden, intermediate;
};

struct ModelShape {
  int64_t hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab;
  std::vector<int64_t> tokens;       // tokens in a step
  std::vector<int64_t> logits_rows;  // rows of logits in a step
  // The most blocks that one call of CopyBlocks copies here, and the number of elements that a
  // block has in all layers together.
  int64_t copied_blocks, block_elements;
  std::vector<MixtureShape> mixtures;
  std::vector<int64_t> mixture_tokens;  // tokens in a step of a mixture
  static constexpr int64_t kBlockSize = 16;

  int64_t qkv() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
ModelShape ShapeFor(Size size);

// Owns the device memory for the variants of one op, including their inputs. If an allocation
// fails, status() returns the error.
class Arena {
 public:
  // `device` must outlive the arena.
  explicit Arena(kernels::cuda::Device& device) : device_(device) {}
  // Waits for the device: no case may have, if the filter leaves out all of them.
  ~Arena() { (void)device_.Synchronize(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns a tensor of random numbers.
  kernels::TensorView Random(kernels::DType dtype, std::initializer_list<int64_t> shape,
                             float amplitude = 1.0f);
  kernels::TensorView Zeroed(kernels::DType dtype, std::initializer_list<int64_t> shape);
  // Returns a tensor of the numbers 0, step, 2 step, ...
  template <typename T>
  kernels::TensorView Counting(kernels::DType dtype, int64_t count, T step) {
    std::vector<T> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i) * step;
    const kernels::TensorView view = Zeroed(dtype, {count});
    if (status_.ok()) status_ = device_.CopyToDevice(view.raw(), values.data(), view.num_bytes());
    if (status_.ok()) status_ = device_.Synchronize();
    return view;
  }
  const kernels::cuda::CudaWeight* Weight(int64_t rows, int64_t cols);
  // Codes and scales are random: as f16 numbers, so that the scales are finite.
  const kernels::cuda::CudaWeight* PackedWeight(kernels::WeightType type, int64_t rows,
                                                int64_t cols);
  // Codes and scales are random.
  const kernels::cuda::CudaWeight* Fp8Weight(kernels::cuda::GemmScales scales, int64_t rows,
                                             int64_t cols);
  // Return as much memory for the products of `steps` as a server has.
  std::shared_ptr<kernels::DeviceBuffer> Scratch(const std::vector<kernels::LinearArgs>& steps);
  std::shared_ptr<kernels::DeviceBuffer> Scratch(const std::vector<kernels::MoeArgs>& steps);

  const absl::Status& status() const { return status_; }

 private:
  std::shared_ptr<kernels::DeviceBuffer> ScratchOf(int64_t bytes);

  kernels::cuda::Device& device_;
  absl::Status status_;
  uint32_t seed_ = 100;
  std::vector<kernels::DeviceBuffer> buffers_;
  std::vector<std::unique_ptr<kernels::cuda::CudaWeight>> weights_;
};

// Collects variants of one op, with the arena's status and the prediction in their rows.
class OpVariants {
 public:
  OpVariants(const Arena& arena, const Ceilings& ceilings, std::string suite,
             const std::string& filter)
      : arena_(arena), ceilings_(ceilings), suite_(std::move(suite)), filter_(filter) {}

  // Leaves out a case whose name does not contain the filter.
  void Add(std::string name, Work work, std::function<absl::Status()> enqueue,
           const Expectation& expectation = {}) {
    if (!absl::StrContains(name, filter_)) return;
    variants_.push_back({{.suite = suite_,
                          .name = std::move(name),
                          .status = arena_.status(),
                          .work = work,
                          .floor_seconds = FloorSeconds(work, ceilings_),
                          .predicted_seconds = PredictedSeconds(work, ceilings_, expectation)},
                         std::move(enqueue)});
  }
  std::vector<Variant> Take() { return std::move(variants_); }

 private:
  const Arena& arena_;
  const Ceilings& ceilings_;
  const std::string suite_;
  const std::string& filter_;
  std::vector<Variant> variants_;
};

using AddVariants = void (*)(kernels::cuda::Device&, const ModelShape&, Arena&, OpVariants&);
// Measures each op with an arena of its own.
void RunEach(const OpsRun& run, const std::string& suite, std::initializer_list<AddVariants> ops);

}  // namespace quire::bench
