#include "files/record_log.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <unistd.h>
#include <utility>
#include <xxhash.h>

#include <sys/stat.h>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "files/byte_codec.h"
#include "files/file_io.h"

namespace quire::files {
namespace {

constexpr std::string_view kMagic = "quirelog";
constexpr uint64_t kVersion = 1;
// Magic, version, checksum of the identity, size of the identity.
constexpr int64_t kFixedHeader = 32;

uint64_t Checksum(std::string_view bytes, int64_t place) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), static_cast<XXH64_hash_t>(place));
}

std::string HeaderOf(std::string_view identity) {
  ByteWriter writer;
  writer.Add(kVersion);
  writer.Add(Checksum(identity, 0));
  writer.AddSized(identity);
  return std::string(kMagic) + writer.Take();
}

bool ReadText(int file, int64_t place, int64_t size, std::string& bytes) {
  bytes.resize(static_cast<size_t>(size));
  return ReadAt(file, place, std::as_writable_bytes(std::span(bytes)));
}

bool WriteText(int file, int64_t place, std::string_view bytes) {
  return WriteAt(file, place, std::as_bytes(std::span(bytes)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Open(
    const StateDirectory& directory, std::string name, std::string_view identity,
    absl::FunctionRef<absl::Status(std::string_view)> read) {
  std::unique_ptr<RecordLog> log(new RecordLog(directory, std::move(name), identity));
  absl::StatusOr<base::UniqueFd> file = directory.OpenFile(log->name_, /*create=*/false);
  if (absl::IsNotFound(file.status())) {
    RETURN_IF_ERROR(log->Replace([](std::string&) { return false; }));
    return log;
  }
  RETURN_IF_ERROR(file.status());
  log->file_ = *std::move(file);
  RETURN_IF_ERROR(log->Read(read));
  return log;
}

absl::Status RecordLog::Read(absl::FunctionRef<absl::Status(std::string_view)> read) {
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) return ErrnoStatus(Path(), "read");
  const int64_t size = status.st_size;
  const std::string wanted = HeaderOf(identity_);
  std::string bytes;
  const auto is_log = [&] {
    if (!ReadText(file_.get(), 0, std::min(size, kFixedHeader), bytes)) return false;
    if (size < kFixedHeader || !std::string_view(bytes).starts_with(kMagic)) return false;
    ByteReader reader(std::string_view(bytes).substr(kMagic.size()));
    const uint64_t version = reader.Number(), checksum = reader.Number(), length = reader.Number();
    if (version != kVersion || length > kMostIdentity) return false;
    return ReadText(file_.get(), kFixedHeader, static_cast<int64_t>(length), bytes) &&
           Checksum(bytes, 0) == checksum;
  };
  if (!is_log()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: is no log of this version, or its beginning is damaged: move it away", Path()));
  }
  if (bytes != identity_) {
    return absl::NotFoundError(
        absl::StrFormat("%s: want a log of \"%s\", got one of \"%s\"", Path(), identity_, bytes));
  }

  bytes_ = static_cast<int64_t>(wanted.size());
  errno = 0;
  while (bytes_ + kRecordHeader <= size) {
    if (!ReadText(file_.get(), bytes_, kRecordHeader, bytes)) break;
    ByteReader header(bytes);
    const uint64_t length = header.Number(), checksum = header.Number();
    if (length > static_cast<uint64_t>(size - bytes_ - kRecordHeader)) break;
    if (!ReadText(file_.get(), bytes_ + kRecordHeader, static_cast<int64_t>(length), bytes)) break;
    if (Checksum(bytes, bytes_) != checksum) break;
    RETURN_IF_ERROR(read(bytes));
    bytes_ += BytesOf(length);
    errno = 0;
  }
  // A disk that cannot be read now may be readable later, so nothing is cut off.
  if (errno != 0) return ErrnoStatus(Path(), "read");
  num_cut_off_ = size - bytes_;
  if (num_cut_off_ > 0 && ::ftruncate(file_.get(), bytes_) != 0) {
    return ErrnoStatus(Path(), "truncate");
  }
  return absl::OkStatus();
}

absl::Status RecordLog::Write(const base::UniqueFd& file, std::string_view record,
                              int64_t& bytes) const {
  ByteWriter header;
  header.Add(record.size());
  header.Add(Checksum(record, bytes));
  if (!WriteText(file.get(), bytes, header.Take()) ||
      !WriteText(file.get(), bytes + kRecordHeader, record)) {
    return ErrnoStatus(Path(), "write");
  }
  bytes += BytesOf(record.size());
  return absl::OkStatus();
}

absl::Status RecordLog::Append(std::string_view record) {
  if (is_broken_) return absl::FailedPreconditionError(Path() + ": an earlier write failed");
  absl::Status written = Write(file_, record, bytes_);
  // A part of the record may be there. The next one would follow it, and could not be read.
  if (!written.ok()) is_broken_ = true;
  return written;
}

absl::Status RecordLog::Sync() {
  if (is_broken_) return absl::FailedPreconditionError(Path() + ": an earlier write failed");
  if (::fdatasync(file_.get()) == 0) return absl::OkStatus();
  // The system drops the data of a failed sync, and the next one succeeds without it.
  is_broken_ = true;
  return ErrnoStatus(Path(), "sync");
}

absl::Status RecordLog::Replace(absl::FunctionRef<bool(std::string& record)> next) {
  const std::string new_name = name_ + ".new";
  ASSIGN_OR_RETURN(base::UniqueFd file, directory_.OpenFile(new_name, /*create=*/true));
  if (::ftruncate(file.get(), 0) != 0) return ErrnoStatus(Path(), "truncate");
  const std::string header = HeaderOf(identity_);
  if (!WriteText(file.get(), 0, header)) return ErrnoStatus(Path(), "write");
  auto bytes = static_cast<int64_t>(header.size());
  for (std::string record; next(record);) RETURN_IF_ERROR(Write(file, record, bytes));
  if (::fdatasync(file.get()) != 0) return ErrnoStatus(Path(), "sync");
  is_broken_ = true;  // if the renaming fails, file_ may have no name any more
  RETURN_IF_ERROR(directory_.Rename(new_name, name_));
  file_ = std::move(file);
  bytes_ = bytes;
  is_broken_ = false;
  return absl::OkStatus();
}

}  // namespace quire::files
