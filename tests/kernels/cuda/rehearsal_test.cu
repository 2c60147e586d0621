// Tests that after a rehearsal, the ops of the largest step run at once, and that nothing else
// changes.

#include <algorithm>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/moe.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/moe_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Encode;
using testing::Normal;
using testing::RandomWeight;

constexpr int64_t kTokens = 300;

struct Log {
  std::vector<unsigned> grids;  // x of each launch
  int64_t num_allocations = 0;
};

class LoggingDevice final : public ForwardingDevice {
 public:
  explicit LoggingDevice(Log& log) : ForwardingDevice(testing::MakeDevice()), log_(log) {}
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    log_.grids.push_back(launch.config.grid.x);
    return ForwardingDevice::LaunchKernel(launch);
  }
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override {
    ++log_.num_allocations;
    return ForwardingDevice::Allocate(bytes);
  }

 private:
  Log& log_;
};

// An op for all tokens, with what it reads and writes. It launches a kernel with a row of blocks
// for each token that it processes at once.
struct Op {
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  DeviceBuffer input, out;
  std::function<absl::Status()> enqueue;
  int64_t scratch_bytes = 0;  // from which on it processes all tokens at once
};

class RehearsalTest : public ::testing::TestWithParam<std::tuple<WeightType, GemmRows>> {
 protected:
  static WeightType type() { return std::get<0>(GetParam()); }
  static GemmRows rows() { return std::get<1>(GetParam()); }

  struct Outcome {
    int64_t scratch_bytes;
    bool ran_at_once;
    std::vector<uint8_t> out;
  };
  // Rehearses an op with the bytes of scratch memory at first and at most, and then runs it.
  template <typename Make>
  Outcome Run(const Make& make, int64_t first, int64_t most) {
    Log log;
    const auto backend = *CreateCudaBackend(std::make_unique<LoggingDevice>(log),
                                            {.activation_dtype = DType::kBF16,
                                             .linear_scratch_bytes = first,
                                             .most_scratch_bytes = most,
                                             .deterministic = rows() == GemmRows::kFixed});
    const Op op = make(*backend);
    EXPECT_TRUE(backend->Rehearse(op.enqueue).ok());
    log = {};
    EXPECT_TRUE(op.enqueue().ok());
    EXPECT_EQ(log.num_allocations, 0);
    std::vector<uint8_t> out(static_cast<size_t>(op.out.bytes()));
    EXPECT_TRUE(backend->CopyToHost(out.data(), op.out.data(), op.out.bytes()).ok());
    EXPECT_TRUE(backend->Synchronize().ok());
    return {op.scratch_bytes, std::ranges::count(log.grids, unsigned{kTokens}) > 0, out};
  }

  template <typename Make>
  void ExpectRunsAtOnceAfterwards(const Make& make) {
    constexpr int64_t kLittle = 1 << 17, kOfAToken = 1024;
    const Outcome unchanged = Run(make, kLittle, 0);
    EXPECT_FALSE(unchanged.ran_at_once);
    const int64_t enough = unchanged.scratch_bytes;
    EXPECT_FALSE(Run(make, kLittle, enough - kOfAToken).ran_at_once);
    EXPECT_FALSE(Run(make, enough - kOfAToken, 0).ran_at_once);
    for (const auto& [first, most] : {std::pair(kLittle, enough), std::pair(kLittle, 2 * enough),
                                      std::pair(enough, int64_t{0}), std::pair(enough, kLittle)}) {
      const Outcome large = Run(make, first, most);
      EXPECT_TRUE(large.ran_at_once);
      if (rows() == GemmRows::kFixed) {  // else the bits depend on the tokens of a round
        EXPECT_TRUE(large.out == unchanged.out);
      }
    }
  }
};

// Returns the memory of `kTokens` random rows.
DeviceBuffer RandomRows(Backend& backend, int64_t cols, uint64_t seed) {
  const std::vector<uint8_t> rows = Encode(DType::kBF16, Normal(seed, kTokens * cols));
  DeviceBuffer memory = *backend.Allocate(std::ssize(rows));
  EXPECT_TRUE(backend.CopyToDevice(memory.data(), rows.data(), std::ssize(rows)).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  return memory;
}

TensorView Rows(const DeviceBuffer& memory, int64_t cols) {
  return TensorView(memory.data(), DType::kBF16, {kTokens, cols});
}

TEST_P(RehearsalTest, AProductWithAnEpilogueRunsAtOnceAfterwards) {
  constexpr int64_t kCols = 64, kInner = 96;
  ExpectRunsAtOnceAfterwards([](Backend& backend) {
    Op op{.input = RandomRows(backend, kCols, 1), .out = RandomRows(backend, kInner, 2)};
    const testing::TestWeight weight = RandomWeight(type(), 2 * kInner, kCols, 3);
    op.weights.push_back(*backend.PrepareWeight({&weight.view, 1}));
    const LinearArgs args = {.out = Rows(op.out, kInner),
                             .input = Rows(op.input, kCols),
                             .weight = op.weights[0].get(),
                             .activation = Activation::kSiluMul};
    op.scratch_bytes = LinearScratchBytes(args, rows());
    op.enqueue = [&backend, args] { return backend.Linear(args); };
    return op;
  });
}

TEST_P(RehearsalTest, AMixtureRunsAtOnceAfterwards) {
  const testing::MixtureShape shape = {.num_experts = 5, .hidden = 64, .intermediate = 32};
  ExpectRunsAtOnceAfterwards([&](Backend& backend) {
    Op op{.input = RandomRows(backend, shape.hidden, 1),
          .out = RandomRows(backend, shape.hidden, 2)};
    auto mixture = testing::TestMixture(type(), shape, 1).Prepare(backend);
    const MoeArgs args = {.out = Rows(op.out, shape.hidden),
                          .input = Rows(op.input, shape.hidden),
                          .router = mixture.router.get(),
                          .up = mixture.up.get(),
                          .down = mixture.down.get(),
                          .num_experts_per_token = shape.num_chosen};
    for (auto* weight : {&mixture.router, &mixture.up, &mixture.down}) {
      op.weights.push_back(std::move(*weight));
    }
    op.scratch_bytes = MoeScratchBytes(args, rows());
    op.enqueue = [&backend, args] { return backend.Moe(args); };
    return op;
  });
}

TEST(RehearsedMemoryTest, ProductsThatNeedNoneLeaveItAsItIs) {
  Log log;
  const auto backend =
      *CreateCudaBackend(std::make_unique<LoggingDevice>(log), {.activation_dtype = DType::kBF16,
                                                                .linear_scratch_bytes = 256,
                                                                .most_scratch_bytes = 1 << 20});
  const testing::TestWeight weight = RandomWeight(WeightType::kBF16, 64, 64, 1);
  const auto prepared = *backend->PrepareWeight({&weight.view, 1});
  const DeviceBuffer input = RandomRows(*backend, 64, 1);
  const DeviceBuffer logits = *backend->Allocate(kTokens * 64 * 4);
  log = {};
  ASSERT_TRUE(backend
                  ->Rehearse([&] {
                    const TensorView out(logits.data(), DType::kF32, {kTokens, 64});
                    for (const float cap : {0.0f, 30.0f}) {
                      const absl::Status status = backend->Linear({.out = out,
                                                                   .input = Rows(input, 64),
                                                                   .weight = prepared.get(),
                                                                   .soft_cap = cap});
                      if (!status.ok()) return status;
                    }
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(log.num_allocations, 0);

  // Nor does it grow outside of a rehearsal, for those that would use more.
  const DeviceBuffer out = RandomRows(*backend, 32, 2);
  log = {};
  ASSERT_TRUE(backend
                  ->Linear({.out = Rows(out, 32),
                            .input = Rows(input, 64),
                            .weight = prepared.get(),
                            .activation = Activation::kSiluMul})
                  .ok());
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(log.num_allocations, 0);
}

// The first product may still run when the second one needs more memory.
TEST(RehearsedMemoryTest, MemoryIsFreedOnlyAfterThoseThatUseIt) {
  const auto backend = *CreateCudaBackend(testing::MakeDevice(), {.activation_dtype = DType::kBF16,
                                                                  .linear_scratch_bytes = 1 << 10,
                                                                  .most_scratch_bytes = 1 << 20});
  const testing::TestWeight weight = RandomWeight(WeightType::kBF16, 64, 64, 1);
  const auto prepared = *backend->PrepareWeight({&weight.view, 1});
  const DeviceBuffer input = RandomRows(*backend, 64, 1), out = RandomRows(*backend, 32, 2);
  const auto product = [&](int64_t num_tokens) {
    return backend->Linear({.out = Rows(out, 32).Rows(0, num_tokens),
                            .input = Rows(input, 64).Rows(0, num_tokens),
                            .weight = prepared.get(),
                            .activation = Activation::kSiluMul});
  };
  const absl::Status status = backend->Rehearse([&] {
    const absl::Status first = product(kTokens / 2);
    return first.ok() ? product(kTokens) : first;
  });
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(WeightsAndRows, RehearsalTest,
                         ::testing::Combine(::testing::Values(WeightType::kBF16, WeightType::kQ8_0),
                                            ::testing::Values(GemmRows::kAny, GemmRows::kFixed)));

}  // namespace
}  // namespace quire::kernels::cuda
