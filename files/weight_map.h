#pragma once

// The named, shaped tensors of files on disk, from which a model is built.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/quant/weight_view.h"

namespace quire::files {

struct TensorInfo {
  std::string name;  // as in the file
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first (a GGUF's dimensions reversed)
  std::span<const std::byte> bytes;
};

// A tensor in a type that no kernel reads: an error only when a model needs it.
struct UnusableTensor {
  std::string name;
  std::string type_name;  // the format's name for it: "Q2_K", "I64"
  std::vector<int64_t> shape;
  int64_t num_bytes = 0;
};

// An open model: one GGUF file, one safetensors file, or a Hugging Face directory with shards.
// The files stay memory-mapped while this lives. Immutable after Open; thread-safe.
class WeightMap {
 public:
  virtual ~WeightMap() = default;

  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in file order
  // Null when no tensor has that name.
  virtual const TensorInfo* Find(std::string_view name) const = 0;
  // The files' other tensors, which no kernel reads.
  virtual const std::vector<UnusableTensor>& unusable_tensors() const;

  // NotFound names the tensor; InvalidArgument when it is not [rows, cols], or kernels do not read
  // its type.
  absl::StatusOr<kernels::WeightView> Matrix(std::string_view name, int64_t rows,
                                             int64_t cols) const;
  // The matrices of a tensor [count, rows, cols], stacked by rows. Errors as Matrix.
  absl::StatusOr<kernels::WeightView> Matrices(std::string_view name, int64_t count, int64_t rows,
                                               int64_t cols) const;
  // A small tensor as float32: norms, biases. Errors as Matrix.
  absl::StatusOr<std::vector<float>> Vector(std::string_view name, int64_t size) const;

  // The tensor, when it has this shape. Errors as Matrix.
  absl::StatusOr<const TensorInfo*> Require(std::string_view name,
                                            std::span<const int64_t> shape) const;

  // Tells the kernel that the pages of `bytes` are no longer needed (their weight was repacked).
  virtual void DropPages(std::span<const std::byte> bytes) const = 0;
};

// The product of the dimensions.
int64_t NumElements(std::span<const int64_t> shape);
// "[49152, 576]"
std::string ShapeToString(std::span<const int64_t> shape);

}  // namespace quire::files
