#define QUIRE_ISA_NAMESPACE amx
#define QUIRE_SIMD_AVX512
#define QUIRE_AMX_TILES
#include "kernels/cpu/kernel_bodies.h"

namespace quire::kernels::cpu {

const KernelTable* AmxKernels() {
  static const KernelTable kTable = amx::MakeKernels("amx");
  return &kTable;
}

}  // namespace quire::kernels::cpu
