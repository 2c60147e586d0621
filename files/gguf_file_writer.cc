#include "files/gguf_file_writer.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "files/ggml_types.h"
#include "files/gguf.h"
#include "files/weight_map.h"

namespace quire::files {
namespace {

constexpr uint32_t kVersion = 3;

int64_t Padding(int64_t size) {
  return (kGgufDefaultAlignment - size % kGgufDefaultAlignment) % kGgufDefaultAlignment;
}

std::string Header(const GgufValues& values, const std::vector<GgufTensor>& tensors) {
  std::string header =
      absl::StrCat(base::ToAbsl(kGgufMagic), GgufBytes(kVersion),
                   GgufBytes(static_cast<uint64_t>(tensors.size())),
                   GgufBytes(static_cast<uint64_t>(values.size())), values.Bytes());
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    header += GgufBytes(std::string_view(tensor.name));
    header += GgufBytes(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {  // the file has the innermost dimension first
      header += GgufBytes(static_cast<uint64_t>(tensor.shape[i]));
    }
    header += GgufBytes(GgmlTypeOf(tensor.type).id);
    header += GgufBytes(static_cast<uint64_t>(offset));
    offset += tensor.num_bytes() + Padding(tensor.num_bytes());
  }
  return header;
}

}  // namespace

int64_t GgufTensor::num_bytes() const {
  const GgmlType& ggml = GgmlTypeOf(type);
  return NumElements(shape) / ggml.block_elements * ggml.block_bytes;
}

GgufFileWriter::GgufFileWriter(std::string path, std::vector<GgufTensor> tensors)
    : path_(std::move(path)),
      part_path_(absl::StrCat(path_, ".", getpid(), ".part")),
      tensors_(std::move(tensors)) {}

GgufFileWriter::~GgufFileWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(part_path_.c_str());
}

absl::StatusOr<std::unique_ptr<GgufFileWriter>> GgufFileWriter::Create(
    std::string path, const GgufValues& values, std::vector<GgufTensor> tensors) {
  auto writer = absl::WrapUnique(new GgufFileWriter(std::move(path), std::move(tensors)));
  RETURN_IF_ERROR(writer->Open());
  const std::string header = Header(values, writer->tensors_);
  RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span(header))));
  RETURN_IF_ERROR(writer->Pad());
  return writer;
}

absl::Status GgufFileWriter::SystemError(const char* action) const {
  return absl::ErrnoToStatus(errno, absl::StrCat(part_path_, ": ", action));
}

absl::Status GgufFileWriter::Open() {
  file_ = open(part_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return file_ < 0 ? SystemError("cannot be made") : absl::OkStatus();
}

absl::Status GgufFileWriter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("cannot be written");
    written_ += count;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status GgufFileWriter::Pad() {
  static constexpr std::byte kZeros[kGgufDefaultAlignment] = {};
  return Write(std::span(kZeros, static_cast<size_t>(Padding(written_))));
}

absl::Status GgufFileWriter::Append(std::span<const std::byte> bytes) {
  const int64_t left =
      tensor_ < tensors_.size() ? tensors_[tensor_].num_bytes() - tensor_written_ : 0;
  if (std::ssize(bytes) > left) {
    return absl::InternalError(absl::StrCat(part_path_, ": want at most ", left,
                                            " bytes more of a tensor, got ", bytes.size()));
  }
  RETURN_IF_ERROR(Write(bytes));
  tensor_written_ += std::ssize(bytes);
  if (std::ssize(bytes) < left) return absl::OkStatus();
  ++tensor_;
  tensor_written_ = 0;
  return Pad();
}

absl::Status GgufFileWriter::Finish() {
  if (tensor_ != tensors_.size()) {
    return absl::InternalError(
        absl::StrCat(part_path_, ": the data of ", tensors_[tensor_].name, " is not all there"));
  }
  if (fsync(file_) != 0) return SystemError("cannot be written");
  if (rename(part_path_.c_str(), path_.c_str()) != 0) return SystemError("cannot be renamed");
  close(std::exchange(file_, -1));
  return absl::OkStatus();
}

}  // namespace quire::files
