#include "files/record_log.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <random>
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
constexpr uint64_t kOldVersion = 1;
constexpr uint64_t kVersion = 2;
// The bytes of the file's header before the identity: magic, version, checksum and the identity's
// size; since version 2 also the sized mark.
constexpr int64_t kOldHeaderBytes = 32;
constexpr int64_t kHeaderBytes = 48;
constexpr int64_t kOldHeadBytes = 16;  // of a record of version 1
// So much of a damaged log is searched at once.
constexpr int64_t kSearched = 1 << 20;
// Space is reserved in pieces of this size, so that few records ask for it.
constexpr int64_t kReservedPiece = 64 << 10;

uint64_t Checksum(std::string_view bytes, int64_t place) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), static_cast<XXH64_hash_t>(place));
}

std::string NewMark(size_t size) {
  std::random_device random;
  std::string mark(size, '\0');
  for (char& byte : mark) byte = static_cast<char>(random());
  return mark;
}

// The header is the magic, the version, a checksum, and this.
std::string MarkedIdentity(std::string_view mark, std::string_view identity) {
  ByteWriter writer;
  writer.AddSized(mark);
  writer.AddSized(identity);
  return writer.Take();
}

std::string HeaderOf(std::string_view mark, std::string_view identity) {
  const std::string rest = MarkedIdentity(mark, identity);
  ByteWriter writer;
  writer.Add(kVersion);
  writer.Add(Checksum(rest, kVersion));
  return std::string(kMagic) + writer.Take() + rest;
}

bool ReadText(int file, int64_t place, int64_t size, std::string& bytes) {
  bytes.resize(static_cast<size_t>(size));
  return ReadAt(file, place, std::as_writable_bytes(std::span(bytes)));
}

bool WriteText(int file, int64_t place, std::string_view bytes) {
  return WriteAt(file, place, std::as_bytes(std::span(bytes)));
}

// Reads a record of version 1. Returns the place behind it, or nothing if its size is beyond the
// end of the file, or the file cannot be read. `is_whole`: it is what was written.
std::optional<int64_t> ReadOld(int file, int64_t place, int64_t size, std::string& body,
                               bool& is_whole) {
  std::string bytes;
  errno = 0;
  is_whole = false;
  if (size - place < kOldHeadBytes || !ReadText(file, place, kOldHeadBytes, bytes)) return {};
  ByteReader head(bytes);
  const uint64_t length = head.Number(), checksum = head.Number();
  const int64_t begin = place + kOldHeadBytes;
  if (length > static_cast<uint64_t>(size - begin)) return {};
  if (!ReadText(file, begin, static_cast<int64_t>(length), body)) return {};
  is_whole = Checksum(body, place) == checksum;
  return begin + static_cast<int64_t>(length);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Open(
    const StateDirectory& directory, std::string name, std::string_view identity, int64_t room,
    absl::FunctionRef<absl::Status(const Record&)> read) {
  std::unique_ptr<RecordLog> log(new RecordLog(directory, std::move(name), identity, room));
  absl::StatusOr<base::UniqueFd> file = directory.OpenFile(log->name_, /*create=*/false);
  if (absl::IsNotFound(file.status())) {
    RETURN_IF_ERROR(log->Replace([](Record&) { return false; }));
    return log;
  }
  RETURN_IF_ERROR(file.status());
  log->file_ = *std::move(file);
  RETURN_IF_ERROR(log->Read(read));
  return log;
}

absl::Status RecordLog::Read(absl::FunctionRef<absl::Status(const Record&)> read) {
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) return ErrnoStatus(name_, "read");
  const int64_t size = status.st_size;
  ASSIGN_OR_RETURN(const uint64_t version, ReadHeader(size));
  const auto counted = [&](const Record& record) {
    if (record.state != Record::State::kWhole) ++num_damaged_;
    return read(record);
  };
  is_broken_ = version == kOldVersion;
  RETURN_IF_ERROR(is_broken_ ? ReadOldRecords(size, counted) : ReadRecords(size, counted));
  is_damaged_ = num_damaged_ > 0;
  is_broken_ = is_broken_ || is_damaged_;
  num_cut_off_ = size - bytes_;
  if (is_broken_ || num_cut_off_ == 0) return absl::OkStatus();
  return ::ftruncate(file_.get(), bytes_) == 0 ? absl::OkStatus() : ErrnoStatus(name_, "truncate");
}

absl::StatusOr<uint64_t> RecordLog::ReadHeader(int64_t size) {
  const absl::Status no_log = absl::FailedPreconditionError(
      absl::StrFormat("%s: is no log, or its beginning is damaged: move it away", name_));
  constexpr int64_t kMost = kHeaderBytes + static_cast<int64_t>(kMostIdentity);
  std::string bytes;
  if (!ReadText(file_.get(), 0, std::min(size, kMost), bytes)) {
    return errno == 0 ? no_log : ErrnoStatus(name_, "read");
  }
  if (!std::string_view(bytes).starts_with(kMagic)) return no_log;
  ByteReader reader(std::string_view(bytes).substr(kMagic.size()));
  const uint64_t version = reader.Number(), checksum = reader.Number();
  if (!reader.ok() || version < kOldVersion) return no_log;
  if (version > kVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: want a log of version %d or %d, got one of version %d: start the server that wrote "
        "it, or move the file away",
        name_, kOldVersion, kVersion, version));
  }
  const bool is_old = version == kOldVersion;
  if (!is_old) mark_ = reader.Sized();
  const std::string identity(reader.Sized());
  const uint64_t wanted =
      is_old ? Checksum(identity, 0) : Checksum(MarkedIdentity(mark_, identity), kVersion);
  if (!reader.ok() || checksum != wanted || (!is_old && mark_.size() != kMarkBytes)) return no_log;
  if (identity != identity_) {
    return absl::NotFoundError(
        absl::StrFormat("%s: want a log of \"%s\", got one of \"%s\"", name_, identity_, identity));
  }
  bytes_ = (is_old ? kOldHeaderBytes : kHeaderBytes) + std::ssize(identity);
  return version;
}

absl::Status RecordLog::ReadRecords(int64_t size,
                                    absl::FunctionRef<absl::Status(const Record&)> read) {
  std::string body;
  while (size - bytes_ >= kHeadBytes) {
    errno = 0;
    const std::optional<Head> head = ReadHead(bytes_);
    // A disk that cannot be read now may be readable later, so nothing is cut off.
    if (errno != 0) return ErrnoStatus(name_, "read");
    if (!head) {
      ASSIGN_OR_RETURN(const int64_t next, FindHead(bytes_ + 1, size));
      ASSIGN_OR_RETURN(const bool is_unwritten, IsZero(bytes_, size));
      if (is_unwritten) break;
      RETURN_IF_ERROR(read({.state = Record::State::kLost}));
      bytes_ = next;
      continue;
    }
    if (head->body_bytes > static_cast<uint64_t>(size - bytes_ - kHeadBytes)) break;
    const auto body_bytes = static_cast<int64_t>(head->body_bytes);
    if (!ReadText(file_.get(), bytes_ + kHeadBytes, body_bytes, body)) {
      return ErrnoStatus(name_, "read");
    }
    Record record{.kind = head->kind, .key = head->key, .body = body};
    if (Checksum(body, bytes_) != head->body_sum) {
      record.state = Record::State::kDamaged;
      record.body = {};
    }
    RETURN_IF_ERROR(read(record));
    bytes_ += BytesOf(body.size());
  }
  return absl::OkStatus();
}

absl::Status RecordLog::ReadOldRecords(int64_t size,
                                       absl::FunctionRef<absl::Status(const Record&)> read) {
  std::string body, next_body;
  while (size - bytes_ >= kOldHeadBytes) {
    bool is_whole = false, next_is_whole = false;
    const std::optional<int64_t> end = ReadOld(file_.get(), bytes_, size, body, is_whole);
    if (errno != 0) return ErrnoStatus(name_, "read");
    if (is_whole) {
      RETURN_IF_ERROR(read({.is_old = true, .body = body}));
      bytes_ = *end;
      continue;
    }
    RETURN_IF_ERROR(read({.state = Record::State::kLost, .is_old = true}));
    if (!end) return absl::OkStatus();
    // If a record follows, the size was right.
    ReadOld(file_.get(), *end, size, next_body, next_is_whole);
    if (!next_is_whole) return absl::OkStatus();
    bytes_ = *end;
  }
  return absl::OkStatus();
}

std::optional<RecordLog::Head> RecordLog::ReadHead(int64_t place) const {
  std::string bytes;
  if (!ReadText(file_.get(), place, kHeadBytes, bytes)) return {};
  if (!std::string_view(bytes).starts_with(mark_)) return {};
  ByteReader reader(std::string_view(bytes).substr(kMarkBytes));
  Head head;
  for (uint64_t* number : {&head.body_bytes, &head.kind, &head.key, &head.body_sum}) {
    *number = reader.Number();
  }
  const std::string_view summed = std::string_view(bytes).substr(0, kHeadBytes - 8);
  if (Checksum(summed, place) != reader.Number()) return {};
  return head;
}

absl::StatusOr<int64_t> RecordLog::FindHead(int64_t place, int64_t size) const {
  std::string bytes;
  while (size - place >= kHeadBytes) {
    const int64_t length = std::min(size - place, kSearched);
    if (!ReadText(file_.get(), place, length, bytes)) return ErrnoStatus(name_, "read");
    for (size_t i = bytes.find(mark_); i != std::string::npos; i = bytes.find(mark_, i + 1)) {
      errno = 0;
      const int64_t found = place + static_cast<int64_t>(i);
      if (ReadHead(found)) return found;
      if (errno != 0) return ErrnoStatus(name_, "read");
    }
    place += length - static_cast<int64_t>(kMarkBytes) + 1;
  }
  return size;
}

absl::StatusOr<bool> RecordLog::IsZero(int64_t place, int64_t size) const {
  std::string bytes;
  while (place < size) {
    const int64_t length = std::min(size - place, kSearched);
    if (!ReadText(file_.get(), place, length, bytes)) return ErrnoStatus(name_, "read");
    if (bytes.find_first_not_of('\0') != std::string::npos) return false;
    place += length;
  }
  return true;
}

absl::Status RecordLog::Reserve(const base::UniqueFd& file, int64_t end) const {
  if (room_ == 0) return absl::OkStatus();
  const int64_t reserved = (end + room_ + kReservedPiece - 1) / kReservedPiece * kReservedPiece;
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, reserved) == 0) return absl::OkStatus();
  if (errno == EOPNOTSUPP || errno == ENOSYS) return absl::OkStatus();
  return ErrnoStatus(name_, "reserve space");
}

absl::Status RecordLog::Write(const base::UniqueFd& file, std::string_view mark,
                              const Record& record, int64_t& bytes) const {
  ByteWriter numbers;
  for (const uint64_t number :
       {uint64_t{record.body.size()}, record.kind, record.key, Checksum(record.body, bytes)}) {
    numbers.Add(number);
  }
  std::string head = std::string(mark) + numbers.Take();
  ByteWriter sum;
  sum.Add(Checksum(head, bytes));
  head += sum.Take();
  if (!WriteText(file.get(), bytes, head) ||
      !WriteText(file.get(), bytes + kHeadBytes, record.body)) {
    return ErrnoStatus(name_, "write");
  }
  bytes += BytesOf(record.body.size());
  return absl::OkStatus();
}

absl::Status RecordLog::Append(const Record& record) {
  if (is_broken_) return absl::FailedPreconditionError(name_ + ": an earlier write failed");
  if (!record.body.empty()) RETURN_IF_ERROR(Reserve(file_, bytes_ + BytesOf(record.body.size())));
  absl::Status written = Write(file_, mark_, record, bytes_);
  // A part of the record may be there. The next one would follow it, and could not be read.
  if (!written.ok()) is_broken_ = true;
  return written;
}

absl::Status RecordLog::Sync() {
  if (is_broken_) return absl::FailedPreconditionError(name_ + ": an earlier write failed");
  absl::Status named = directory_.CheckHas(name_, file_);
  if (named.ok() && ::fdatasync(file_.get()) == 0) return absl::OkStatus();
  // The system drops the data of a failed sync, and the next one succeeds without it.
  is_broken_ = true;
  return named.ok() ? ErrnoStatus(name_, "sync") : named;
}

absl::Status RecordLog::Replace(absl::FunctionRef<bool(Record& record)> next) {
  const std::string new_name = name_ + ".new";
  // What has the name was left by a server that was killed, or leads elsewhere.
  absl::Status removed = directory_.Remove(new_name);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  ASSIGN_OR_RETURN(base::UniqueFd file, directory_.OpenFile(new_name, /*create=*/true));
  const std::string mark = NewMark(kMarkBytes);
  const std::string header = HeaderOf(mark, identity_);
  if (!WriteText(file.get(), 0, header)) return ErrnoStatus(name_, "write");
  auto bytes = static_cast<int64_t>(header.size());
  for (Record record; next(record);) RETURN_IF_ERROR(Write(file, mark, record, bytes));
  RETURN_IF_ERROR(Reserve(file, bytes));
  if (::fdatasync(file.get()) != 0) return ErrnoStatus(name_, "sync");
  if (is_damaged_) RETURN_IF_ERROR(directory_.Link(name_, name_ + ".damaged"));
  is_broken_ = true;  // if the renaming fails, file_ may have no name any more
  RETURN_IF_ERROR(directory_.Rename(new_name, name_));
  file_ = std::move(file);
  mark_ = mark;
  bytes_ = bytes;
  is_broken_ = is_damaged_ = false;
  return absl::OkStatus();
}

}  // namespace quire::files
