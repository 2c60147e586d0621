#include "files/mapped_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "files/printable.h"

namespace quire::files {
namespace {

// Returns the alignment that a tensor of `type` needs. For quantised types this is the alignment of
// the 2-byte scale in a block.
size_t RequiredAlignment(kernels::WeightType type) {
  return type == kernels::WeightType::kF32 ? 4 : 2;
}

bool IsAligned(const TensorInfo& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.bytes.data()) % RequiredAlignment(tensor.type) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedWeights>> MappedWeights::Create(
    std::vector<std::unique_ptr<MappedFile>> files, std::vector<TensorInfo> tensors,
    std::vector<UnusableTensor> unusable_tensors) {
  std::unique_ptr<MappedWeights> weights(new MappedWeights());
  weights->files_ = std::move(files);
  weights->tensors_ = std::move(tensors);
  weights->unusable_tensors_ = std::move(unusable_tensors);
  for (TensorInfo& tensor : weights->tensors_) {
    if (!weights->index_.emplace(tensor.name, &tensor).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s: want each name once, got it in two files", Printable(tensor.name)));
    }
    if (IsAligned(tensor)) continue;
    auto copy = std::make_unique<std::byte[]>(tensor.bytes.size());
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), copy.get());
    tensor.bytes = {copy.get(), tensor.bytes.size()};
    weights->copies_.push_back(std::move(copy));
  }
  return weights;
}

const TensorInfo* MappedWeights::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : found->second;
}

void MappedWeights::DropPages(std::span<const std::byte> bytes) const {
  for (const auto& file : files_) {
    const std::span<const std::byte> all = file->bytes();
    const bool inside = !bytes.empty() && std::greater_equal<>()(bytes.data(), all.data()) &&
                        std::less_equal<>()(bytes.data() + bytes.size(), all.data() + all.size());
    if (inside) return file->DropPages(bytes);
  }
}

}  // namespace quire::files
