#include "kernels/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <rapidcheck.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/kernel_testing.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;

TEST(NormTest, AgreesWithDoublesToTheSameBitsOnEveryPath) {
  constexpr int64_t kRows = 13;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const int64_t size : {1, 7, 16, 100, 576}) {
      SCOPED_TRACE(size);
      Owned<float> input = F32({kRows, size}, Normal(1, kRows * size, 3.0f));
      Owned<float> weight = F32({size}, Normal(2, size)), bias = F32({size}, Normal(3, size));
      std::vector<float> first;
      for (const std::string& isa : IsaPaths()) {
        SCOPED_TRACE(isa);
        Owned<float> out = F32({kRows, size});
        NormArgs args{.out = out.view,
                      .input = input.view,
                      .weight = weight.view,
                      .bias = bias.view,
                      .kind = kind};
        ASSERT_TRUE(MakeBackend(isa, 3)->Norm(args).ok());
        if (first.empty()) first = out.values;
        EXPECT_EQ(out.values, first);

        Owned<float> in_place = F32({kRows, size}, input.values);
        args.input = args.out = in_place.view;
        ASSERT_TRUE(MakeBackend(isa, 1)->Norm(args).ok());
        EXPECT_EQ(in_place.values, first);
      }
      for (int64_t r = 0; r < kRows; ++r) {
        const float* x = input.values.data() + r * size;
        double mean = 0.0, squares = 0.0, largest = 0.0;
        if (kind == NormKind::kLayerNorm) {
          for (int64_t i = 0; i < size; ++i) mean += x[i] / static_cast<double>(size);
        }
        for (int64_t i = 0; i < size; ++i) {
          squares += (x[i] - mean) * (x[i] - mean);
          largest = std::max(largest, std::abs(double{x[i]}));
        }
        const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
        // The relative error counts size / 16 + 8 roundings for a sum, and 8 for the other
        // operations. The error of the mean is relative to the largest element.
        const double relative =
            (static_cast<double>(size) / 16 + 16) * std::numeric_limits<float>::epsilon();
        for (int64_t i = 0; i < size; ++i) {
          const double want = (x[i] - mean) * inverse * weight.values[i] + bias.values[i];
          const double bound =
              relative * ((std::abs(double{x[i]}) + (kind == NormKind::kLayerNorm ? largest : 0)) *
                              inverse * std::abs(weight.values[i]) * (1 + largest * inverse) +
                          std::abs(bias.values[i]));
          EXPECT_NEAR(first[r * size + i], want, bound + 1e-12) << r << " " << i;
        }
      }
    }
  }
}

TEST(NormTest, AddsToTheResidualWhatItNorms) {
  constexpr int64_t kRows = 5;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const int64_t size : {7, 576}) {
      Owned<float> input = F32({kRows, size}, Normal(1, kRows * size));
      const std::vector<float> before = Normal(2, kRows * size);
      Owned<float> weight = F32({size}, Normal(3, size));
      Owned<float> sum = F32({kRows, size});
      std::transform(before.begin(), before.end(), input.values.begin(), sum.values.begin(),
                     std::plus<>());
      for (const std::string& isa : IsaPaths()) {
        SCOPED_TRACE(isa);
        const auto backend = MakeBackend(isa, 2);
        Owned<float> want = F32({kRows, size}), out = F32({kRows, size});
        NormArgs args{.out = want.view, .input = sum.view, .weight = weight.view, .kind = kind};
        ASSERT_TRUE(backend->Norm(args).ok());
        Owned<float> residual = F32({kRows, size}, before);
        args.out = out.view;
        args.input = input.view;
        args.residual = residual.view;
        ASSERT_TRUE(backend->Norm(args).ok());
        EXPECT_EQ(out.values, want.values);
        EXPECT_EQ(residual.values, sum.values);
      }
    }
  }
}

TEST(NormTest, ARowsBitsDoNotDependOnItsNeighbours) {
  const auto backend = MakeBackend("auto", 3);
  EXPECT_TRUE(rc::check([&] {
    const auto rows = *rc::gen::inRange<int64_t>(1, 40);
    const auto size = *rc::gen::inRange<int64_t>(1, 70);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    Owned<float> input = F32({rows, size}, Normal(seed, rows * size));
    Owned<float> weight = F32({size}, 1.0f), together = F32({rows, size});
    RC_ASSERT(
        backend->Norm({.out = together.view, .input = input.view, .weight = weight.view}).ok());
    for (int64_t r = 0; r < rows; ++r) {
      Owned<float> alone = F32({1, size});
      RC_ASSERT(
          backend->Norm({.out = alone.view, .input = input.view.Rows(r, 1), .weight = weight.view})
              .ok());
      RC_ASSERT(std::memcmp(alone.values.data(), together.values.data() + r * size,
                            static_cast<size_t>(size) * sizeof(float)) == 0);
    }
  }));
}

TEST(NormTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto", 1);
  Owned<float> input = F32({2, 8}), weight = F32({7});
  NormArgs args{.out = input.view, .input = input.view, .weight = weight.view};
  EXPECT_THAT(std::string(backend->Norm(args).message()),
              HasSubstr("weight: want f32 [8], got f32 [7]"));
  args.input = TensorView(input.values.data(), DType::kF16, {2, 8});
  EXPECT_THAT(std::string(backend->Norm(args).message()), HasSubstr("out: want f16, got f32"));
  args.out = args.input;
  args.weight = TensorView(weight.values.data(), DType::kF32, {8});
  args.residual = input.view.Rows(0, 1);
  EXPECT_THAT(std::string(backend->Norm(args).message()),
              HasSubstr("residual: want f32|f16|bf16 [2, 8]"));
  args.residual = {};
  args.weight = input.view.Rows(0, 1);
  EXPECT_THAT(std::string(backend->Norm(args).message()),
              HasSubstr("weight: want f32 [8], got f32 [1, 8]"));
}

}  // namespace
}  // namespace quire::kernels
