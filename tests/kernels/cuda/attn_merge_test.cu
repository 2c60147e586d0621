#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {
namespace {

using kernels::cuda::AttentionMerge;
using kernels::cuda::AttnMergeParams;
using kernels::cuda::Bf16;

// The batch of the first test has two sequences, of 1 and 4 tokens. It has 2 KV heads, each with 3
// query heads. A unit is a tile of rows together with the keys that these rows see. Attention may
// cut a unit into pieces, and the kernel merges the results of the pieces. It must write only the
// rows of the units in `merges`, because no other unit was cut.
constexpr int kHeads = 6, kGroup = 3, kHeadDim = 80;

struct CopyWordsParams {
  const float* from;
  float* to;
  int num_words;
};

// Stands for the attention kernel, which writes the pieces that the merge reads.
__global__ void CopyWords(const __grid_constant__ CopyWordsParams p) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < p.num_words) p.to[i] = p.from[i];
}

// Enqueues a merge. The kernel just before it writes the pieces, so the merge must wait for it.
void LaunchMerge(kernels::cuda::Device& device, const std::vector<float>& partial_out,
                 const std::vector<float>& partial_lse, kernels::cuda::Dim3 grid,
                 AttnMergeParams<Bf16> params) {
  std::vector<float> all = partial_out;
  all.insert(all.end(), partial_lse.begin(), partial_lse.end());
  const auto num_words = static_cast<int>(all.size());
  DeviceArray<float> from(device, all), to(device, num_words);
  params.partial_out = to.data();
  params.partial_lse = to.data() + partial_out.size();
  EXPECT_TRUE(kernels::cuda::Launch(
                  device, {.grid = {static_cast<unsigned>(num_words + 31) / 32}, .block = {32}},
                  &CopyWords, {.from = from.data(), .to = to.data(), .num_words = num_words})
                  .ok());
  EXPECT_TRUE(
      kernels::cuda::Launch(
          device,
          {.grid = grid, .block = {32 * kernels::cuda::kMergeWarps}, .overlaps_previous = true},
          &kernels::cuda::AttnMergeKernel<Bf16>, params)
          .ok());
  EXPECT_TRUE(device.Synchronize().ok());
}

class AttnMergeTest : public ::testing::TestWithParam<ThreadOrder> {};

TEST_P(AttnMergeTest, WeighsPiecesByTheirLogSumExp) {
  const auto device = MakeDevice(GetParam());
  const std::vector<AttentionMerge> merges = {
      {.seq = 0, .kv_head = 1, .first_row = 0, .num_rows = 3, .partial = 0, .num_items = 3},
      {.seq = 1, .kv_head = 0, .first_row = 4, .num_rows = 8, .partial = 9, .num_items = 2}};
  const int num_rows = 25;
  std::vector<float> out, lse;
  for (int row = 0; row < num_rows; ++row) {
    lse.push_back(static_cast<float>(row * 7 % 11) - 60.0f * static_cast<float>(row % 2));
    for (int d = 0; d < kHeadDim; ++d) out.push_back(static_cast<float>((row * d) % 13) - 6.0f);
  }
  lse[1] = -INFINITY;            // a piece that saw no key
  lse[9] = lse[17] = -INFINITY;  // a row of which no piece saw a key
  for (int d = 0; d < kHeadDim; ++d) out[static_cast<size_t>(kHeadDim + d)] = 0.0f;
  const std::vector<float> sinks = {-200.0f, 1.0f, 5.0f, -1.0f, 0.0f, 9.0f};
  for (const bool with_sinks : {false, true}) {
    DeviceArray<float> device_sinks(*device, sinks);
    DeviceArray<AttentionMerge> device_merges(*device, merges);
    DeviceArray<int32_t> starts(*device, std::vector<int32_t>{0, 1, 5});
    DeviceArray<uint16_t> result(*device, 5 * kHeads * kHeadDim);
    AttnMergeParams<Bf16> params = {};
    params.out = reinterpret_cast<Bf16*>(result.data());
    params.merges = device_merges.data();
    params.query_starts = starts.data();
    params.sinks = with_sinks ? device_sinks.data() : nullptr;
    params.num_heads = kHeads;
    params.group = kGroup;
    params.head_dim = kHeadDim;
    LaunchMerge(*device, out, lse, {2, 2}, params);
    const std::vector<uint16_t> got = result.ToHost();
    size_t merged = 0;
    for (const AttentionMerge& merge : merges) {
      for (int i = 0; i < merge.num_rows; ++i, ++merged) {
        const int row = merge.first_row + i;
        const int head = merge.kv_head * kGroup + row % kGroup;
        const int token = (merge.seq == 0 ? 0 : 1) + row / kGroup;
        // The sum of the weights. The maximum need not be subtracted from the exponents first,
        // because a double can represent even the smallest weight, e^-200.
        double sum = with_sinks ? std::exp(double{sinks[static_cast<size_t>(head)]}) : 0.0;
        for (int k = 0; k < merge.num_items; ++k) {
          sum += std::exp2(lse[static_cast<size_t>(merge.partial + k * merge.num_rows + i)]);
        }
        for (int d = 0; d < kHeadDim; ++d) {
          double want = 0.0, magnitude = 0.0;
          for (int k = 0; k < merge.num_items && sum > 0.0; ++k) {
            const auto from = static_cast<size_t>(merge.partial + k * merge.num_rows + i);
            const double x =
                std::exp2(double{lse[from]}) / sum * out[from * kHeadDim + static_cast<size_t>(d)];
            want += x;
            magnitude += std::abs(x);
          }
          // The output is rounded once to bf16. The rest is float32 arithmetic. An argument of exp2
          // has a magnitude of up to 300. Its rounding error grows with this magnitude and becomes
          // a relative error of the result.
          const double bound = std::abs(want) * 0x1p-8 + magnitude * 300 * 0x1p-22;
          ASSERT_NEAR(
              kernels::Bf16ToF32(got[static_cast<size_t>((token * kHeads + head) * kHeadDim + d)]),
              want, bound)
              << "row " << row << " d " << d << " sinks " << with_sinks;
        }
      }
    }
    ASSERT_EQ(merged, 11u);
    // The kernel does not write the rows of units that were not cut, so they are still NaN.
    EXPECT_TRUE(std::isnan(kernels::Bf16ToF32(got[0])));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, AttnMergeTest, ::testing::ValuesIn(kAllThreadOrders));

// Divides the keys of a softmax into pieces, and merges the pieces with the kernel. The result must
// be the softmax over all keys.
TEST(AttnMergePropertyTest, PiecesMakeTheWhole) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 engine(seed);
    const auto between = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(engine);
    };
    std::normal_distribution<double> normal;
    const int group = between(1, 5), num_items = between(1, 9), num_rows = between(1, 20);
    const int head_dim = 8 * between(1, 32);
    const bool with_sinks = between(0, 1) == 1;
    // The standard deviation of the scores, which are exponents of 2.
    const double spread = between(0, 1) == 0 ? 1.0 : 40.0;
    const int num_tokens = (num_rows + group - 1) / group;

    std::vector<float> sinks, partial_out, partial_lse;
    for (int h = 0; h < group; ++h) sinks.push_back(static_cast<float>(normal(engine) * spread));
    const auto rows = static_cast<size_t>(num_rows);
    const auto dims = static_cast<size_t>(head_dim);
    // Three sums for each row, over all keys of all pieces, in doubles: the weights, the weights
    // times the values, and the weights times the absolute values.
    std::vector<double> sums(rows), wanted(rows * dims), magnitudes(rows * dims);
    for (size_t row = 0; row < rows && with_sinks; ++row) {
      sums[row] = std::exp(double{sinks[row % static_cast<size_t>(group)]});
    }
    for (int item = 0; item < num_items; ++item) {
      for (size_t row = 0; row < rows; ++row) {
        const int num_keys = between(0, 3);
        double sum = 0.0;
        std::vector<double> out(dims), magnitude(dims);
        for (int key = 0; key < num_keys; ++key) {
          const double weight = std::exp2(normal(engine) * spread);
          sum += weight;
          for (size_t d = 0; d < dims; ++d) {
            const double value = normal(engine);
            out[d] += weight * value;
            magnitude[d] += weight * std::abs(value);
          }
        }
        sums[row] += sum;
        partial_lse.push_back(sum > 0.0 ? static_cast<float>(std::log2(sum)) : -INFINITY);
        for (size_t d = 0; d < dims; ++d) {
          partial_out.push_back(sum > 0.0 ? static_cast<float>(out[d] / sum) : 0.0f);
          wanted[row * dims + d] += out[d];
          magnitudes[row * dims + d] += magnitude[d];
        }
      }
    }

    const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
    const std::vector<AttentionMerge> merges = {{.seq = 0,
                                                 .kv_head = 0,
                                                 .first_row = 0,
                                                 .num_rows = num_rows,
                                                 .partial = 0,
                                                 .num_items = num_items}};
    DeviceArray<float> device_sinks(*device, sinks);
    DeviceArray<AttentionMerge> device_merges(*device, merges);
    DeviceArray<int32_t> starts(*device, std::vector<int32_t>{0, num_tokens});
    DeviceArray<uint16_t> result(*device, int64_t{num_tokens} * group * head_dim);
    AttnMergeParams<Bf16> params = {};
    params.out = reinterpret_cast<Bf16*>(result.data());
    params.merges = device_merges.data();
    params.query_starts = starts.data();
    params.sinks = with_sinks ? device_sinks.data() : nullptr;
    params.num_heads = group;
    params.group = group;
    params.head_dim = head_dim;
    LaunchMerge(*device, partial_out, partial_lse, {1, 5}, params);
    const std::vector<uint16_t> got = result.ToHost();
    for (size_t row = 0; row < rows; ++row) {
      for (size_t d = 0; d < dims; ++d) {
        const size_t at = row * dims + d;
        const double inverse = sums[row] > 0.0 ? 1.0 / sums[row] : 0.0;
        const double want = wanted[at] * inverse;
        // The output is rounded once to bf16. The log-sum-exp of a piece has a magnitude of up to
        // 200. It is rounded to float32, and so is its difference from another log-sum-exp.
        // Together, these errors times ln(2) are the relative error of the weight of a piece.
        const double bound = std::abs(want) * 0x1p-8 +
                             magnitudes[at] * inverse * (3 * 200 + num_items + 8) * 0x1p-23;
        ASSERT_NEAR(kernels::Bf16ToF32(got[at]), want, bound) << "row " << row << " d " << d;
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
