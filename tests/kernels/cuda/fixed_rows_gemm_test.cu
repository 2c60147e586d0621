// Tests that products with a fixed number of rows are those of Device::Gemm, and that a weight has
// one shape of product for any number of rows.

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/device/gemm_shape.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceFloats;
using testing::kFloats;
using testing::Normal;

class ShapeLog final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status Gemm(const GemmArgs& args) override {
    shapes.insert(ShapeOf(args));
    return ForwardingDevice::Gemm(args);
  }

  std::set<GemmShape> shapes;
};

// Returns `count` integers from -2 to 2, whose sums here are exact in any order.
std::vector<float> Integers(uint64_t seed, int64_t count) {
  std::vector<float> values = Normal(seed, count);
  for (float& value : values) value = std::clamp(std::round(value), -2.0f, 2.0f);
  return values;
}

// The columns of the output lie between others, which the product must not change. The input begins
// at the second row of a tensor, so it is not always aligned.
TEST(FixedRowsGemmTest, IsTheProductAndHasOneShape) {
  constexpr int64_t kCols = 40, kRows = 24, kStride = 31, kBefore = 3, kMostTokens = 300;
  const auto device = testing::MakeDevice();
  const DeviceBuffer scratch =
      *device->Allocate(FixedRowsScratchBytes(kCols, kStride, DType::kF32));
  for (const DType type : kFloats) {
    DeviceFloats input(*device, type, Integers(1, (kMostTokens + 1) * kCols));
    DeviceFloats weight(*device, type, Integers(2, kRows * kCols));
    for (const DType output_type : {type, DType::kF32}) {
      for (const bool accumulate : {false, true}) {
        ShapeLog log(*device);
        for (const int64_t tokens : {1, 2, 127, 128, 129, 300}) {
          SCOPED_TRACE(::testing::Message() << Name(type) << " to " << Name(output_type) << ", "
                                            << tokens << " tokens, accumulate " << accumulate);
          const std::vector<float> before = Integers(3, kMostTokens * kStride);
          DeviceFloats got(*device, output_type, before), want(*device, output_type, before);
          GemmArgs args = {.a = input.View({kMostTokens + 1, kCols}).Rows(1, tokens).raw(),
                           .b = weight.View({kRows, kCols}).raw(),
                           .m = tokens,
                           .n = kRows,
                           .k = kCols,
                           .lda = kCols,
                           .ldb = kCols,
                           .ldd = kStride,
                           .type = type,
                           .output_type = output_type,
                           .accumulate = accumulate};
          const auto place = [&](DeviceFloats& floats) {
            return static_cast<char*>(floats.View({1}).raw()) + kBefore * SizeOf(output_type);
          };
          args.d = place(got);
          ASSERT_TRUE(FixedRowsGemm(log, args, scratch.data()).ok());
          args.d = place(want);
          ASSERT_TRUE(device->Gemm(args).ok());
          EXPECT_EQ(got.ToHost(), want.ToHost());
        }
        ASSERT_EQ(log.shapes.size(), 1u);
        const GemmShape& shape = *log.shapes.begin();
        EXPECT_EQ(shape.m, kFixedRows);
        EXPECT_EQ(shape.a_alignment, 256u);
        EXPECT_EQ(shape.d_alignment, 256u);
      }
    }
  }
}

// A linear layer without a bias, and one with a bias, whose sums fit into the scratch memory for
// 300 tokens, or for 7.
TEST(FixedRowsGemmTest, ALinearLayerHasOneShape) {
  constexpr int64_t kCols = 48, kRows = 40, kMostTokens = 400;
  constexpr DType kType = DType::kBF16;
  const auto device = testing::MakeDevice();
  DeviceFloats input(*device, kType, Normal(1, kMostTokens * kCols));
  DeviceFloats bias(*device, DType::kF32, Normal(4, kRows));
  DeviceBuffer memory = *device->Allocate(kRows * kCols * SizeOf(kType));
  const std::vector<uint8_t> values = testing::Encode(kType, Normal(2, kRows * kCols));
  ASSERT_TRUE(device->CopyToDevice(memory.data(), values.data(), std::ssize(values)).ok());
  ASSERT_TRUE(device->Synchronize().ok());
  const CudaWeight weight(std::move(memory), kType, kRows, kCols);
  for (const bool has_bias : {false, true}) {
    ShapeLog log(*device);
    std::vector<float> most;
    for (const int64_t tokens_of_scratch : {300, 7}) {
      const DeviceBuffer scratch =
          *device->Allocate(FixedRowsScratchBytes(kCols, kRows, kType) +
                            tokens_of_scratch * kRows * SizeOf(DType::kF32));
      for (const int64_t tokens : {400, 256, 130, 17, 1}) {
        DeviceFloats out(*device, kType, tokens * kRows);
        const absl::Status status = Linear(log,
                                           {.out = out.View({tokens, kRows}),
                                            .input = input.View({tokens, kCols}),
                                            .weight = &weight,
                                            .bias = has_bias ? bias.View({kRows}) : TensorView()},
                                           scratch, GemmRows::kFixed);
        ASSERT_TRUE(status.ok()) << status;
        const std::vector<float> got = out.ToHost();
        if (most.empty()) most = got;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), most.begin())) << tokens;
      }
    }
    ASSERT_EQ(log.shapes.size(), 1u);
    EXPECT_EQ(log.shapes.begin()->m, kFixedRows);
  }
  DeviceFloats out(*device, kType, kRows);
  const LinearArgs args = {
      .out = out.View({1, kRows}), .input = input.View({1, kCols}), .weight = &weight};
  const DeviceBuffer enough = *device->Allocate(32768), small = *device->Allocate(1000);
  EXPECT_TRUE(Linear(*device, args, enough, GemmRows::kFixed).ok());
  EXPECT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Linear(*device, args, small, GemmRows::kFixed).message(),
            "weight: want a product of 128 rows in 1000 bytes of scratch memory, got 32768 bytes");
}

}  // namespace
}  // namespace quire::kernels::cuda
