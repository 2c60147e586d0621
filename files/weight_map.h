#pragma once

// The named, shaped tensors of files on disk, from which a model is built.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/quant/weight_view.h"

namespace quire::files {

struct TensorInfo {
  std::string name;  // the name in the file
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first; a GGUF file has the reverse order
  std::span<const std::byte> bytes;
};

// A tensor of a type that no kernel reads. It is an error only when a model needs the tensor.
struct UnusableTensor {
  std::string name;
  std::string type_name;  // the format's name for the type: "Q2_K", "I64"
  std::vector<int64_t> shape;
  int64_t num_bytes = 0;
};

// An open model: one GGUF file, one safetensors file, or a Hugging Face directory with shards. The
// files stay memory-mapped while this lives. Immutable once it is open; thread-safe.
class WeightMap {
 public:
  virtual ~WeightMap() = default;

  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in file order
  // Returns null when no tensor has that name.
  virtual const TensorInfo* Find(std::string_view name) const = 0;
  // Returns the tensors of types that no kernel reads.
  virtual const std::vector<UnusableTensor>& unusable_tensors() const;

  // Returns the tensor `name`, which must have the shape [rows, cols]. Returns NotFound when there
  // is no such tensor, and InvalidArgument when the tensor has another shape or a type that no
  // kernel reads. The error names the tensor.
  absl::StatusOr<kernels::WeightView> Matrix(std::string_view name, int64_t rows,
                                             int64_t cols) const;
  // Returns a tensor of shape [count, rows, cols] as one matrix of count * rows rows. Errors are
  // the same as in Matrix.
  absl::StatusOr<kernels::WeightView> Matrices(std::string_view name, int64_t count, int64_t rows,
                                               int64_t cols) const;
  // Returns the tensor `name`, such as a norm or a bias, as float32. The tensor must have the shape
  // [size]. Errors are the same as in Matrix.
  absl::StatusOr<std::vector<float>> Vector(std::string_view name, int64_t size) const;

  // Returns the tensor `name`, which must have the shape `shape`. Errors are the same as in Matrix.
  absl::StatusOr<const TensorInfo*> Require(std::string_view name,
                                            std::span<const int64_t> shape) const;

  // Tells the operating system that the pages of `bytes` are no longer needed, for example because
  // the weight was repacked.
  virtual void DropPages(std::span<const std::byte> bytes) const = 0;
};

// Tensors whose bytes belong to another object, which outlives this, or to a subclass. Thread-safe
// once nobody changes them.
class TensorList : public WeightMap {
 public:
  TensorList() = default;
  explicit TensorList(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {}

  const std::vector<TensorInfo>& tensors() const final { return tensors_; }
  const TensorInfo* Find(std::string_view name) const final;
  void DropPages(std::span<const std::byte>) const final {}

 protected:
  std::vector<TensorInfo>& mutable_tensors() { return tensors_; }

 private:
  std::vector<TensorInfo> tensors_;
};

// Returns the product of the dimensions.
int64_t NumElements(std::span<const int64_t> shape);
// Returns the shape as text, such as "[49152, 576]".
std::string ShapeToString(std::span<const int64_t> shape);

}  // namespace quire::files
