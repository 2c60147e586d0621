#define QUIRE_ISA_NAMESPACE avx2
#define QUIRE_SIMD_AVX2
#include "kernels/cpu/kernel_bodies.h"

namespace quire::kernels::cpu {

const KernelTable* Avx2Kernels() {
  static const KernelTable kTable = avx2::MakeKernels("avx2");
  return &kTable;
}

}  // namespace quire::kernels::cpu
