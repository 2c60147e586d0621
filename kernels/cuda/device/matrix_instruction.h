#pragma once

// The instruction with which a kernel multiplies matrices on tensor cores, where there is a choice.

#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

enum class MatrixInstruction : uint8_t {
  kMma,    // mma.sync, from compute capability 8.0 on
  kWgmma,  // wgmma, with operands that TMA fetches; only compute capability 9.0
};

constexpr bool HasInstruction(const DeviceInfo& device, MatrixInstruction instruction) {
  constexpr int kHopper = 90;
  return instruction == MatrixInstruction::kMma || device.compute_capability == kHopper;
}

}  // namespace quire::kernels::cuda
