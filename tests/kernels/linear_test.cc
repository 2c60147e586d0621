#include "kernels/ops/linear.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/exact_product.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels {
namespace {

using testing::Exact;
using testing::F32;
using ::testing::HasSubstr;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;
using testing::RandomWeight;
using testing::TestWeight;

constexpr double kEpsilon = testing::kFloatEpsilon;

// Returns the output of Linear for `input` on one backend.
std::vector<float> Multiply(Backend& backend, const PreparedWeight& weight,
                            const std::vector<float>& input, LinearArgs args = {}) {
  const int64_t rows = static_cast<int64_t>(input.size()) / weight.cols();
  const int64_t outputs = IsGated(args.activation) ? weight.rows() / 2 : weight.rows();
  Owned<float> in = F32({rows, weight.cols()}, input);
  Owned<float> out = F32({rows, outputs}, std::nanf(""));
  args.out = out.view;
  args.input = in.view;
  args.weight = &weight;
  const absl::Status status = backend.Linear(args);
  EXPECT_TRUE(status.ok()) << status;
  return out.values;
}

std::unique_ptr<PreparedWeight> Prepare(Backend& backend, std::span<const WeightView> parts) {
  absl::StatusOr<std::unique_ptr<PreparedWeight>> weight = backend.PrepareWeight(parts);
  EXPECT_TRUE(weight.ok()) << weight.status();
  return std::move(weight).value();
}

// Returns the product of a row of `weight` and `a`, computed in double.
Exact Reference(const TestWeight& weight, int64_t row, const float* a, bool quantized) {
  return testing::ExactProduct(
      weight, row, testing::ExactValues({a, static_cast<size_t>(weight.view.cols)}), quantized);
}

class LinearTypeTest : public ::testing::TestWithParam<WeightType> {
 protected:
  bool quantized() const { return testing::IsQuantized(GetParam()); }
  // Returns the length of a row: several blocks if the type has blocks, otherwise a number that is
  // no multiple of a vector's length.
  int64_t cols() const { return Traits(GetParam()).block_elements > 1 ? 512 : 172; }
};

TEST_P(LinearTypeTest, AgreesWithDoublesOnEveryPath) {
  const TestWeight weight = RandomWeight(GetParam(), 37, cols(), 1);
  const std::vector<float> input = Normal(2, 5 * cols());
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa);
    const auto prepared = Prepare(*backend, {&weight.view, 1});
    const std::vector<float> out = Multiply(*backend, *prepared, input);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t n = 0; n < 37; ++n) {
        const Exact exact = Reference(weight, n, input.data() + r * cols(), quantized());
        EXPECT_NEAR(out[r * 37 + n], exact.value, exact.bound) << "row " << r << " output " << n;
      }
    }
  }
}

TEST_P(LinearTypeTest, BitsDependOnTheRowAndTheWeightAlone) {
  constexpr int64_t kRows = 83, kOutputs = 38;
  const TestWeight weight = RandomWeight(GetParam(), kOutputs, cols(), 3);
  const std::vector<float> input = Normal(4, kRows * cols());
  const auto portable = MakeBackend("portable", 1);
  const std::vector<float> want =
      Multiply(*portable, *Prepare(*portable, {&weight.view, 1}), input);
  int runs = 0;
  for (const std::string& isa : IsaPaths()) {
    for (const int threads : {1, 3}) {
      for (const bool pack : {true, false}) {
        if (isa == "portable" && threads == 1) continue;  // `want` comes from this run
        const auto backend = MakeBackend(isa, threads, pack);
        const auto prepared = Prepare(*backend, {&weight.view, 1});
        EXPECT_EQ(prepared->bytes() == 0, !pack);
        // The kernels process 1, 2, 4, 8 or 16 rows at a time. Together, these chunk sizes test all
        // five numbers. Some chunks also need two of them: a large one first, and a smaller one for
        // the last rows.
        for (const int64_t chunk : {1, 3, 7, 29, 33, 83}) {
          if (isa == "portable" && chunk != 29) continue;  // the portable path is slow
          std::vector<float> got;
          for (int64_t r = 0; r < kRows; r += chunk) {
            const int64_t count = std::min(chunk, kRows - r);
            const std::vector<float> part =
                Multiply(*backend, *prepared,
                         std::vector<float>(input.begin() + r * cols(),
                                            input.begin() + (r + count) * cols()));
            got.insert(got.end(), part.begin(), part.end());
          }
          ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
              << isa << " threads " << threads << " pack " << pack << " chunk " << chunk;
          ++runs;
        }
      }
    }
  }
  EXPECT_GE(runs, 8);
}

class QuantizedLinearTest : public LinearTypeTest {};

// The range of bytes in a block that hold codes.
struct CodeBytes {
  size_t begin, end;
};
CodeBytes CodesOf(WeightType type) {
  const auto block = static_cast<size_t>(Traits(type).block_bytes);
  switch (type) {
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
      return {block - 20, block};
    case WeightType::kQ8_0:
      return {block - 32, block};
    case WeightType::kQ4_K:
      return {block - 128, block};
    case WeightType::kQ5_K:
      return {block - 160, block};
    case WeightType::kQ6_K:
      return {0, 192};
    default:
      return {block - 16, block};
  }
}

// All products of a block have the same sign. One of the codes 0xff, 0x80 and 0x00 gives them the
// largest possible magnitude, so a sum in too narrow integers would overflow.
TEST_P(QuantizedLinearTest, TheLargestDotsAreExact) {
  constexpr int64_t kRows = 21;  // rows are stored in groups of 16; the second group is not full
  const CodeBytes codes = CodesOf(GetParam());
  const auto portable = MakeBackend("portable");
  for (const int code : {0xff, 0x80, 0x00}) {
    TestWeight weight = RandomWeight(GetParam(), 16, cols(), 5);
    const auto block = static_cast<size_t>(Traits(GetParam()).block_bytes);
    for (size_t at = 0; at < weight.bytes.size(); at += block) {
      for (size_t i = codes.begin; i < codes.end; ++i) {
        weight.bytes[at + i] = static_cast<std::byte>(code);
      }
    }
    for (const float activation : {1.0f, -1.0f}) {
      const std::vector<float> input(kRows * cols(), activation);  // quantised to 127 or -127
      const std::vector<float> want =
          Multiply(*portable, *Prepare(*portable, {&weight.view, 1}), input);
      for (const std::string& isa : IsaPaths()) {
        const auto backend = MakeBackend(isa);
        const std::vector<float> got =
            Multiply(*backend, *Prepare(*backend, {&weight.view, 1}), input);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << isa << " code " << code << " activation " << activation;
      }
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<WeightType>& type) {
  return std::string(Traits(type.param).name);
}
INSTANTIATE_TEST_SUITE_P(Types, LinearTypeTest, ::testing::ValuesIn(testing::kAllWeightTypes),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Types, QuantizedLinearTest,
                         ::testing::ValuesIn(std::span(testing::kAllWeightTypes).subspan(3, 8)),
                         NameOf);

TEST(LinearTest, StackedPartsKeepTheirTypesAndTheirBits) {
  const TestWeight parts[] = {RandomWeight(WeightType::kQ4_1, 40, 256, 5),
                              RandomWeight(WeightType::kQ6_K, 24, 256, 6),
                              RandomWeight(WeightType::kF16, 9, 256, 7)};
  const std::vector<WeightView> views = {parts[0].view, parts[1].view, parts[2].view};
  const std::vector<float> input = Normal(8, 6 * 256);
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    const auto stacked = Prepare(*backend, views);
    EXPECT_EQ(stacked->rows(), 73);
    const std::vector<float> out = Multiply(*backend, *stacked, input);
    int64_t first = 0;
    for (const TestWeight& part : parts) {
      const std::vector<float> alone =
          Multiply(*backend, *Prepare(*backend, {&part.view, 1}), input);
      for (int64_t r = 0; r < 6; ++r) {
        for (int64_t n = 0; n < part.view.rows; ++n) {
          EXPECT_EQ(out[r * 73 + first + n], alone[r * part.view.rows + n]) << isa;
        }
      }
      first += part.view.rows;
    }
  }
}

TEST(LinearTest, BiasThenResidual) {
  const TestWeight weight = RandomWeight(WeightType::kQ8_0, 21, 64, 9);
  const std::vector<float> input = Normal(10, 3 * 64);
  Owned<float> bias = F32({21}, Normal(11, 21));
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    const auto prepared = Prepare(*backend, {&weight.view, 1});
    const std::vector<float> plain = Multiply(*backend, *prepared, input);
    Owned<float> residual = F32({3, 21}, Normal(12, 3 * 21));
    const std::vector<float> out =
        Multiply(*backend, *prepared, input, {.bias = bias.view, .residual = residual.view});
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], (plain[i] + bias.values[i % 21]) + residual.values[i]) << isa;
    }
  }
}

// Returns the exact result of an activation, and a bound on the error of float arithmetic.
Exact Activated(Activation activation, double y) {
  // Returns y times the logistic function of v. The bound counts an error of v_error in v, 2 ulp of
  // e^-v, one sum and one quotient.
  const auto times_logistic = [y](double v, double v_error) {
    const double e = std::exp(-v),
                 relative = (2 * kEpsilon + v_error) / (1 + std::exp(v)) + kEpsilon;
    return Exact{y / (1 + e), std::abs(y / (1 + e)) * relative};
  };
  const double t = std::abs(y), beyond = std::erfc(t / std::sqrt(2.0)) / 2;
  const double cubic = 2 * std::sqrt(2 / std::acos(-1.0)) * (y + 0.044715 * y * y * y);
  switch (activation) {
    case Activation::kNone:
      return {y, 0.0};
    case Activation::kGelu: {
      // Gelu() in kernels/cpu/linear_body.h computes `beyond` as e^(-t^2 / 2) * u * p(u), where p
      // is a polynomial and u = 1 / (1 + 0.34 t). The term t * t / 4 counts the rounding of t^2 in
      // the exponent. The factor 17 counts all other errors: the nine roundings of p, multiplied by
      // up to 2.3 because the terms of p cancel; the two roundings of u, multiplied by up to 2.35
      // in u * p(u); the roundings of e^x and of the products; and the error of the fit.
      const double error = beyond * (17 + t * t / 4) * kEpsilon;
      if (y < 0) return {y * beyond, t * error};
      return {y * (1 - beyond), t * (error + kEpsilon)};
    }
    case Activation::kGeluTanh:
    case Activation::kGeluTanhMul:
      return times_logistic(cubic, 2.5 * kEpsilon * std::abs(cubic));
    case Activation::kSiluMul:
    case Activation::kClampedSiluMul:  // has a test of its own
      return times_logistic(y, 0.0);
  }
  return {};
}

TEST(LinearTest, ActivationsAgreeWithDoublesEverywhere) {
  std::vector<float> input = {0.0f, -0.0f, 1e-30f, -1e-30f, 88.0f, -88.0f, 1e4f, -1e4f};
  for (int i = -4000; i <= 4000; ++i) input.push_back(static_cast<float>(i) / 197.0f);
  const std::vector<float> ones = {1.0f, 1.0f};  // the product is the input itself
  for (const Activation activation : {Activation::kNone, Activation::kGelu, Activation::kGeluTanh,
                                      Activation::kSiluMul, Activation::kGeluTanhMul}) {
    const bool gated = IsGated(activation);
    const WeightView view{WeightType::kF32, gated ? 2 : 1, 1,
                          std::as_bytes(std::span(ones).first(gated ? 2 : 1))};
    std::vector<float> first;
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(isa);
      const auto backend = MakeBackend(isa);
      const std::vector<float> out =
          Multiply(*backend, *Prepare(*backend, {&view, 1}), input, {.activation = activation});
      for (size_t i = 0; i < input.size(); ++i) {
        Exact exact = Activated(activation, input[i]);
        if (gated) {
          exact.value *= input[i];
          exact.bound = exact.bound * std::abs(input[i]) + kEpsilon * std::abs(exact.value);
        }
        EXPECT_NEAR(out[i], exact.value, exact.bound + 1e-32)
            << static_cast<int>(activation) << " of " << input[i];
      }
      if (first.empty()) first = out;
      EXPECT_EQ(out, first);
    }
  }
}

// Returns cap * tanh(x / cap), and a bound on the error of SoftCap() in kernels/cpu/simd.h. The two
// roundings of 2x / cap change the exponent of e^(2x / cap). Exp adds an error of 2 ulp. The sum,
// the quotient, the difference and the product are rounded once each.
Exact SoftCapped(double x, double cap) {
  const double v = 2 * x / cap, value = cap * std::tanh(x / cap);
  const double quotient = 2 / (std::exp(v) + 1), power_share = 1 / (1 + std::exp(-v));
  const double error = quotient * (power_share * (2 + std::abs(v)) + 1) * cap + std::abs(value);
  return {value, 1.01 * error * kEpsilon};
}

TEST(LinearTest, SoftCapsAgreeWithDoublesEverywhere) {
  std::vector<float> input = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e4f, -1e4f, 1e30f, -1e30f};
  for (int i = -4000; i <= 4000; ++i) input.push_back(static_cast<float>(i) / 17.0f);
  const float one = 1.0f;  // the product is the input itself
  const WeightView view{WeightType::kF32, 1, 1, std::as_bytes(std::span(&one, 1))};
  for (const float cap : {0.75f, 30.0f, 50.0f}) {
    std::vector<float> first;
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(isa);
      const auto backend = MakeBackend(isa);
      const std::vector<float> out =
          Multiply(*backend, *Prepare(*backend, {&view, 1}), input, {.soft_cap = cap});
      for (size_t i = 0; i < input.size(); ++i) {
        const Exact exact = SoftCapped(input[i], cap);
        EXPECT_NEAR(out[i], exact.value, exact.bound) << cap << " of " << input[i];
      }
      if (first.empty()) first = out;
      EXPECT_EQ(out, first);
    }
  }
}

TEST(LinearTest, TheSoftCapIsAfterBiasAndActivationAndBeforeTheResidual) {
  const TestWeight weight = RandomWeight(WeightType::kF32, 21, 64, 9);
  const std::vector<float> input = Normal(10, 3 * 64);
  Owned<float> bias = F32({21}, Normal(11, 21));
  Owned<float> residual = F32({3, 21}, Normal(12, 3 * 21));
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    const auto prepared = Prepare(*backend, {&weight.view, 1});
    const LinearArgs uncapped{.bias = bias.view, .activation = Activation::kGelu};
    LinearArgs capped = uncapped;
    capped.soft_cap = 0.5f;
    const std::vector<float> y = Multiply(*backend, *prepared, input, uncapped);
    const std::vector<float> out = Multiply(*backend, *prepared, input, capped);
    capped.residual = residual.view;
    const std::vector<float> sum = Multiply(*backend, *prepared, input, capped);
    for (size_t i = 0; i < out.size(); ++i) {
      const Exact exact = SoftCapped(y[i], 0.5);
      EXPECT_NEAR(out[i], exact.value, exact.bound) << isa;
      EXPECT_EQ(sum[i], out[i] + residual.values[i]) << isa;
    }
  }
}

TEST(LinearTest, SiluMulTakesGateThenUpOfAnyHeight) {
  for (const int64_t height : {5, 16, 50}) {
    for (const bool stacked : {true, false}) {
      const TestWeight gate = RandomWeight(WeightType::kF32, height, 40, 13);
      const TestWeight up =
          RandomWeight(stacked ? WeightType::kBF16 : WeightType::kF32, height, 40, 14);
      TestWeight both = gate;
      both.bytes.insert(both.bytes.end(), up.bytes.begin(), up.bytes.end());
      const WeightView one{WeightType::kF32, 2 * height, 40, both.bytes};
      const std::vector<WeightView> parts =
          stacked ? std::vector<WeightView>{gate.view, up.view} : std::vector<WeightView>{one};
      const std::vector<float> input = Normal(15, 9 * 40);
      Owned<float> bias = F32({2 * height}, Normal(16, 2 * height));
      std::vector<float> first;
      for (const std::string& isa : IsaPaths()) {
        SCOPED_TRACE(isa);
        const auto backend = MakeBackend(isa);
        const std::vector<float> out =
            Multiply(*backend, *Prepare(*backend, parts), input,
                     {.bias = bias.view, .activation = Activation::kSiluMul});
        for (int64_t r = 0; r < 9; ++r) {
          for (int64_t n = 0; n < height; ++n) {
            Exact g = Reference(gate, n, input.data() + r * 40, false);
            Exact u = Reference(up, n, input.data() + r * 40, false);
            g.value += bias.values[n];
            u.value += bias.values[height + n];
            const Exact want = testing::ExactSiluMul(g, u);
            EXPECT_NEAR(out[r * height + n], want.value, want.bound + 1e-12);
          }
        }
        if (first.empty()) first = out;
        EXPECT_EQ(out, first);
      }
    }
  }
}

TEST(LinearTest, ClampedSiluMulAgreesWithDoublesEverywhere) {
  std::vector<float> input = {0.0f, -0.0f, 1e-30f, 88.0f, -88.0f, 1e30f, -1e30f};
  for (int i = -4000; i <= 4000; ++i) input.push_back(static_cast<float>(i) / 197.0f);
  for (const float sign : {1.0f, -1.0f}) {
    // The gate is the input itself. The up projection is the input or its negative.
    const std::vector<float> weights = {1.0f, sign};
    const WeightView view{WeightType::kF32, 2, 1, std::as_bytes(std::span(weights))};
    for (const float limit : {7.0f, 1.25f}) {
      for (const std::string& isa : IsaPaths()) {
        SCOPED_TRACE(isa);
        const auto backend = MakeBackend(isa);
        const auto prepared = Prepare(*backend, {&view, 1});
        const LinearArgs args{.activation = Activation::kClampedSiluMul, .activation_limit = limit};
        const std::vector<float> out = Multiply(*backend, *prepared, input, args);
        for (size_t i = 0; i < input.size(); ++i) {
          const Exact want =
              testing::ExactClampedSiluMul({.value = input[i]}, {.value = sign * input[i]}, limit);
          EXPECT_NEAR(out[i], want.value, want.bound) << limit << " of " << input[i];
        }
        EXPECT_TRUE(std::isnan(Multiply(*backend, *prepared, {std::nanf("")}, args)[0]));
      }
    }
  }
}

TEST(LinearTest, NonFiniteActivationsReachTheirOwnRowOnly) {
  const TestWeight weight = RandomWeight(WeightType::kQ4_0, 16, 64, 17);
  for (const float bad : {std::nanf(""), INFINITY}) {
    std::vector<float> input = Normal(18, 3 * 64);
    const auto portable = MakeBackend("portable");
    const std::vector<float> clean =
        Multiply(*portable, *Prepare(*portable, {&weight.view, 1}), input);
    input[64 + 7] = bad;
    for (const std::string& isa : IsaPaths()) {
      const auto backend = MakeBackend(isa);
      const std::vector<float> out =
          Multiply(*backend, *Prepare(*backend, {&weight.view, 1}), input);
      for (int n = 0; n < 16; ++n) {
        EXPECT_EQ(out[n], clean[n]) << isa;
        EXPECT_FALSE(std::isfinite(out[16 + n])) << isa;
        EXPECT_EQ(out[32 + n], clean[32 + n]) << isa;
      }
    }
  }
}

TEST(LinearTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto");
  const TestWeight weight = RandomWeight(WeightType::kF32, 6, 10, 19);
  const auto prepared = Prepare(*backend, {&weight.view, 1});
  Owned<float> in = F32({2, 9}), out = F32({2, 6});
  LinearArgs args{.out = out.view, .input = in.view, .weight = prepared.get()};
  EXPECT_THAT(std::string(backend->Linear(args).message()),
              HasSubstr("input: want f32|f16|bf16 [*, 10], got f32 [2, 9]"));
  Owned<float> wide = F32({2, 10}), narrow = F32({2, 3});
  args.input = wide.view;
  for (const float cap : {-1.0f, std::nanf("")}) {
    args.soft_cap = cap;
    EXPECT_THAT(std::string(backend->Linear(args).message()), HasSubstr("soft_cap: want >= 0"));
  }
  args.soft_cap = 0.0f;
  args.out = narrow.view;
  args.activation = Activation::kClampedSiluMul;
  EXPECT_THAT(std::string(backend->Linear(args).message()),
              HasSubstr("activation_limit: want more than 0, got 0"));
  args.weight = nullptr;
  EXPECT_THAT(std::string(backend->Linear(args).message()), HasSubstr("weight: want"));

  WeightView odd = weight.view;
  odd.cols = 9;
  EXPECT_THAT(std::string(backend->PrepareWeight({&odd, 1}).status().message()),
              HasSubstr("weight: want 216 bytes for F32 [6, 9], got 240"));
  const TestWeight other = RandomWeight(WeightType::kF32, 6, 12, 19);
  const WeightView parts[] = {weight.view, other.view};
  EXPECT_THAT(std::string(backend->PrepareWeight(parts).status().message()),
              HasSubstr("parts: want 10 cols, got 12"));
}

}  // namespace
}  // namespace quire::kernels
