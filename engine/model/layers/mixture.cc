#include "engine/model/layers/mixture.h"

#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::engine {
namespace {

bool IsOfOneExpert(const char* name) { return std::strchr(name, '#') != nullptr; }

std::string NameOf(const std::string& prefix, const char* name, int64_t expert) {
  const std::string_view pattern = name;
  const size_t mark = pattern.find('#');
  if (mark == std::string_view::npos) return prefix + name;
  return absl::StrCat(prefix, base::ToAbsl(pattern.substr(0, mark)), expert,
                      base::ToAbsl(pattern.substr(mark + 1)));
}

// One expert's `rows` rows.
NamedRows RowsOf(const std::string& prefix, const char* name, int64_t expert, int64_t rows,
                 const ModelConfig& config) {
  NamedRows part{.name = NameOf(prefix, name, expert), .rows = rows};
  if (!IsOfOneExpert(name)) {
    part.num_matrices = config.num_experts;
    part.ranges = {{expert * rows, (expert + 1) * rows}};
  }
  return part;
}

// The first way that the file has a tensor of; the first of all where it has none, which is what is
// said to be missing.
const MixtureNames& Choose(const ParameterLoader& loader, const TensorNames& names,
                           const std::string& prefix) {
  for (const MixtureNames& way : names.mixtures) {
    if (way.down != nullptr && loader.Has(NameOf(prefix, way.down, 0))) return way;
  }
  return names.mixtures.front();
}

}  // namespace

absl::StatusOr<Mixture> LoadMixture(ParameterLoader& loader, const TensorNames& names,
                                    const std::string& prefix, const ModelConfig& config) {
  const MixtureNames& way = Choose(loader, names, prefix);
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  std::vector<NamedRows> up, down;
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    if (way.gate != nullptr) up.push_back(RowsOf(prefix, way.gate, expert, inner, config));
    up.push_back(RowsOf(prefix, way.up, expert, way.gate == nullptr ? 2 * inner : inner, config));
    down.push_back(RowsOf(prefix, way.down, expert, hidden, config));
  }
  Mixture mixture;
  ASSIGN_OR_RETURN(mixture.router,
                   loader.Matrix({{prefix + way.router, config.num_experts}}, hidden));
  ASSIGN_OR_RETURN(mixture.up, loader.Matrix(up, hidden));
  ASSIGN_OR_RETURN(mixture.down, loader.Matrix(down, inner));
  return mixture;
}

absl::Status RunMixture(kernels::Backend& backend, const Mixture& mixture,
                        const ModelConfig& config, kernels::TensorView normed,
                        kernels::TensorView hidden) {
  return backend.Moe({.out = hidden,
                      .input = normed,
                      .router = mixture.router.get(),
                      .up = mixture.up.get(),
                      .down = mixture.down.get(),
                      .residual = hidden,
                      .num_experts_per_token = config.num_experts_per_tok,
                      .softmax_over_chosen = config.norm_topk_prob,
                      .activation = config.activation});
}

}  // namespace quire::engine
