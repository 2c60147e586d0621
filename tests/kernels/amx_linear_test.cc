// Tests the products of the AMX path on any machine. This file compiles the source of the AMX path
// with portable vectors and with tiles that are emulated in plain C++ (amx_tiles.h). The results
// must have the same bits as those of the portable path.

#include <cstring>
#include <limits>

#include "gtest/gtest.h"

#include "kernels/cpu/linear.h"
#include "tests/kernels/amx_tiles.h"
#include "tests/kernels/kernel_testing.h"

#define QUIRE_ISA_NAMESPACE amx_in_cpp
#define QUIRE_SIMD_PORTABLE
#define QUIRE_AMX_TILES
#include "kernels/cpu/kernel_bodies.h"

namespace quire::kernels::cpu {
namespace {

using testing::F32;
using testing::Normal;
using testing::Owned;
using testing::RandomWeight;
using testing::TestWeight;

std::vector<float> Multiply(const KernelTable& kernels, const PackedWeight& weight,
                            const std::vector<float>& input) {
  const int64_t rows = static_cast<int64_t>(input.size()) / weight.cols();
  Owned<float> in = F32({rows, weight.cols()}, input);
  Owned<float> out = F32({rows, weight.rows()}, std::numeric_limits<float>::quiet_NaN());
  ThreadPool pool(1);
  Linear linear(kernels, pool);
  EXPECT_TRUE(linear.Reserve(weight).ok());
  LinearArgs args;
  args.out = out.view;
  args.input = in.view;
  args.weight = &weight;
  linear.Run(args);
  return out.values;
}

class AmxLinearTest : public ::testing::TestWithParam<WeightType> {};

TEST_P(AmxLinearTest, GivesTheBitsOfThePortablePath) {
  const KernelTable amx = amx_in_cpp::MakeKernels("amx in C++");
  const bool k_quant = GetParam() >= WeightType::kQ4_K;
  // A tile covers 32 columns of the input, or 16 for Q6_K. So 96 columns are 3 tiles, 256 columns
  // are 8 tiles (16 for Q6_K), and 512 columns are 16 tiles (32 for Q6_K).
  for (const int64_t cols : {k_quant ? 256 : 96, 512}) {
    const TestWeight weight = RandomWeight(GetParam(), 37, cols, 1);
    const auto packed = PackedWeight::Create({&weight.view, 1}, /*pack=*/true);
    ASSERT_TRUE(packed.ok());
    // A tile holds 16 rows. If at most 8 rows are left, they are computed without a tile. So 8 rows
    // use no tile, 9 rows use a part of one, and 16 rows use one. 19 rows use one and leave 3 rows.
    // 44 rows use two and a part of a third.
    for (const int64_t rows : {8, 9, 16, 19, 44}) {
      const std::vector<float> input = Normal(2, rows * cols);
      const std::vector<float> want = Multiply(PortableKernels(), **packed, input);
      const std::vector<float> got = Multiply(amx, **packed, input);
      ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << rows << " rows of " << cols;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AmxLinearTest,
                         ::testing::Values(WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
                                           WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ4_K,
                                           WeightType::kQ5_K, WeightType::kQ6_K),
                         [](const auto& type) { return std::string(Traits(type.param).name); });

}  // namespace
}  // namespace quire::kernels::cpu
