#pragma once

// Turns named tensors of a file into prepared weights and device vectors.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/decoder_tensors.h"
#include "files/weight_map.h"
#include "kernels/backend.h"

namespace quire::engine {

// A vector in device memory and its view.
struct Parameter {
  kernels::DeviceBuffer buffer;
  kernels::TensorView view;  // f32 [size]; empty if absent
};

// Loads the parameters of one model and counts them and their bytes. Borrows `weights` and
// `backend`.
class ParameterLoader {
 public:
  ParameterLoader(const files::WeightMap& weights, kernels::Backend& backend)
      : weights_(weights), backend_(backend) {}

  // Returns a matrix of the parts, stacked by rows. Drops the file pages of parts that were
  // rewritten or repacked. Returns null if the parameter is absent.
  absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> Matrix(const StoredParameter& stored) {
    return Prepared(stored, &kernels::Backend::PrepareWeight);
  }
  // The same for a matrix that only the op Moe reads.
  absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> MoeMatrix(
      const StoredParameter& stored) {
    return Prepared(stored, &kernels::Backend::PrepareMoeWeight);
  }
  // Returns a vector of the parts, one after another, as f32. Returns an empty view if the
  // parameter is absent.
  absl::StatusOr<Parameter> Vector(const StoredParameter& stored);
  absl::StatusOr<Parameter> Upload(const std::vector<float>& values);

  // Returns the memory of the rewritten matrices into which prepared weights point. The memory must
  // outlive the weights.
  std::vector<std::vector<std::byte>> TakeMemory() { return std::move(memory_); }

  int64_t num_parameters() const { return num_parameters_; }
  // Returns the bytes of the prepared parameters. A weight that stays mapped counts with the bytes
  // that it has in the file.
  int64_t bytes() const { return bytes_; }

 private:
  using Prepare = absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> (kernels::Backend::*)(
      std::span<const kernels::WeightView>);
  absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> Prepared(const StoredParameter& stored,
                                                                    Prepare prepare);
  // Returns all values of one part of a vector.
  absl::StatusOr<std::vector<float>> Piece(const NamedRows& part) const;

  // Returns a copy, in `memory`, of some columns of a matrix. Returns InvalidArgument if the
  // columns begin or end inside a block of the weight type.
  static absl::StatusOr<kernels::WeightView> Columns(const kernels::WeightView& matrix,
                                                     const RowRange& cols,
                                                     std::vector<std::vector<std::byte>>& memory);

  const files::WeightMap& weights_;
  kernels::Backend& backend_;
  std::vector<std::vector<std::byte>> memory_;
  int64_t num_parameters_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace quire::engine
