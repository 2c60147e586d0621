#pragma once

// Helpers of the kernel tests: the CPU backends that this machine can run, tensors that own their
// memory, random input, and weights of any type.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/backend_registry.h"

namespace quire::testing {

// Returns the names of the ISA paths that this machine can run, portable first.
std::vector<std::string> IsaPaths();
std::unique_ptr<kernels::Backend> MakeBackend(const std::string& isa, int num_threads = 2,
                                              bool pack_weights = true);

// A tensor and the memory behind it.
template <typename T>
struct Owned {
  std::vector<T> values;
  kernels::TensorView view;

  Owned() = default;
  Owned(std::vector<T> v, kernels::DType dtype, std::initializer_list<int64_t> shape)
      : values(std::move(v)), view(values.data(), dtype, shape) {}
};

Owned<float> F32(std::initializer_list<int64_t> shape, std::vector<float> values);
Owned<float> F32(std::initializer_list<int64_t> shape, float fill = 0.0f);
Owned<int32_t> I32(std::initializer_list<int64_t> shape, std::vector<int32_t> values);

// Returns nearly normally distributed random numbers. They depend only on the arguments, and have
// the same bits on every machine.
std::vector<float> Normal(uint64_t seed, int64_t count, float deviation = 1.0f);

// A random weight and its float32 values. The elements of a float type are nearly normally
// distributed. A block type has random bits, except that its scales are small random f16 numbers.
// The scales of e4m3 are small positive float32 numbers, and no code of it is NaN.
struct TestWeight {
  std::vector<std::byte> bytes;
  kernels::WeightView view;
  std::vector<float> values;  // [rows, cols]
};
TestWeight RandomWeight(kernels::WeightType type, int64_t rows, int64_t cols, uint64_t seed);

inline constexpr kernels::WeightType kAllWeightTypes[] = {
    kernels::WeightType::kF32,         kernels::WeightType::kF16,  kernels::WeightType::kBF16,
    kernels::WeightType::kQ4_0,        kernels::WeightType::kQ4_1, kernels::WeightType::kQ5_0,
    kernels::WeightType::kQ5_1,        kernels::WeightType::kQ8_0, kernels::WeightType::kQ4_K,
    kernels::WeightType::kQ5_K,        kernels::WeightType::kQ6_K, kernels::WeightType::kF8E4M3,
    kernels::WeightType::kF8E4M3Scaled};

inline bool IsFloat(kernels::WeightType type) { return type <= kernels::WeightType::kBF16; }
// True for the types of ggml's blocks, with which the CPU backend multiplies integers.
inline bool IsQuantized(kernels::WeightType type) {
  return !IsFloat(type) && type <= kernels::WeightType::kQ6_K;
}

}  // namespace quire::testing
