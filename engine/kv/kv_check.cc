#include "engine/kv/kv_check.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

using kernels::DType;

template <typename Bits>
bool HasFullExponent(std::span<const std::byte> bytes, Bits exponent) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    if ((bits & exponent) == exponent) return true;
  }
  return false;
}

// Returns true if any value is an infinity or a NaN. Their exponents have every bit set. In e4m3,
// which has no infinity, the mantissa of a NaN has every bit set too.
bool HasNonFinite(std::span<const std::byte> bytes, DType dtype) {
  if (dtype == DType::kF8E4M3) return HasFullExponent(bytes, uint8_t{0x7F});
  if (dtype == DType::kF32) return HasFullExponent(bytes, uint32_t{0x7F800000});
  return HasFullExponent(bytes, static_cast<uint16_t>(dtype == DType::kF16 ? 0x7C00 : 0x7F80));
}

std::string Describe(bool keys, int64_t layer, DType dtype) {
  const std::string where = absl::StrFormat("the %s of layer %d are not finite in the %s KV cache",
                                            keys ? "keys" : "values", layer, Name(dtype));
  if (dtype != DType::kF16) return where + ": the model's weights make them so";
  return where + ", which holds up to 65504: serve the model with --kv_dtype bf16";
}

}  // namespace

absl::StatusOr<std::string> DescribeNonFiniteKv(kernels::Backend& backend, const KvCache& cache,
                                                std::span<const std::span<const int32_t>> blocks) {
  const DType dtype = cache.shape().dtype;
  std::vector<std::byte> bytes;
  for (int64_t layer = 0; layer < std::ssize(cache.shape().layers); ++layer) {
    const kernels::CacheView view = cache.layer(layer);
    for (const int32_t block : blocks[cache.group_of(layer)]) {
      for (const bool keys : {true, false}) {
        const kernels::TensorView rows = (keys ? view.keys : view.values).Rows(block, 1);
        bytes.resize(static_cast<size_t>(rows.num_bytes()));
        RETURN_IF_ERROR(backend.CopyToHost(bytes.data(), rows.raw(), rows.num_bytes()));
        RETURN_IF_ERROR(backend.Synchronize());
        if (HasNonFinite(bytes, dtype)) return Describe(keys, layer, dtype);
      }
    }
  }
  return std::string();
}

}  // namespace quire::engine
