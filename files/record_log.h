#pragma once

// A file of records that are appended one after the other, and survive the end of the process and
// of the machine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "files/state_directory.h"

namespace quire::files {

// The file begins with a header: what the file is, its `identity`, and a mark that is drawn for
// each file. A record is a head and a body. The head begins with the mark, and has the record's
// size, kind and key, a checksum of the body and one of itself (XXH3, with the record's place as
// the seed, so that a record elsewhere is none). So the damage of a body costs that body alone.
// Behind the damage of a head the next mark tells where records go on; no client can write one,
// since none knows it.
//
// A record that was being written when the machine lost power has no end, or has only zeros. It is
// cut off when the log is opened. A damaged file stays as `name`.damaged when Replace has written a
// new one.
//
// In version 1, a record is its size, one checksum and its bytes. Such a log is read, and is broken
// until it is replaced. Damage of a size ends it.
//
// After an error of Append or Sync the file may have any part of what was written since the last
// Sync, and is_broken() is true until Replace has written a new one. Not thread-safe.
class RecordLog {
 public:
  // The longest identity, in bytes.
  static constexpr size_t kMostIdentity = 4096;

  struct Record {
    enum class State : uint8_t {
      kWhole,
      kDamaged,  // the body is not what was written; the rest is
      kLost,     // one or more records, of which nothing is known
    };
    State state = State::kWhole;
    bool is_old = false;  // of version 1, where kind and key are 0
    uint64_t kind = 0;    // these two as they were given
    uint64_t key = 0;
    std::string_view body;  // empty unless it is whole
  };

  // Opens the log `name` of the directory, or creates it. Calls `read` with each record, in order.
  // `room`: see Append. `directory` must outlive the log. Returns FailedPrecondition if the file is
  // no log, or a newer one than this code knows, and NotFound if it is one with another identity;
  // or the first error of `read`. The file is then as it was.
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(
      const StateDirectory& directory, std::string name, std::string_view identity, int64_t room,
      absl::FunctionRef<absl::Status(const Record&)> read);

  // Appends a record. It is on the disk after the next Sync. ResourceExhausted: there is no space.
  // Where the file system can reserve space, `room` bytes stay reserved behind a record with a
  // body. Records without one may use them, and so can be written to a full disk; and what a record
  // with a body lacks is found before it is written, so that the log is not broken.
  absl::Status Append(const Record& record);
  // Returns an error also if the file has lost its name, and so would not be found again.
  absl::Status Sync();
  // Replaces all records by those that `next` returns one by one, until it returns false. What
  // `next` sets must stay until it is called again. The old file holds until the new one is on the
  // disk. After an error the old one still holds.
  absl::Status Replace(absl::FunctionRef<bool(Record& record)> next);

  int64_t bytes() const { return bytes_; }
  bool is_broken() const { return is_broken_; }
  // The bytes after the last whole record that Open cut off.
  int64_t num_cut_off() const { return num_cut_off_; }
  // The number of damaged and of lost records that Open came across.
  int64_t num_damaged() const { return num_damaged_; }
  // The bytes that a record with a body of so many bytes takes.
  static int64_t BytesOf(size_t body) { return static_cast<int64_t>(body) + kHeadBytes; }

 private:
  static constexpr size_t kMarkBytes = 8;
  static constexpr int64_t kHeadBytes = 48;  // the mark, and five numbers

  struct Head {
    uint64_t body_bytes = 0;
    uint64_t kind = 0;
    uint64_t key = 0;
    uint64_t body_sum = 0;
  };

  RecordLog(const StateDirectory& directory, std::string name, std::string_view identity,
            int64_t room)
      : directory_(directory), name_(std::move(name)), identity_(identity), room_(room) {}
  // Reads the file, and sets bytes_ to the end of its last whole record.
  absl::Status Read(absl::FunctionRef<absl::Status(const Record&)> read);
  // Returns the version of the log, and sets mark_ and bytes_.
  absl::StatusOr<uint64_t> ReadHeader(int64_t size);
  absl::Status ReadRecords(int64_t size, absl::FunctionRef<absl::Status(const Record&)> read);
  absl::Status ReadOldRecords(int64_t size, absl::FunctionRef<absl::Status(const Record&)> read);
  // Returns nothing, with errno as ReadAt leaves it, unless a whole head is at this place.
  std::optional<Head> ReadHead(int64_t place) const;
  // Returns the place of the first whole head from `place` on, or `size` if there is none.
  absl::StatusOr<int64_t> FindHead(int64_t place, int64_t size) const;
  absl::StatusOr<bool> IsZero(int64_t place, int64_t size) const;
  absl::Status Reserve(const base::UniqueFd& file, int64_t end) const;
  absl::Status Write(const base::UniqueFd& file, std::string_view mark, const Record& record,
                     int64_t& bytes) const;

  const StateDirectory& directory_;
  const std::string name_;
  const std::string identity_;
  const int64_t room_;
  base::UniqueFd file_;
  std::string mark_;
  int64_t bytes_ = 0;
  int64_t num_cut_off_ = 0;
  int64_t num_damaged_ = 0;
  bool is_broken_ = false;
  bool is_damaged_ = false;  // until it is replaced
};

}  // namespace quire::files
