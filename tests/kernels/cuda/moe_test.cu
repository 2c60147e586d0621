// Tests the op Moe on CUDA against plain loops, in three thread orders.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/moe_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::MixtureShape;
using testing::Normal;
using testing::RoutingWeights;
using testing::RunMixture;
using testing::TestMixture;

class CudaMoeTest : public ::testing::TestWithParam<testing::ThreadOrder> {
 protected:
  static std::unique_ptr<Backend> MakeBackend(DType dtype,
                                              int64_t scratch_bytes = int64_t{1} << 22) {
    return *CreateCudaBackend(testing::MakeDevice(GetParam()),
                              {.activation_dtype = dtype, .linear_scratch_bytes = scratch_bytes});
  }
  // The same, whose experts of many rows are multiplied by wgmma. `num_maps`, if not null, counts
  // the tensor maps that it makes: one for each launch of the kernel.
  static std::unique_ptr<Backend> MakeWgmmaBackend(DType dtype, int* num_maps = nullptr,
                                                   int64_t scratch_bytes = int64_t{1} << 22);
  // Returns normally distributed random numbers, rounded to `dtype`.
  static std::vector<float> Activations(DType dtype, uint64_t seed, int64_t size) {
    return testing::Decode(dtype, testing::Encode(dtype, Normal(seed, size)));
  }
  // Returns such numbers of a deviation of 32 units, a power of two, in whole units up to 128, for
  // TestMixture::RoundRouter. Every dtype has them.
  static std::vector<float> CoarseActivations(float unit, uint64_t seed, int64_t size) {
    std::vector<float> values = Normal(seed, size, 32.0f);
    for (float& value : values) value = std::clamp(std::round(value), -128.0f, 128.0f) * unit;
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, CudaMoeTest, ::testing::ValuesIn(testing::kAllThreadOrders));

WeightType TypeOf(DType dtype) {
  if (dtype == DType::kF32) return WeightType::kF32;
  return dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16;
}

std::vector<float> RowOf(const std::vector<float>& values, int64_t row, int64_t cols) {
  return {values.begin() + row * cols, values.begin() + (row + 1) * cols};
}

// Compares with doubles each token of `got` whose choice of experts is certain, up to the first
// error, and returns how many there are. Raises `worst` to the largest error, as a share of its
// bound.
int64_t CheckCertainTokens(const TestMixture& mixture, DType dtype, const std::vector<float>& input,
                           const std::vector<float>& residual, const std::vector<float>& got,
                           double& worst) {
  const int64_t hidden = mixture.shape().hidden, num_tokens = std::ssize(input) / hidden;
  int64_t certain = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto answer = mixture.Naive(RowOf(input, t, hidden),
                                      residual.empty() ? residual : RowOf(residual, t, hidden),
                                      testing::Rounding(dtype));
    if (answer.margin <= 0.0) continue;
    ++certain;
    for (int64_t i = 0; i < hidden; ++i) {
      const testing::Exact& want = answer.out[static_cast<size_t>(i)];
      const double error = std::abs(got[static_cast<size_t>(t * hidden + i)] - want.value);
      EXPECT_LE(error, want.bound) << "token " << t << ", element " << i;
      if (!(error <= want.bound)) return certain;
      worst = std::max(worst, error / want.bound);
    }
  }
  return certain;
}

// Its blocks may have as much shared memory as those of sm_86 and sm_89.
class SmallBlockDevice final : public ForwardingDevice {
 public:
  explicit SmallBlockDevice(std::unique_ptr<Device> device)
      : ForwardingDevice(std::move(device)), info_(ForwardingDevice::info()) {
    info_.shared_bytes_per_block = int64_t{99} << 10;
  }
  const DeviceInfo& info() const override { return info_; }
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    EXPECT_LE(launch.config.shared_bytes, info_.shared_bytes_per_block);
    return ForwardingDevice::LaunchKernel(launch);
  }

 private:
  DeviceInfo info_;
};

// Counts the tensor maps.
class MapCountingDevice final : public ForwardingDevice {
 public:
  MapCountingDevice(std::unique_ptr<Device> device, int* num_maps)
      : ForwardingDevice(std::move(device)), num_maps_(num_maps) {}
  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override {
    if (num_maps_ != nullptr) ++*num_maps_;
    return ForwardingDevice::MakeTensorMap(spec);
  }

 private:
  int* const num_maps_;
};

std::unique_ptr<Backend> CudaMoeTest::MakeWgmmaBackend(DType dtype, int* num_maps,
                                                       int64_t scratch_bytes) {
  return *CreateCudaBackend(
      std::make_unique<MapCountingDevice>(testing::MakeDevice(GetParam()), num_maps),
      {.activation_dtype = dtype,
       .linear_scratch_bytes = scratch_bytes,
       .expert_products = MatrixInstruction::kWgmma});
}

struct Case {
  MixtureShape shape;
  int64_t num_tokens;
  int64_t preferred = -1;  // the first choice of every token, if not negative
};

// The router's product is the device's, which may add in another order for other tokens. So its
// sums are exact.
TEST_P(CudaMoeTest, AgreesWithDoublesAndGivesATokenTheBitsOfItAlone) {
  const Case cases[] = {
      // With 16-bit dtypes, these two cases use tiles of 16 rows. No tile is full. In some
      // products, the last stage along the depth is not full either.
      {{.num_experts = 5, .hidden = 64, .intermediate = 96, .num_chosen = 2}, 9},
      {{.num_experts = 40, .hidden = 136, .intermediate = 72, .num_chosen = 3}, 12},
      // With 16-bit dtypes, these two cases use tiles of 64 rows. In the first case, one expert has
      // several tiles. In both cases, a product has several columns of thread blocks.
      {{.num_experts = 2, .hidden = 264, .intermediate = 24, .num_chosen = 1}, 70, 1},
      {{.num_experts = 3, .hidden = 16, .intermediate = 200, .num_chosen = 3}, 30},
      // With 16-bit dtypes, tiles of 128 rows. The last has rows for one of its halves, and the
      // second block has columns for a part.
      {{.num_experts = 2, .hidden = 264, .intermediate = 136, .num_chosen = 1}, 293, 1},
      // The sizes are not multiples of 8 elements.
      {{.num_experts = 3, .hidden = 44, .intermediate = 37, .num_chosen = 2}, 5},
      // Biases and clamps, with and without tensor cores.
      {{.num_experts = 5,
        .hidden = 64,
        .intermediate = 96,
        .num_chosen = 2,
        .biases = true,
        .limit = 0.75f},
       9},
      {{.num_experts = 3,
        .hidden = 44,
        .intermediate = 37,
        .num_chosen = 2,
        .weights = ExpertWeights::kSoftmaxOfAll,
        .biases = true,
        .limit = 0.75f},
       5},
      {{.num_experts = 4,
        .hidden = 64,
        .intermediate = 32,
        .num_chosen = 2,
        .weights = ExpertWeights::kSoftmaxOfAll},
       1},
      // Scaled inputs, with and without tensor cores.
      {{.num_experts = 5,
        .hidden = 64,
        .intermediate = 96,
        .num_chosen = 2,
        .weights = ExpertWeights::kLogistic,
        .weights_scale_input = true,
        .biases = true},
       9},
      {{.num_experts = 3,
        .hidden = 44,
        .intermediate = 37,
        .num_chosen = 1,
        .weights = ExpertWeights::kLogistic,
        .weights_scale_input = true},
       5},
      // Logistic weights that sum to 1, and a bias of the choice.
      {{.num_experts = 70,
        .hidden = 64,
        .intermediate = 32,
        .num_chosen = 3,
        .weights = ExpertWeights::kNormedLogistic,
        .choice_bias = true},
       9},
      {{.num_experts = 5,
        .hidden = 44,
        .intermediate = 37,
        .num_chosen = 2,
        .weights = ExpertWeights::kNormedLogistic},
       5},
  };
  double worst = 0.0;
  for (size_t number = 0; number < std::size(cases); number += QUIRE_CASE_STRIDE) {
    const Case& c = cases[number];
    for (const DType dtype : testing::kFloats) {
      const MixtureShape& shape = c.shape;
      SCOPED_TRACE(std::string(Name(dtype)) + " hidden " + std::to_string(shape.hidden));
      TestMixture mixture(TypeOf(dtype), shape, 1);
      mixture.RoundRouter();
      if (c.preferred >= 0) mixture.Prefer(c.preferred);
      std::vector<float> input = CoarseActivations(0x1p-5f, 2, c.num_tokens * shape.hidden);
      for (int64_t t = 0; t < c.num_tokens && c.preferred >= 0; ++t) {
        float& first = input[static_cast<size_t>(t * shape.hidden)];
        first = std::max(0.125f, std::abs(first));
      }
      const std::vector<float> residual = Activations(dtype, 3, c.num_tokens * shape.hidden);
      const auto backend = MakeBackend(dtype);
      const auto weights = mixture.Prepare(*backend);
      const std::vector<float> got = RunMixture(*backend, weights, shape, input, residual);
      for (int64_t t = 0; t < c.num_tokens; t += std::max<int64_t>(5, c.num_tokens / 10)) {
        EXPECT_EQ(RunMixture(*backend, weights, shape, RowOf(input, t, shape.hidden),
                             RowOf(residual, t, shape.hidden)),
                  RowOf(got, t, shape.hidden));
      }
      const int64_t certain = CheckCertainTokens(mixture, dtype, input, residual, got, worst);
      if (HasFailure()) return;
      EXPECT_GE(certain * 10, c.num_tokens * 9);
      if (c.num_tokens >= 128) {
        // A device of little shared memory has other tiles for many rows, and sums in the same
        // order.
        const auto other =
            *CreateCudaBackend(std::make_unique<SmallBlockDevice>(testing::MakeDevice(GetParam())),
                               {.activation_dtype = dtype});
        EXPECT_EQ(RunMixture(*other, mixture.Prepare(*other), shape, input, residual), got);
        continue;
      }
      // A backend with little scratch memory processes only as many tokens at a time as fit there.
      const int64_t one =
          4096 + 8 * (shape.num_experts + shape.num_chosen * (shape.hidden + shape.intermediate));
      const auto small = MakeBackend(dtype, one);
      EXPECT_EQ(RunMixture(*small, mixture.Prepare(*small), shape, input, residual), got);
    }
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_GT(worst, 0.0);
}

TEST_P(CudaMoeTest, WgmmaAgreesWithDoubles) {
  if (!HasInstruction(testing::MakeDevice(GetParam())->info(), MatrixInstruction::kWgmma)) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  const struct {
    Case of;
    int num_maps;
  } cases[] = {
      // One expert has a full tile and one of two blocks of 64 rows, another a few rows. Each
      // product
      // has a second block of columns, which is not full, and blocks of the grid compute two
      // products. The depth takes more stages than there are, and its last stage is not full.
      {{{.num_experts = 2, .hidden = 264, .intermediate = 136, .num_chosen = 1}, 293, 1}, 2},
      // Biases, clamps and scaled inputs. A product of one of the two warpgroups has no column.
      {{{.num_experts = 3,
         .hidden = 72,
         .intermediate = 64,
         .num_chosen = 2,
         .weights = ExpertWeights::kLogistic,
         .weights_scale_input = true,
         .biases = true,
         .limit = 0.75f},
        100},
       2},
      // A lane of FindGroupTile looks at two experts.
      {{{.num_experts = 40, .hidden = 16, .intermediate = 8, .num_chosen = 20}, 130}, 2},
      // Experts of few rows, and columns and a depth that are no multiples of 8.
      {{{.num_experts = 2, .hidden = 64, .intermediate = 64, .num_chosen = 1}, 127}, 0},
      {{{.num_experts = 1, .hidden = 64, .intermediate = 36, .num_chosen = 1}, 130}, 0},
  };
  double worst = 0.0;
  for (size_t number = 0; number < std::size(cases); number += QUIRE_CASE_STRIDE) {
    const Case& c = cases[number].of;
    const MixtureShape& shape = c.shape;
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " hidden " + std::to_string(shape.hidden));
      TestMixture mixture(TypeOf(dtype), shape, 1);
      if (c.preferred >= 0) mixture.Prefer(c.preferred);
      std::vector<float> input = Activations(dtype, 2, c.num_tokens * shape.hidden);
      // All tokens but a few.
      for (int64_t t = 3; t < c.num_tokens && c.preferred >= 0; ++t) {
        float& first = input[static_cast<size_t>(t * shape.hidden)];
        first = std::max(0.125f, std::abs(first));
      }
      int num_maps = 0;
      const auto backend = MakeWgmmaBackend(dtype, &num_maps);
      const std::vector<float> got = RunMixture(*backend, mixture.Prepare(*backend), shape, input);
      EXPECT_EQ(num_maps, cases[number].num_maps);
      const int64_t certain = CheckCertainTokens(mixture, dtype, input, {}, got, worst);
      if (HasFailure()) return;
      EXPECT_GE(certain * 10, c.num_tokens * 8);
    }
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_GT(worst, 0.0);
}

// Refuses products whose number of rows is not that of a deterministic backend.
class FixedRowsDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status Gemm(const GemmArgs& args) override {
    if (args.m != kFixedRows) return absl::InternalError(absl::StrCat(args.m, " rows"));
    return ForwardingDevice::Gemm(args);
  }
};

TEST_P(CudaMoeTest, ADeterministicBackendGivesATokenTheBitsOfItAlone) {
  const MixtureShape shape = {.num_experts = 5, .hidden = 64, .intermediate = 96, .num_chosen = 2};
  constexpr int64_t kTokens = 150;
  for (const DType dtype : testing::kFloats) {
    SCOPED_TRACE(Name(dtype));
    const TestMixture mixture(TypeOf(dtype), shape, 1);
    const std::vector<float> input = Activations(dtype, 2, kTokens * shape.hidden);
    const std::vector<float> residual = Activations(dtype, 3, kTokens * shape.hidden);
    std::vector<float> want;
    // With less memory, the tokens are processed in several rounds.
    for (const int64_t scratch_bytes : {1 << 22, 1 << 17}) {
      const auto backend =
          *CreateCudaBackend(std::make_unique<FixedRowsDevice>(testing::MakeDevice(GetParam())),
                             {.activation_dtype = dtype,
                              .linear_scratch_bytes = scratch_bytes,
                              .deterministic = true});
      const auto weights = mixture.Prepare(*backend);
      const std::vector<float> got = RunMixture(*backend, weights, shape, input, residual);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want);
      for (const int64_t t : {0, 127, 128, 149}) {
        EXPECT_EQ(RunMixture(*backend, weights, shape, RowOf(input, t, shape.hidden),
                             RowOf(residual, t, shape.hidden)),
                  RowOf(want, t, shape.hidden));
      }
    }
  }
}

// The ids of experts need more than seven bits, and a lane of FindGroupTile looks at five experts.
// There are more choices than MoeGroupKernel has threads.
TEST_P(CudaMoeTest, ManyChoicesOfManyExpertsAgreeWithDoubles) {
  constexpr int64_t kTokens = 33;
  const MixtureShape shape = {.num_experts = 160, .hidden = 16, .intermediate = 8, .num_chosen = 8};
  const TestMixture mixture(WeightType::kBF16, shape, 1);
  const std::vector<float> input = Activations(DType::kBF16, 2, kTokens * shape.hidden);
  const auto backend = MakeBackend(DType::kBF16);
  const std::vector<float> got = RunMixture(*backend, mixture.Prepare(*backend), shape, input);
  std::set<int64_t> chosen;
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto answer =
        mixture.Naive(RowOf(input, t, shape.hidden), {}, testing::Rounding(DType::kBF16));
    if (answer.margin <= 0.0) continue;
    chosen.insert(answer.chosen.begin(), answer.chosen.end());
    for (int64_t i = 0; i < shape.hidden; ++i) {
      const testing::Exact& want = answer.out[static_cast<size_t>(i)];
      ASSERT_NEAR(got[static_cast<size_t>(t * shape.hidden + i)], want.value, want.bound)
          << "token " << t << ", element " << i;
    }
  }
  // The last lane of the first group of 32 has tiles, and so have experts beyond 127.
  EXPECT_THAT(chosen, ::testing::Contains(31));
  EXPECT_THAT(chosen, ::testing::Contains(::testing::Gt(127)));
}

constexpr DType kHalves[] = {DType::kF16, DType::kBF16};
constexpr WeightType kPackedTypes[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
    WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ4_K,
    WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kF8E4M3Scaled};

// Returns 96 where a row can have so many weights, and otherwise the nearest size of whole blocks.
int64_t SizeOfMatrix(WeightType type) {
  const int64_t block = Traits(type).block_elements;
  return 96 % block == 0 ? 96 : std::max<int64_t>(block, 128);
}

bool IsPacked(const PreparedWeight& weight) {
  return static_cast<const CudaWeight&>(weight).is_packed();
}

// A packed weight has the values that it has in the dtype of activations. So the result is that of
// experts with these values, as doubles and as another backend's answer have it.
class CudaPackedMoeTest : public CudaMoeTest {
 protected:
  // Small, so that no hidden unit of the random K-quants is infinite in f16.
  static std::vector<float> Input(DType dtype, uint64_t seed, int64_t size) {
    return testing::Decode(dtype, testing::Encode(dtype, Normal(seed, size, 0.02f)));
  }

  // Returns the output, and checks it against doubles.
  std::vector<float> Check(Backend& backend, const TestMixture& mixture,
                           const std::vector<float>& input, const std::vector<float>& residual) {
    const MixtureShape& shape = mixture.shape();
    const DType dtype = backend.activation_dtype();
    const TestMixture rounded = mixture.Rounded(dtype);
    const auto weights = mixture.Prepare(backend);
    EXPECT_TRUE(IsPacked(*weights.up) && !IsPacked(*weights.router));
    EXPECT_EQ(IsPacked(*weights.down), shape.down_type != WeightType::kBF16);
    std::vector<float> got = RunMixture(backend, weights, shape, input, residual);
    const int64_t num_tokens = std::ssize(input) / shape.hidden;
    const int64_t certain = CheckCertainTokens(rounded, dtype, input, residual, got, worst_);
    if (HasFailure()) return got;
    EXPECT_GE(certain * 10, num_tokens * 9);
    return got;
  }

  double worst_ = 0.0;
};
INSTANTIATE_TEST_SUITE_P(Orders, CudaPackedMoeTest, ::testing::ValuesIn(testing::kAllThreadOrders));

TEST_P(CudaPackedMoeTest, AgreesWithDoublesForEveryType) {
  for (const WeightType type : kPackedTypes) {
    for (const DType dtype : kHalves) {
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::string(Name(dtype)));
      // Half of the last tile of 64 columns is empty, where the type allows it, and the gate of an
      // expert is not the first half of 32 rows.
      const int64_t size = SizeOfMatrix(type);
      const auto backend = MakeBackend(dtype);
      // Tiles of 8 rows, and of 16: an expert has more rows than a tile, and others have none.
      for (const int64_t num_tokens : {3, 21}) {
        MixtureShape shape = {.num_experts = 5, .hidden = size, .intermediate = size};
        if (num_tokens > 16) {
          shape = {.num_experts = 5,
                   .hidden = size,
                   .intermediate = size + (size == 96 ? 32 : 0),
                   .weights = ExpertWeights::kLogistic,
                   .weights_scale_input = true,
                   .biases = true,
                   .limit = 0.75f};
          if (size == 256) shape.num_experts = 4;
        }
        TestMixture mixture(type, shape, 1);
        mixture.RoundRouter();  // so that a token has the same logits alone
        std::vector<float> input = CoarseActivations(0x1p-11f, 2, num_tokens * size);
        if (num_tokens > 16) {
          mixture.Prefer(1);
          for (int64_t t = 0; t < num_tokens; ++t) input[static_cast<size_t>(t * size)] = 0.125f;
        }
        const std::vector<float> residual = Input(dtype, 3, num_tokens * size);
        const std::vector<float> got = Check(*backend, mixture, input, residual);
        // A token has the bits of it alone.
        const auto weights = mixture.Prepare(*backend);
        EXPECT_EQ(RunMixture(*backend, weights, shape, RowOf(input, num_tokens - 1, size),
                             RowOf(residual, num_tokens - 1, size)),
                  RowOf(got, num_tokens - 1, size));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  RecordProperty("worst", std::to_string(worst_));
  EXPECT_GT(worst_, 0.0);
}

// The ids of experts need more than seven bits, and there are more choices than MoeGroupKernel has
// threads.
TEST_P(CudaPackedMoeTest, ManyChoicesOfManyExpertsAgreeWithDoubles) {
  constexpr int64_t kTokens = 33;
  const MixtureShape shape = {
      .num_experts = 160, .hidden = 64, .intermediate = 32, .num_chosen = 8};
  const auto backend = MakeBackend(DType::kBF16);
  Check(*backend, TestMixture(WeightType::kQ8_0, shape, 1),
        Activations(DType::kBF16, 2, kTokens * shape.hidden), {});
}

// Experts of many rows are expanded and give the bits of expanded weights. With little scratch
// memory, some of the experts are expanded at a time, or some columns of one.
TEST_P(CudaPackedMoeTest, ManyRowsGiveTheBitsOfExpandedWeights) {
  constexpr int64_t kTokens = 130;  // and as many rows of each expert
  for (const WeightType type : kPackedTypes) {
    SCOPED_TRACE(Traits(type).name);
    const DType dtype = type == WeightType::kQ4_0 ? DType::kF16 : DType::kBF16;
    const int64_t size = SizeOfMatrix(type), experts = size == 256 ? 2 : 3;
    const MixtureShape shape = {.num_experts = experts,
                                .hidden = size,
                                .intermediate = size,
                                .num_chosen = experts,
                                .biases = true};
    const TestMixture mixture(type, shape, 1);
    const std::vector<float> input = Input(dtype, 2, kTokens * size);
    const auto backend = MakeBackend(dtype);
    const std::vector<float> want =
        RunMixture(*backend, mixture.Rounded(dtype).Prepare(*backend), shape, input);
    EXPECT_EQ(RunMixture(*backend, mixture.Prepare(*backend), shape, input), want);
    // The arrays of all tokens, so that there is one round, and a third of that.
    const int64_t arrays = kTokens * experts * (6 * size + 20) + 2048;
    const auto small = MakeBackend(dtype, arrays / 3 * 4);
    EXPECT_EQ(RunMixture(*small, mixture.Prepare(*small), shape, input), want);
    if (::testing::Test::HasFailure()) return;
  }
}

// As above, on wgmma.
TEST_P(CudaPackedMoeTest, WgmmaGivesTheBitsOfExpandedWeights) {
  if (!HasInstruction(testing::MakeDevice(GetParam())->info(), MatrixInstruction::kWgmma)) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  constexpr int64_t kTokens = 130, kExperts = 3, kSize = 288;
  const MixtureShape shape = {.num_experts = kExperts,
                              .hidden = kSize,
                              .intermediate = kSize,
                              .num_chosen = kExperts,
                              .biases = true};
  const TestMixture mixture(WeightType::kQ8_0, shape, 1);
  const std::vector<float> input = Input(DType::kBF16, 2, kTokens * kSize);
  const auto run = [&](const TestMixture& of, int64_t scratch_bytes, int want_maps) {
    int num_maps = 0;
    const auto backend = MakeWgmmaBackend(DType::kBF16, &num_maps, scratch_bytes);
    const std::vector<float> out = RunMixture(*backend, of.Prepare(*backend), shape, input);
    EXPECT_EQ(num_maps, want_maps);
    return out;
  };
  const std::vector<float> want = run(mixture.Rounded(DType::kBF16), 1 << 22, 2);
  EXPECT_EQ(run(mixture, 1 << 22, 2), want);
  // In memory for 256 columns of gate and up at a time, there are 128 of each, and then 32: for
  // three experts, nine products and six of down.
  const int64_t arrays = kTokens * kExperts * (6 * kSize + 20) + 2048;
  EXPECT_EQ(run(mixture, arrays / 3 * 4, 15), want);
}

class AllocationCountingDevice final : public ForwardingDevice {
 public:
  AllocationCountingDevice(std::unique_ptr<Device> device, int& num_allocations)
      : ForwardingDevice(std::move(device)), num_allocations_(num_allocations) {}
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override {
    ++num_allocations_;
    return ForwardingDevice::Allocate(bytes);
  }

 private:
  int& num_allocations_;
};

// A recording serves tokens that choose other experts, and nothing is allocated for it.
TEST_P(CudaPackedMoeTest, ARecordingServesAnyChoiceOfExperts) {
  const MixtureShape shape = {.num_experts = 5, .hidden = 64, .intermediate = 32};
  int num_allocations = 0;
  const auto backend = *CreateCudaBackend(
      std::make_unique<AllocationCountingDevice>(testing::MakeDevice(GetParam()), num_allocations),
      {.activation_dtype = DType::kBF16, .linear_scratch_bytes = int64_t{1} << 20});
  const auto weights = TestMixture(WeightType::kQ4_0, shape, 1).Prepare(*backend);
  // With the few tokens, experts are read packed. With the many, they are expanded.
  for (const int64_t num_tokens : {7, 400}) {
    const std::vector<float> first = Activations(DType::kBF16, 2, num_tokens * shape.hidden);
    const std::vector<float> second = Activations(DType::kBF16, 3, num_tokens * shape.hidden);
    const std::vector<float> want = RunMixture(*backend, weights, shape, second);
    ASSERT_NE(RunMixture(*backend, weights, shape, first), want);

    const int64_t bytes = num_tokens * shape.hidden * 2;
    const DeviceBuffer in = *backend->Allocate(bytes), out = *backend->Allocate(bytes);
    const auto set_input = [&](const std::vector<float>& values) {
      const std::vector<uint8_t> encoded = testing::Encode(DType::kBF16, values);
      ASSERT_TRUE(backend->CopyToDevice(in.data(), encoded.data(), bytes).ok());
      ASSERT_TRUE(backend->Synchronize().ok());
    };
    set_input(first);
    num_allocations = 0;
    const auto recording = *backend->Record([&] {
      return backend->Moe({.out = TensorView(out.data(), DType::kBF16, {num_tokens, shape.hidden}),
                           .input = TensorView(in.data(), DType::kBF16, {num_tokens, shape.hidden}),
                           .router = weights.router.get(),
                           .up = weights.up.get(),
                           .down = weights.down.get(),
                           .num_experts_per_token = shape.num_chosen});
    });
    ASSERT_TRUE(backend->Replay(*recording).ok());
    ASSERT_TRUE(backend->Synchronize().ok());
    set_input(second);
    ASSERT_TRUE(backend->Replay(*recording).ok());
    EXPECT_EQ(num_allocations, 0);
    std::vector<uint8_t> got(static_cast<size_t>(bytes));
    ASSERT_TRUE(backend->CopyToHost(got.data(), out.data(), bytes).ok());
    ASSERT_TRUE(backend->Synchronize().ok());
    EXPECT_EQ(testing::Decode(DType::kBF16, got), want);
  }
}

// A deterministic backend expands no experts, whatever the number of rows.
TEST_P(CudaPackedMoeTest, ADeterministicBackendGivesATokenTheBitsOfItAlone) {
  constexpr int64_t kTokens = 140;
  const MixtureShape shape = {.num_experts = 2, .hidden = 96, .intermediate = 96, .num_chosen = 2};
  TestMixture mixture(WeightType::kQ8_0, shape, 1);
  mixture.RoundRouter();  // so that another backend has the same logits
  const std::vector<float> input = CoarseActivations(0x1p-5f, 2, kTokens * shape.hidden);
  const auto run = [&](Backend& backend, const std::vector<float>& tokens) {
    return RunMixture(backend, mixture.Prepare(backend), shape, tokens);
  };
  const auto backend =
      *CreateCudaBackend(testing::MakeDevice(GetParam()), {.activation_dtype = DType::kF16,
                                                           .linear_scratch_bytes = int64_t{1} << 22,
                                                           .deterministic = true});
  const std::vector<float> got = run(*backend, input);
  const auto any = MakeBackend(DType::kF16);
  EXPECT_NE(run(*any, input), got);  // expanded there
  for (const int64_t t : {0, 127, 139}) {
    EXPECT_EQ(run(*backend, RowOf(input, t, shape.hidden)), RowOf(got, t, shape.hidden));
  }
}

// A block of the gated product has 16 rows of the gate. In the second step each expert has 140
// tokens, so it is expanded.
TEST_P(CudaPackedMoeTest, GateAndUpInOnePartStayPackedWithMultiplesOf16Rows) {
  const MixtureShape shape = {.num_experts = 2,
                              .hidden = 96,
                              .intermediate = 48,
                              .num_chosen = 2,
                              .down_type = WeightType::kBF16,
                              .fused = true};
  for (const int64_t num_tokens : {5, 140}) {
    Check(*MakeBackend(DType::kBF16), TestMixture(WeightType::kQ8_0, shape, 1),
          Input(DType::kBF16, 2, num_tokens * shape.hidden), {});
  }
}

// As in the files of llama-quantize.
TEST_P(CudaPackedMoeTest, TheTypesOfUpAndDownMayDiffer) {
  const MixtureShape shape = {
      .num_experts = 3, .hidden = 256, .intermediate = 256, .down_type = WeightType::kQ6_K};
  Check(*MakeBackend(DType::kBF16), TestMixture(WeightType::kQ4_K, shape, 1),
        Input(DType::kBF16, 2, 4 * shape.hidden), {});
}

TEST_P(CudaMoeTest, RoutesByLogitThenById) {
  const auto backend = MakeBackend(DType::kF32);
  EXPECT_EQ(RoutingWeights(*backend, {1, 1, 1, 1, 1}, 5, 2),
            (std::vector<float>{0.5, 0.5, 0, 0, 0}));
  EXPECT_EQ(RoutingWeights(*backend, {0, 2, 0, 2, 2}, 5, 2),
            (std::vector<float>{0, 0.5, 0, 0.5, 0}));
  EXPECT_EQ(RoutingWeights(*backend, {-3, -2, -4}, 3, 1), (std::vector<float>{0, 1, 0}));
  const double e1 = std::exp(-1.0), e3 = std::exp(-3.0);
  EXPECT_NEAR(RoutingWeights(*backend, {3, 1, 4}, 3, 2, ExpertWeights::kSoftmaxOfAll)[2],
              1 / (1 + e1 + e3), 1e-6);

  constexpr float kLarge = 3e38f;
  const std::vector<float> weights = RoutingWeights(
      *backend, {1, -kLarge, 2, 0, 1, kLarge, 0, 0, -kLarge, -kLarge, -kLarge, -kLarge}, 4, 2,
      ExpertWeights::kSoftmaxOfChosen, 2.0f);
  EXPECT_NEAR(weights[2], 1 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_EQ(weights[1], 0.0f);
  EXPECT_TRUE(std::isnan(weights[4 + 1]) && std::isnan(weights[8]));

  const std::vector<float> logistic =
      RoutingWeights(*backend, {3, 1, -4, kLarge, 0, 0}, 3, 2, ExpertWeights::kLogistic, 2.0f);
  EXPECT_NEAR(logistic[0], 1 / (1 + std::exp(-6.0)), 1e-6);
  EXPECT_NEAR(logistic[1], 1 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_EQ(logistic[2], 0.0f);
  EXPECT_EQ(logistic[3], 1.0f);
}

TEST_P(CudaMoeTest, ExpertsAreAddedInTheRoutersOrder) {
  testing::ExpectRouterOrder(*MakeBackend(DType::kF32));
}

TEST_P(CudaMoeTest, ManyExpertsAgreeWithASortInDouble) {
  constexpr int64_t kExperts = 70, kChosen = 40;
  const std::vector<float> logits = Normal(7, kExperts, 3.0f);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto backend = MakeBackend(DType::kF32);
  for (const bool over_chosen : {false, true}) {
    const std::vector<float> got = RoutingWeights(
        *backend, logits, kExperts, kChosen,
        over_chosen ? ExpertWeights::kSoftmaxOfChosen : ExpertWeights::kSoftmaxOfAll);
    double sum = 0.0;
    for (int64_t i = 0; i < (over_chosen ? kChosen : kExperts); ++i) {
      sum += std::exp(double{sorted[static_cast<size_t>(i)]});
    }
    for (size_t e = 0; e < logits.size(); ++e) {
      const double want = logits[e] >= sorted[kChosen - 1] ? std::exp(double{logits[e]}) / sum : 0;
      EXPECT_NEAR(got[e], want, want * 100 * testing::kFloatEpsilon);
    }
  }
}

TEST_P(CudaMoeTest, WhatIsNotANumberStaysInItsOwnRow) {
  const TestMixture mixture(WeightType::kBF16, {}, 8);
  const MixtureShape& shape = mixture.shape();
  const auto backend = MakeBackend(DType::kBF16);
  const auto weights = mixture.Prepare(*backend);
  std::vector<float> input = Activations(DType::kBF16, 9, 7 * shape.hidden);
  const std::vector<float> clean = RunMixture(*backend, weights, shape, input);
  input[static_cast<size_t>(3 * shape.hidden + 5)] = std::nanf("");
  const std::vector<float> out = RunMixture(*backend, weights, shape, input);
  for (int64_t i = 0; i < 7 * shape.hidden; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i / shape.hidden == 3) {
      EXPECT_TRUE(std::isnan(out[at]));
    } else {
      EXPECT_EQ(out[at], clean[at]);
    }
  }
}

TEST(CudaMoeScratchTest, ATokenThatDoesNotFitIsRefused) {
  const auto backend = *CreateCudaBackend(
      testing::MakeDevice(), {.activation_dtype = DType::kF32, .linear_scratch_bytes = 2048});
  const TestMixture mixture(WeightType::kF32, {.intermediate = 1024}, 10);
  const auto weights = mixture.Prepare(*backend);
  const DeviceBuffer memory = *backend->Allocate(2 * 64 * 4);
  const auto view = [&](int64_t offset) {
    return TensorView(static_cast<float*>(memory.data()) + offset, DType::kF32, {0, 64});
  };
  const absl::Status status = backend->Moe({.out = view(0),
                                            .input = view(64),
                                            .router = weights.router.get(),
                                            .up = weights.up.get(),
                                            .down = weights.down.get(),
                                            .num_experts_per_token = 2});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("at most 2048 bytes"));
}

}  // namespace
}  // namespace quire::kernels::cuda
