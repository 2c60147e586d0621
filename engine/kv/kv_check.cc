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

// Returns true if any value is an infinity or a NaN. Their exponents have every bit set.
bool HasNonFinite(std::span<const std::byte> bytes, DType dtype) {
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
  int64_t num_layers = 0;
  for (const KvGroup& group : cache.groups()) num_layers += std::ssize(group.layers);
  const DType dtype = cache.shape().dtype;
  std::vector<std::byte> bytes(static_cast<size_t>(cache.shape().bytes_per_block()));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const kernels::CacheView view = cache.layer(layer);
    const auto* data = static_cast<const std::byte*>(view.keys.raw());
    const int64_t stride = view.block_stride() * kernels::SizeOf(dtype);
    for (const int32_t block : blocks[cache.group_of(layer)]) {
      RETURN_IF_ERROR(backend.CopyToHost(bytes.data(), data + block * stride, std::ssize(bytes)));
      RETURN_IF_ERROR(backend.Synchronize());
      const std::span<const std::byte> both = bytes;
      for (const bool keys : {true, false}) {
        const size_t half = both.size() / 2;
        if (HasNonFinite(keys ? both.first(half) : both.last(half), dtype)) {
          return Describe(keys, layer, dtype);
        }
      }
    }
  }
  return std::string();
}

}  // namespace quire::engine
