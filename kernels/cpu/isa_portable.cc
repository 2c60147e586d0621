#define QUIRE_ISA_NAMESPACE portable
#define QUIRE_SIMD_PORTABLE
#include "kernels/cpu/kernel_bodies.h"

namespace quire::kernels::cpu {

const KernelTable& PortableKernels() {
  static const KernelTable kTable = portable::MakeKernels("portable");
  return kTable;
}

}  // namespace quire::kernels::cpu
