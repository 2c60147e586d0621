#pragma once

// K and V of blocks on disk, found by their keys.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "engine/disk/block_key.h"
#include "engine/disk/segment_file.h"
#include "files/record_log.h"
#include "files/state_directory.h"

namespace quire::engine {

struct SegmentStoreConfig {
  std::string contents;     // names the model, its numerics and all else that the bytes depend on
  int32_t block_size = 0;   // tokens
  int64_t block_bytes = 0;  // K and V of one block
  int64_t max_bytes = 0;    // of all segments
};

// A log of segments (SegmentFile), of which the last one is written. When there are too many, the
// oldest is removed, and those of its blocks that are worth it are written again, up to a quarter
// of a segment: blocks that were read since they were written, and those of named prefixes. The
// index is in memory, and is read from the tables of the segments when the store is opened. What is
// foreign or damaged is not there.
//
// The file `kv.store` has a secret, without which no key can be found, and the epoch: a number that
// SetEpoch raises when everything is to be forgotten.
//
// Has(), bytes() and num_blocks() may be called on any thread. All other functions wait for the
// disk, and are called on one thread.
class SegmentStore {
 public:
  // The index takes about 150 bytes for each block.
  static constexpr int64_t kMostBlocks = 1 << 20;

  // `directory` must outlive the store. Returns InvalidArgument if max_bytes is too small, and
  // otherwise errors of the system.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(const files::StateDirectory& directory,
                                                            const SegmentStoreConfig& config);

  const BlockKey& secret() const { return secret_; }  // constant
  uint64_t epoch() const { return epoch_; }
  // Forgets all blocks. After an error the epoch may or may not hold after a restart.
  absl::Status SetEpoch(uint64_t epoch);

  bool Has(const BlockKey& key) const;
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  int64_t num_blocks() const;

  int64_t record_bytes() const { return shape_.record_bytes(); }
  // Returns the K and V in a record that Get has read.
  std::span<const std::byte> PayloadOf(std::span<const std::byte> record) const {
    return record.subspan(static_cast<size_t>(shape_.payload_begin()));
  }
  // Returns the memory for the K and V of the block that is put next.
  std::span<std::byte> payload() {
    return std::span(record_).subspan(static_cast<size_t>(shape_.payload_begin()));
  }
  // Writes the block whose K and V are in payload(). ResourceExhausted: the disk is full.
  absl::Status Put(const BlockKey& key, const BlockKey& parent, std::span<const int32_t> tokens);
  // Reads a block into `record`, which has record_bytes() bytes. Returns false if it is not there.
  // A block that is damaged is not there any more.
  absl::StatusOr<bool> Get(const BlockKey& key, const BlockKey& parent,
                           std::span<const int32_t> tokens, std::span<std::byte> record);
  // `named` returns the keys of blocks of named prefixes. It is called when a segment is removed.
  void set_named(std::function<std::vector<BlockKey>()> named) { named_ = std::move(named); }
  // Removes a block, also from the disk.
  absl::Status Erase(const BlockKey& key);

  int64_t num_damaged() const { return num_damaged_; }  // blocks, since the store was opened

 private:
  struct Place {
    uint64_t segment = 0;
    int64_t slot = 0;
    RecordSum sum;
    bool was_read = false;
  };
  struct Segment {
    std::unique_ptr<SegmentFile> file;
    std::vector<BlockKey> keys;  // of the records that were written or found
  };

  SegmentStore(const files::StateDirectory& directory, const SegmentStoreConfig& config);
  absl::Status ReadStoreFile();
  absl::Status WriteStoreFile();
  absl::Status OpenSegments();
  absl::Status BeginSegment();
  absl::Status DropOldest();
  absl::Status Append(const BlockKey& key, std::span<const std::byte> record);
  SegmentFile* FindSegment(uint64_t id) const;
  // Removes the block from the index, if it is at this place.
  void Forget(const BlockKey& key, uint64_t segment);
  void UpdateBytes();

  const files::StateDirectory& directory_;
  const std::string contents_;
  SegmentShape shape_;  // constant once the store is open
  int64_t max_segments_ = 0;
  std::unique_ptr<files::RecordLog> store_file_;
  BlockKey secret_{};
  uint64_t epoch_ = 0;
  std::deque<Segment> segments_;  // oldest first
  uint64_t next_id_ = 1;
  std::function<std::vector<BlockKey>()> named_ = [] { return std::vector<BlockKey>(); };
  std::vector<std::byte> record_;
  int64_t num_damaged_ = 0;
  std::atomic<int64_t> bytes_ = 0;

  mutable base::Mutex mu_;  // never held while the disk is waited for
  absl::flat_hash_map<BlockKey, Place, BlockKeyHash> index_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
