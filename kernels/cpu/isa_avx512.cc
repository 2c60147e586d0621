#define QUIRE_ISA_NAMESPACE avx512
#define QUIRE_SIMD_AVX512
#include "kernels/cpu/kernel_bodies.h"

namespace quire::kernels::cpu {

const KernelTable* Avx512Kernels() {
  static const KernelTable kTable = avx512::MakeKernels("avx512");
  return &kTable;
}

}  // namespace quire::kernels::cpu
