#include "convert/tensor_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace quire::convert {
namespace {

// Returns the rows of a parameter, in the order in which kernels take them.
std::vector<SourceRows> RowsOf(const engine::StoredParameter& parameter) {
  std::vector<SourceRows> rows;
  for (const engine::NamedRows& part : parameter.parts) {
    engine::NamedRows whole = part;
    whole.ranges.clear();
    for (const engine::RowRange& range : engine::RangesOf(part)) {
      rows.push_back({whole, range.begin, range.end - range.begin});
    }
  }
  return rows;
}

// Returns true if the GGUF file has another order of rotary rows than the model.
bool TurnsRows(const engine::ModelConfig& config, kernels::RopeLayout gguf_layout) {
  return !config.ropes.empty() && config.ropes[0].layout != gguf_layout;
}

// Reorders the rotary rows of each head of queries and keys: with n rotary rows in a head, rows i
// and i + n / 2 become rows 2i and 2i + 1. The rows of the values, which follow, keep their order.
// PlanTensors checks that all layers have equal heads.
std::vector<SourceRows> Interleaved(const std::vector<SourceRows>& rows,
                                    const engine::ModelConfig& config) {
  const engine::AttentionSpec& attention = config.layers[0].attention;
  const int64_t dim = attention.key_dim, half = config.ropes[0].rope_dim / 2;
  const int64_t heads = attention.num_heads + attention.num_kv_heads;
  std::vector<SourceRows> turned;
  const auto add = [&](int64_t begin, int64_t count) {
    std::ranges::move(SliceRuns(rows, begin, count), std::back_inserter(turned));
  };
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      add(head * dim + i, 1);
      add(head * dim + half + i, 1);
    }
    add(head * dim + 2 * half, dim - 2 * half);
  }
  add(heads * dim, attention.v_size());
  return turned;
}

class Planner {
 public:
  Planner(const engine::ModelConfig& config, kernels::RopeLayout gguf_layout,
          const ChooseType& choose)
      : config_(config), gguf_layout_(gguf_layout), choose_(choose) {}

  absl::Status Add(const engine::StoredParameter& source, const engine::StoredParameter& target);
  std::vector<PlannedTensor> Take();

 private:
  // The pieces of one tensor, keyed by the index of their first row in the tensor.
  using Pieces = std::map<int64_t, std::vector<SourceRows>>;

  PlannedTensor Describe(const engine::NamedRows& part,
                         const engine::StoredParameter& source) const;
  // True if the rows of queries and keys in `source` must be reordered.
  bool IsTurned(const engine::StoredParameter& source) const;

  const engine::ModelConfig& config_;
  const kernels::RopeLayout gguf_layout_;
  const ChooseType& choose_;
  std::vector<PlannedTensor> tensors_;  // without rows, which Take() adds from `pieces_`
  std::map<std::string, Pieces> pieces_;
};

bool Planner::IsTurned(const engine::StoredParameter& source) const {
  return source.role == engine::ParameterRole::kQkv && TurnsRows(config_, gguf_layout_);
}

PlannedTensor Planner::Describe(const engine::NamedRows& part,
                                const engine::StoredParameter& source) const {
  PlannedTensor tensor = {.name = part.name, .cols = source.cols, .offset = source.offset};
  if (part.num_matrices != 0) tensor.shape.push_back(part.num_matrices);
  tensor.shape.push_back(part.rows);
  if (source.cols == 0) return tensor;
  tensor.shape.push_back(source.cols);
  const bool small = source.role == engine::ParameterRole::kRouter ||
                     source.role == engine::ParameterRole::kPositions;
  if (!small) tensor.type = choose_(source.role, source.cols);
  return tensor;
}

absl::Status Planner::Add(const engine::StoredParameter& source,
                          const engine::StoredParameter& target) {
  if (source.empty()) return absl::OkStatus();
  if (target.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", source.parts[0].name,
                                                   ": a GGUF file of the ", config_.architecture,
                                                   " architecture has no place for it"));
  }
  std::vector<SourceRows> rows = RowsOf(source);
  if (IsTurned(source)) rows = Interleaved(rows, config_);
  int64_t taken = 0;
  for (const engine::NamedRows& part : target.parts) {
    Pieces& pieces = pieces_[part.name];
    if (pieces.empty()) tensors_.push_back(Describe(part, source));
    for (const engine::RowRange& range : engine::RangesOf(part)) {
      pieces[range.begin] = SliceRuns(rows, taken, range.end - range.begin);
      taken += range.end - range.begin;
    }
  }
  return absl::OkStatus();
}

std::vector<PlannedTensor> Planner::Take() {
  for (PlannedTensor& tensor : tensors_) {
    for (auto& [begin, rows] : pieces_[tensor.name]) {
      std::ranges::move(rows, std::back_inserter(tensor.rows));
    }
  }
  return std::move(tensors_);
}

}  // namespace

absl::StatusOr<std::vector<PlannedTensor>> PlanTensors(const engine::ModelConfig& config,
                                                       const engine::TensorNames& names,
                                                       const files::WeightMap& weights,
                                                       kernels::RopeLayout gguf_layout,
                                                       const engine::TensorNames& gguf_names,
                                                       const ChooseType& choose) {
  if (TurnsRows(config, gguf_layout) && !engine::HeadsAreAlike(config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: heads that differ between layers: cannot be written to a GGUF file of the ",
        config.architecture, " architecture, which has another order of rotary rows"));
  }
  const engine::DecoderTensors source =
      engine::FindTensors(config, names, engine::HasTensorIn(weights));
  RETURN_IF_ERROR(engine::CheckTensors(source, weights, names, config.architecture));
  const engine::DecoderTensors target =
      engine::FindTensors(config, gguf_names, [](std::string_view) { return true; });
  const std::vector<const engine::StoredParameter*> from = engine::AllParameters(source);
  const std::vector<const engine::StoredParameter*> to = engine::AllParameters(target);
  Planner planner(config, gguf_layout, choose);
  for (size_t i = 0; i < from.size(); ++i) RETURN_IF_ERROR(planner.Add(*from[i], *to[i]));
  return planner.Take();
}

}  // namespace quire::convert
