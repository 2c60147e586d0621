#pragma once

// A file of records that are appended one after the other, and survive the end of the process and
// of the machine.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "files/state_directory.h"

namespace quire::files {

// The file begins with a header: what the file is, and its `identity`. A record has its size, a
// checksum (XXH3, with the record's place as the seed, so that a record elsewhere is none) and its
// bytes. What follows the last whole record, such as one that was being written when the machine
// lost power, is cut off when the log is opened.
//
// After an error of Append or Sync the file may have any part of what was written since the last
// Sync, and is_broken() is true until Replace has written a new one. Not thread-safe.
class RecordLog {
 public:
  // The longest identity, in bytes.
  static constexpr size_t kMostIdentity = 4096;

  // Opens the log `name` of the directory, or creates it. Calls `read` with each record, in order.
  // `directory` must outlive the log. Returns FailedPrecondition if the file is no log, and
  // NotFound if it is one with another identity; or the first error of `read`.
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(
      const StateDirectory& directory, std::string name, std::string_view identity,
      absl::FunctionRef<absl::Status(std::string_view)> read);

  // Appends a record. It is on the disk after the next Sync. ResourceExhausted: there is no space.
  absl::Status Append(std::string_view record);
  absl::Status Sync();
  // Replaces all records by those that `next` returns one by one, until it returns false. The old
  // file holds until the new one is on the disk. After an error the old one still holds.
  absl::Status Replace(absl::FunctionRef<bool(std::string& record)> next);

  int64_t bytes() const { return bytes_; }
  bool is_broken() const { return is_broken_; }
  // The bytes after the last whole record that Open cut off.
  int64_t num_cut_off() const { return num_cut_off_; }
  // The bytes that a record of so many bytes takes.
  static int64_t BytesOf(size_t record) { return static_cast<int64_t>(record) + kRecordHeader; }

 private:
  static constexpr int64_t kRecordHeader = 16;

  RecordLog(const StateDirectory& directory, std::string name, std::string_view identity)
      : directory_(directory), name_(std::move(name)), identity_(identity) {}
  std::string Path() const { return directory_.path() + "/" + name_; }
  // Reads the file, and sets bytes_ to the end of its last whole record.
  absl::Status Read(absl::FunctionRef<absl::Status(std::string_view)> read);
  absl::Status Write(const base::UniqueFd& file, std::string_view record, int64_t& bytes) const;

  const StateDirectory& directory_;
  const std::string name_;
  const std::string identity_;
  base::UniqueFd file_;
  int64_t bytes_ = 0;
  int64_t num_cut_off_ = 0;
  bool is_broken_ = false;
};

}  // namespace quire::files
