#include "kernels/quant/weight_view.h"

#include <iterator>

#include "base/check.h"

namespace quire::kernels {

const WeightTypeTraits& Traits(WeightType type) {
  static constexpr WeightTypeTraits kTraits[] = {
      {"F32", 1, 4},
      {"F16", 1, 2},
      {"BF16", 1, 2},
      {"Q4_0", 32, 18},
      {"Q4_1", 32, 20},
      {"Q5_0", 32, 22},
      {"Q5_1", 32, 24},
      {"Q8_0", 32, 34},
      {"Q4_K", 256, 144},
      {"Q5_K", 256, 176},
      {"Q6_K", 256, 210},
      {"F8_E4M3", 1, 1},
      {"F8_E4M3_SCALED", kScaledBlock, kScaledBlockBytes},
  };
  const auto index = static_cast<size_t>(type);
  QUIRE_CHECK(index < std::size(kTraits)) << "weight type " << index;
  return kTraits[index];
}

}  // namespace quire::kernels
