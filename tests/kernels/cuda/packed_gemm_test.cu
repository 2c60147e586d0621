// Tests Linear and Embed with packed weights: the GEMM for few tokens, and dequantised rows for
// more.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/math.h"
#include "kernels/cuda/cuda_weight_layout.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/pack_weight.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/weight_product.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/small_integers.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::DeviceArray;
using testing::DeviceFloats;
using testing::Encode;
using testing::kAllThreadOrders;
using testing::MakeDevice;
using testing::Normal;
using testing::RandomWeight;
using testing::TestWeight;
using testing::ThreadOrder;

constexpr WeightType kPackedTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0,
                                       WeightType::kQ4_K, WeightType::kQ6_K};
constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

// Columns that leave half of the last tile empty, where the type allows it, and more tiles than
// the block has warps.
int64_t ColsOf(WeightType type) { return Traits(type).block_elements == 256 ? 768 : 608; }

class PackedGemmTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  // Stacks `parts` into one weight, packed where their type allows it.
  CudaWeight Prepare(const std::vector<const TestWeight*>& parts, DType dtype, bool packs = true) {
    std::vector<WeightView> views;
    for (const TestWeight* part : parts) views.push_back(part->view);
    const CudaWeightLayout layout = LayOut(views, dtype, packs);
    std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes));
    for (size_t i = 0; i < views.size(); ++i) {
      std::byte* to = bytes.data() + layout.offsets[i];
      if (layout.is_packed[i]) {
        const int64_t group_bytes = PackedGroupBytes(views[i].type, views[i].cols);
        for (int64_t g = 0; g < NumGroups(views[i].rows); ++g) {
          PackGroup(views[i], g, to + g * group_bytes);
        }
      } else {
        const std::vector<uint8_t> values = Encode(dtype, parts[i]->values);
        std::memcpy(to, values.data(), values.size());
      }
    }
    DeviceBuffer memory = *device_->Allocate(layout.bytes);
    EXPECT_TRUE(device_->CopyToDevice(memory.data(), bytes.data(), layout.bytes).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return CudaWeight(std::move(memory), dtype, views[0].cols, layout.parts);
  }

  std::vector<float> Multiply(const CudaWeight& weight, DeviceFloats& input, int64_t num_tokens,
                              DType out_dtype, const DeviceBuffer& scratch, LinearArgs args = {}) {
    DeviceFloats out(*device_, out_dtype, num_tokens * weight.rows());
    args.out = out.View({num_tokens, weight.rows()});
    args.input = input.View({num_tokens, weight.cols()});
    args.weight = &weight;
    const absl::Status status = Linear(*device_, args, scratch);
    EXPECT_TRUE(status.ok()) << status;
    return out.ToHost();
  }

  std::unique_ptr<Device> device_ = MakeDevice(GetParam());
  const DeviceBuffer scratch_ = *device_->Allocate(1 << 20);
};
INSTANTIATE_TEST_SUITE_P(Orders, PackedGemmTest, ::testing::ValuesIn(kAllThreadOrders));

// A weight is rounded once to the dtype of activations, as when it is stored in that dtype. So only
// the sums differ from double. A sum of n products, in any order, is off by at most n - 1 roundings
// of the sum of the magnitudes; a product of two 16-bit numbers is exact.
double SumBound(int64_t cols, double magnitude) {
  return static_cast<double>(cols) * 0x1p-23 * magnitude;
}

TEST_P(PackedGemmTest, AgreesWithDoublesForEveryTypeAndNumberOfTokens) {
  double worst = 0.0;
  for (const WeightType type : kPackedTypes) {
    for (const DType dtype : kHalves) {
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::string(Name(dtype)));
      constexpr int64_t kRows = 75, kMostTokens = 40;  // three blocks of rows, the last not full
      const int64_t cols = ColsOf(type);
      const TestWeight weight = RandomWeight(type, kRows, cols, 1);
      const std::vector<float> rounded = Decode(dtype, Encode(dtype, weight.values));
      const CudaWeight prepared = Prepare({&weight}, dtype);
      ASSERT_TRUE(prepared.is_packed());
      DeviceFloats input(*device_, dtype, Normal(2, kMostTokens * cols));
      std::vector<float> few;
      for (const int64_t num_tokens : {1, 3, 8, 9, 16, 17, 40}) {
        if (num_tokens == 40 && GetParam() != ThreadOrder::kForward) continue;
        const std::vector<float> got = Multiply(prepared, input, num_tokens, DType::kF32, scratch_);
        for (int64_t t = 0; t < num_tokens; ++t) {
          for (int64_t r = 0; r < kRows; ++r) {
            double want = 0.0, magnitude = 0.0;
            for (int64_t k = 0; k < cols; ++k) {
              const double product = double{rounded[static_cast<size_t>(r * cols + k)]} *
                                     input.values[static_cast<size_t>(t * cols + k)];
              want += product;
              magnitude += std::abs(product);
            }
            const double bound = SumBound(cols, magnitude);
            const double error = std::abs(got[static_cast<size_t>(t * kRows + r)] - want);
            ASSERT_LE(error, bound) << num_tokens << " tokens, token " << t << ", row " << r;
            worst = std::max(worst, error / bound);
          }
        }
        // A token has the bits that it has beside fewer tokens.
        if (num_tokens <= kMostPackedTokens) {
          EXPECT_EQ(std::vector<float>(got.begin(),
                                       got.begin() + static_cast<std::ptrdiff_t>(few.size())),
                    few);
          few = got;
        }
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_GT(worst, 0.0);
}

}  // namespace
}  // namespace quire::kernels::cuda
