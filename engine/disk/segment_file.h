#pragma once

// One file of K and V on disk: blocks are appended until it is full, and never changed.

#include <cstddef>
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
#include "engine/disk/block_key.h"
#include "files/state_directory.h"

namespace quire::engine {

// The sizes of a segment, and what its bytes mean.
struct SegmentShape {
  // A digest of all that the bytes of a block depend on: the model, the types, the sizes and the
  // store. A file with another identity is foreign.
  BlockKey identity{};
  int32_t block_size = 0;   // tokens
  int64_t block_bytes = 0;  // K and V of one block
  int64_t num_slots = 0;    // blocks of a segment

  // A record has two keys, the tokens and the payload, K and V. It begins at a page.
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kEntryBytes = 128;
  int64_t payload_begin() const {
    return 2 * static_cast<int64_t>(sizeof(BlockKey)) + int64_t{block_size} * 4;
  }
  int64_t record_bytes() const { return payload_begin() + block_bytes; }
  int64_t slot_bytes() const { return ToPage(record_bytes()); }
  int64_t slots_begin() const { return kPage + ToPage(num_slots * kEntryBytes); }
  int64_t file_bytes() const { return slots_begin() + num_slots * slot_bytes(); }

  static int64_t ToPage(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
};

struct RecordSum {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const RecordSum&) const = default;
};

// The file begins with a header page: what the file is. A table follows, with one entry for each
// slot: the key of the slot's record and its checksum (XXH3-128). Then come the slots. The record
// is written before its entry, so a slot whose entry is not there, or is damaged, has no record. A
// checksum is made with the record's place, so a record elsewhere is none. Nothing is synced: what
// a loss of power leaves is what the checksums hold for.
//
// Not thread-safe. The functions wait for the disk.
class SegmentFile {
 public:
  struct Entry {
    int64_t slot = 0;
    BlockKey key{};
    RecordSum sum;
  };

  static std::string NameOf(uint64_t id);
  // Returns the id of a segment's file, or 0 if the name is none of a segment. No id is 0.
  static uint64_t IdOf(std::string_view name);

  // Creates a file, which must not be there. `directory` must outlive the segment.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Create(const files::StateDirectory& directory,
                                                             const SegmentShape& shape,
                                                             uint64_t id);
  // Opens a file and calls `on_entry` for each slot with a whole entry. Returns NotFound if it is
  // foreign, or damaged in its header.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Open(
      const files::StateDirectory& directory, const SegmentShape& shape, uint64_t id,
      absl::FunctionRef<void(const Entry&)> on_entry);

  uint64_t id() const { return id_; }
  bool is_full() const { return next_slot_ == shape_.num_slots; }
  int64_t next_slot() const { return next_slot_; }
  // The bytes of the file, without the slots that are not written yet.
  int64_t bytes() const { return shape_.slots_begin() + next_slot_ * shape_.slot_bytes(); }

  // Writes a record, of record_bytes() bytes, into the next slot. After an error the slot is still
  // the next one.
  absl::StatusOr<Entry> Append(const BlockKey& key, std::span<const std::byte> record);
  // Reads the record of an entry. Returns false if it is not whole.
  absl::StatusOr<bool> Read(const Entry& entry, std::span<std::byte> record) const;
  // Makes the slot one without a record.
  absl::Status Clear(int64_t slot);

 private:
  SegmentFile(const SegmentShape& shape, uint64_t id) : name_(NameOf(id)), shape_(shape), id_(id) {}
  uint64_t PlaceOf(int64_t slot) const;
  RecordSum SumOf(int64_t slot, std::span<const std::byte> record) const;
  std::vector<std::byte> Header() const;
  absl::Status ReadTable(absl::FunctionRef<void(const Entry&)> on_entry);

  const std::string name_;
  const SegmentShape shape_;
  const uint64_t id_;
  base::UniqueFd file_;
  int64_t next_slot_ = 0;
};

}  // namespace quire::engine
