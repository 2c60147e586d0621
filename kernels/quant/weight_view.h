#pragma once

// A weight matrix as it is stored in a model file, before a backend prepares it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kernels {

// Storage types of weights: plain floats and the ggml block formats (layouts in weight_blocks.h).
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
};

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
