#include "tests/kernels/kernel_testing.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"

namespace quire::testing {

using kernels::DType;
using kernels::WeightType;

std::vector<std::string> IsaPaths() {
  std::vector<std::string> paths;
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    if (kernels::CreateBackend({.name = "cpu", .cpu_isa = isa, .num_threads = 1}).ok()) {
      paths.push_back(isa);
    }
  }
  return paths;
}

std::unique_ptr<kernels::Backend> MakeBackend(const std::string& isa, int num_threads,
                                              bool pack_weights) {
  return *kernels::CreateBackend(
      {.name = "cpu", .cpu_isa = isa, .num_threads = num_threads, .pack_weights = pack_weights});
}

Owned<float> F32(std::initializer_list<int64_t> shape, std::vector<float> values) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  QUIRE_CHECK(static_cast<int64_t>(values.size()) == count) << values.size() << " of " << count;
  return Owned<float>(std::move(values), DType::kF32, shape);
}

Owned<float> F32(std::initializer_list<int64_t> shape, float fill) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return F32(shape, std::vector<float>(static_cast<size_t>(count), fill));
}

Owned<int32_t> I32(std::initializer_list<int64_t> shape, std::vector<int32_t> values) {
  return Owned<int32_t>(std::move(values), DType::kI32, shape);
}

namespace {

// Returns a number that is nearly normally distributed: the sum of 12 uniform ones, less their
// mean. std::normal_distribution would have other bits with another libm or standard library.
float NearlyNormal(std::mt19937_64& random) {
  int64_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t bits = random();
    for (int shift = 0; shift < 64; shift += 16)
      sum += static_cast<int64_t>(bits >> shift & 0xffff);
  }
  // Division by a prime near 2^16 fills the mantissa. With fewer bits, sums would be exact, and
  // tests would not notice another order of summation.
  return static_cast<float>(sum - 12 * 0x7fff) / 65521.0f;
}

}  // namespace

std::vector<float> Normal(uint64_t seed, int64_t count, float deviation) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = deviation * NearlyNormal(random);
  return values;
}

namespace {

// Returns the byte offsets of the f16 scales in a block of `type`.
std::vector<int> ScaleOffsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

}  // namespace

TestWeight RandomWeight(WeightType type, int64_t rows, int64_t cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto normal = [&random] { return 0.1f * NearlyNormal(random); };
  const kernels::WeightTypeTraits& traits = kernels::Traits(type);
  const int64_t blocks = rows * (cols / traits.block_elements);
  TestWeight weight;
  weight.bytes.resize(static_cast<size_t>(blocks * traits.block_bytes));
  for (int64_t b = 0; b < blocks; ++b) {
    std::byte* block = weight.bytes.data() + b * traits.block_bytes;
    const float value = normal();
    if (type == WeightType::kF32) {
      std::memcpy(block, &value, 4);
      continue;
    }
    if (IsFloat(type)) {
      const uint16_t bits =
          type == WeightType::kF16 ? kernels::F32ToF16(value) : kernels::F32ToBf16(value);
      std::memcpy(block, &bits, 2);
      continue;
    }
    for (int i = 0; i < traits.block_bytes; ++i) block[i] = static_cast<std::byte>(random());
    if (!IsQuantized(type)) {
      for (int i = 0; i < traits.block_bytes; ++i) {
        if ((block[i] | std::byte{0x80}) == std::byte{0xff}) block[i] ^= std::byte{1};
      }
      const float scale = std::abs(value) * 0.01f + 1e-6f;
      if (type == WeightType::kF8E4M3Scaled) std::memcpy(block, &scale, sizeof(scale));
      continue;
    }
    for (const int offset : ScaleOffsets(type)) {
      const uint16_t bits = kernels::F32ToF16(normal() * 0.1f);
      std::memcpy(block + offset, &bits, 2);
    }
  }
  weight.view = {.type = type, .rows = rows, .cols = cols, .bytes = weight.bytes};
  weight.values.resize(static_cast<size_t>(rows * cols));
  const absl::Status status = kernels::Dequantize(weight.view, 0, rows, weight.values);
  QUIRE_CHECK(status.ok()) << status;
  return weight;
}

}  // namespace quire::testing
