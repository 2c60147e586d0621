#pragma once

// Writes a GGUF file from front to back. The file gets its final name only when it is complete.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "files/gguf_values.h"
#include "kernels/quant/weight_view.h"

namespace quire::files {

// A tensor to be written: row-major, outermost dimension first.
struct GgufTensor {
  std::string name;
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<int64_t> shape;  // the last size must be a whole number of blocks of `type`

  int64_t num_bytes() const;
};

class GgufFileWriter {
 public:
  // Creates a temporary file beside `path` and writes the header of GGUF version 3 to it. Errors of
  // the operating system name the temporary file. Returns ResourceExhausted when no space is left.
  static absl::StatusOr<std::unique_ptr<GgufFileWriter>> Create(std::string path,
                                                                const GgufValues& values,
                                                                std::vector<GgufTensor> tensors);
  // Removes the temporary file, unless Finish succeeded.
  ~GgufFileWriter();
  GgufFileWriter(const GgufFileWriter&) = delete;
  GgufFileWriter& operator=(const GgufFileWriter&) = delete;

  // Appends data of the tensors, in the order of the `tensors` that were passed to Create. One call
  // may append data of one tensor only.
  absl::Status Append(std::span<const std::byte> bytes);
  // Syncs the file to disk, then renames it to `path`, replacing any file of that name. Must be
  // called after all data has been appended.
  absl::Status Finish();

  int64_t file_bytes() const { return written_; }

 private:
  GgufFileWriter(std::string path, std::vector<GgufTensor> tensors);

  absl::Status Open();
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Pad();
  absl::Status SystemError(const char* action) const;

  const std::string path_;
  const std::string part_path_;  // the unfinished file
  const std::vector<GgufTensor> tensors_;
  int file_ = -1;
  int64_t written_ = 0;
  size_t tensor_ = 0;           // index of the tensor being written
  int64_t tensor_written_ = 0;  // bytes of that tensor written so far
};

}  // namespace quire::files
