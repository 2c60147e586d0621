#pragma once

// A weight matrix as it is stored in a model file, before a backend prepares it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kernels {

// Storage types of weights: plain floats, the ggml block formats, and e4m3 with and without scales.
// weight_blocks.h has the layouts of ggml's blocks.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3,        // codes as a file has them, whose scales are in another tensor
  kF8E4M3Scaled,  // blocks of a scale and its codes
};

// A block of kF8E4M3Scaled is a float32 scale and 64 codes (float8.h). A weight is the product of
// its code and the scale, rounded once to float32. The scale is positive and at most
// kLargestE4M3Scale, so that a kernel can move the 2^120 by which the bits of a code are too small
// as a float32 into the scale. No code is NaN.
inline constexpr int kScaledBlock = 64;
inline constexpr int kScaledBlockBytes = 4 + kScaledBlock;
inline constexpr float kLargestE4M3Scale = 128.0f;

struct WeightTypeTraits {
  std::string_view name;  // "Q4_1"
  int block_elements;     // weights in one block; a row holds a whole number of blocks
  int block_bytes;        // bytes of one block
};
const WeightTypeTraits& Traits(WeightType type);

// A row-major matrix W of shape [rows, cols]. The product y = W x has `rows` outputs and `cols`
// inputs. The view does not own `bytes`.
struct WeightView {
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> bytes;  // rows * cols / block_elements * block_bytes bytes
};

}  // namespace quire::kernels
