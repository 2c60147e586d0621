#pragma once

// Named tensors of a file become prepared weights and device vectors.

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/weights/weight_map.h"
#include "kernels/backend.h"

namespace quire::engine {

struct RowRange {
  int64_t begin = 0, end = 0;
};

// A matrix by its rows, or a vector by its elements.
struct NamedRows {
  std::string name;
  int64_t rows = 0;                   // that it has, or that each of its matrices has
  std::vector<RowRange> ranges = {};  // that are wanted, in this order; empty: all
  int64_t num_matrices = 0;           // of a tensor [num_matrices, rows, cols]; 0: it is a matrix
  enum class Form { kAsIs, kTransposed, kUnitRows };  // of a matrix in the file, to be rewritten
  Form form = Form::kAsIs;
};

// A vector in device memory and its view.
struct Parameter {
  kernels::DeviceBuffer buffer;
  kernels::TensorView view;  // f32 [size]; empty for an absent optional
};

// Loads what one model needs and adds up what it came to. Borrows `weights` and `backend`.
class ParameterLoader {
 public:
  ParameterLoader(const WeightMap& weights, kernels::Backend& backend)
      : weights_(weights), backend_(backend) {}

  // The parts stacked by rows, all with `cols` columns; their file pages are dropped once repacked.
  absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> Matrix(
      const std::vector<NamedRows>& parts, int64_t cols);
  // The parts one after another, as f32; `offset` is added to each element.
  absl::StatusOr<Parameter> Vector(const std::vector<NamedRows>& parts, float offset = 0.0f);
  absl::StatusOr<Parameter> Upload(const std::vector<float>& values);

  // Rewritten matrices that prepared weights point into, which they must not outlive.
  std::vector<std::vector<std::byte>> TakeMemory() { return std::move(memory_); }

  bool Has(const std::string& name) const { return weights_.Find(name) != nullptr; }
  // Whether Matrix or Vector has been asked for it.
  bool HasRead(const std::string& name) const { return read_.contains(name); }

  int64_t num_parameters() const { return num_parameters_; }
  // As prepared; of what stays mapped, as in the file.
  int64_t bytes() const { return bytes_; }

 private:
  // The matrix of one part, whole; its bytes are the file's or of `memory`.
  absl::StatusOr<kernels::WeightView> Whole(const NamedRows& part, int64_t cols,
                                            std::vector<std::vector<std::byte>>& memory) const;

  const WeightMap& weights_;
  kernels::Backend& backend_;
  std::set<std::string> read_;
  std::vector<std::vector<std::byte>> memory_;
  int64_t num_parameters_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace quire::engine
