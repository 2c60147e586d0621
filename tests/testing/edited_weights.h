#pragma once

// The tensors of a model's files, some of which a test replaces.

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/weight_map.h"

namespace quire::testing {

class EditedWeights final : public files::TensorList {
 public:
  // `from` must outlive this.
  explicit EditedWeights(const files::WeightMap& from) : TensorList(from.tensors()) {}

  void Remove(std::string_view name) { std::erase_if(mutable_tensors(), Has(name)); }
  files::TensorInfo& At(std::string_view name) {
    return *std::ranges::find_if(mutable_tensors(), Has(name));
  }
  void Add(const files::TensorInfo& tensor) { mutable_tensors().push_back(tensor); }
  // Adds or replaces a tensor in F32.
  void Set(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    Remove(name);
    storage_.push_back(std::move(values));
    Add({name, kernels::WeightType::kF32, std::move(shape),
         std::as_bytes(std::span(storage_.back()))});
  }
  // Multiplies the one element of a tensor in F32.
  void Multiply(const std::string& name, float factor) {
    const files::TensorInfo& tensor = At(name);
    float value;
    std::memcpy(&value, tensor.bytes.data(), sizeof(value));
    Set(name, tensor.shape, {value * factor});
  }

 private:
  static std::function<bool(const files::TensorInfo&)> Has(std::string_view name) {
    return [name](const files::TensorInfo& tensor) { return tensor.name == name; };
  }

  std::deque<std::vector<float>> storage_;
};

}  // namespace quire::testing
