#pragma once

// Floating-point numbers of any dtype in a device's memory.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/device/device.h"
#include "kernels/dtype.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "kernels/tensor_view.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/rounding.h"

namespace quire::testing {

inline constexpr kernels::DType kFloats[] = {kernels::DType::kF32, kernels::DType::kF16,
                                             kernels::DType::kBF16};

inline constexpr kernels::DType kCacheTypes[] = {kernels::DType::kF32, kernels::DType::kF16,
                                                 kernels::DType::kBF16, kernels::DType::kF8E4M3};

inline std::vector<uint8_t> Encode(kernels::DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(kernels::SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == kernels::DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = values[i];
    } else if (dtype == kernels::DType::kF8E4M3) {
      bytes[i] = kernels::F32ToE4M3(values[i]);
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = dtype == kernels::DType::kF16
                                                         ? kernels::F32ToF16(values[i])
                                                         : kernels::F32ToBf16(values[i]);
    }
  }
  return bytes;
}

inline std::vector<float> Decode(kernels::DType dtype, const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(kernels::SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == kernels::DType::kF32) {
      values[i] = reinterpret_cast<const float*>(bytes.data())[i];
    } else if (dtype == kernels::DType::kF8E4M3) {
      values[i] = kernels::E4M3ToF32(bytes[i]);
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes.data())[i];
      values[i] =
          dtype == kernels::DType::kF16 ? kernels::F16ToF32(bits) : kernels::Bf16ToF32(bits);
    }
  }
  return values;
}

// Numbers of any dtype on a device. `values` holds the numbers after rounding to that dtype.
class DeviceFloats {
 public:
  DeviceFloats(kernels::cuda::Device& device, kernels::DType dtype,
               const std::vector<float>& numbers)
      : dtype_(dtype), array_(device, Encode(dtype, numbers)) {
    values = Decode(dtype, Encode(dtype, numbers));
  }
  // Makes `size` elements without setting them. They are NaN, or undefined in an array of 256 MiB
  // or more (see DeviceArray).
  DeviceFloats(kernels::cuda::Device& device, kernels::DType dtype, int64_t size)
      : dtype_(dtype), array_(device, size * kernels::SizeOf(dtype)) {}

  kernels::TensorView View(std::initializer_list<int64_t> shape) {
    return kernels::TensorView(array_.data(), dtype_, shape);
  }
  std::vector<float> ToHost() { return Decode(dtype_, array_.ToHost()); }

  std::vector<float> values;

 private:
  kernels::DType dtype_;
  DeviceArray<uint8_t> array_;
};

}  // namespace quire::testing
