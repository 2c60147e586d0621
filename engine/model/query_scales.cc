#include "engine/model/query_scales.h"

#include "base/reproducible_math.h"

namespace quire::engine {

std::vector<float> MakeQueryScales(const QueryGrowth& growth, int64_t num_positions) {
  std::vector<float> scales;
  scales.reserve(static_cast<size_t>(num_positions));
  for (int64_t position = 0; position < num_positions; ++position) {
    const auto intervals = static_cast<double>((position + 1) / growth.interval);
    scales.push_back(static_cast<float>(1.0 + growth.rate * base::Log(1.0 + intervals)));
  }
  return scales;
}

}  // namespace quire::engine
