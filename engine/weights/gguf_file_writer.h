#pragma once

// Writes a GGUF file from front to back; it has its name only once it is whole.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/weights/gguf_values.h"
#include "kernels/weight_view.h"

namespace quire::engine {

// A tensor that is to come, row-major, outermost first.
struct GgufTensor {
  std::string name;
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<int64_t> shape;  // the last a whole number of the type's blocks

  int64_t num_bytes() const;
};

class GgufFileWriter {
 public:
  // Writes the header of version 3 to a file of its own beside `path`. Errors of the system name
  // that file; ResourceExhausted where no space is left.
  static absl::StatusOr<std::unique_ptr<GgufFileWriter>> Create(std::string path,
                                                                const GgufValues& values,
                                                                std::vector<GgufTensor> tensors);
  // Removes what is not finished.
  ~GgufFileWriter();
  GgufFileWriter(const GgufFileWriter&) = delete;
  GgufFileWriter& operator=(const GgufFileWriter&) = delete;

  // More of the tensors' data, in their order and of one tensor at a time.
  absl::Status Append(std::span<const std::byte> bytes);
  // Once all of it has been appended: on disk, then renamed to `path`, whatever was there.
  absl::Status Finish();

  int64_t file_bytes() const { return written_; }

 private:
  GgufFileWriter(std::string path, std::vector<GgufTensor> tensors);

  absl::Status Open();
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Pad();
  absl::Status SystemError(const char* action) const;

  const std::string path_;
  const std::string part_path_;  // what is being written
  const std::vector<GgufTensor> tensors_;
  int file_ = -1;
  int64_t written_ = 0;
  size_t tensor_ = 0;           // that the next bytes are of
  int64_t tensor_written_ = 0;  // of it
};

}  // namespace quire::engine
