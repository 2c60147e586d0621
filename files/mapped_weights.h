#pragma once

// A WeightMap over memory-mapped files. It owns the mappings, and the list of the tensors that the
// headers of the files describe.

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

#include "files/mapped_file.h"
#include "files/weight_map.h"

namespace quire::files {

class MappedWeights final : public WeightMap {
 public:
  // `tensors` must point into `files`. Returns InvalidArgument when two tensors have the same name.
  // The data of a tensor in a safetensors file may begin at any byte, so Create copies each tensor
  // that is not aligned for its type. Every tensor of plain floats can then be read in place.
  static absl::StatusOr<std::unique_ptr<MappedWeights>> Create(
      std::vector<std::unique_ptr<MappedFile>> files, std::vector<TensorInfo> tensors,
      std::vector<UnusableTensor> unusable_tensors);

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override;
  const std::vector<UnusableTensor>& unusable_tensors() const override { return unusable_tensors_; }
  void DropPages(std::span<const std::byte> bytes) const override;

 private:
  MappedWeights() = default;

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<UnusableTensor> unusable_tensors_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::unordered_map<std::string_view, const TensorInfo*> index_;
};

}  // namespace quire::files
