#pragma once

// The part of the KV cache that is on disk: blocks that were computed are written to it, and come
// back from it after they were evicted, or after a restart.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/disk/read_pace.h"
#include "engine/disk/segment_store.h"
#include "engine/disk/spill_queue.h"
#include "engine/request/disk_stats.h"

namespace quire::engine {

struct DiskTierConfig {
  SegmentStoreConfig store;
  std::byte* blocks = nullptr;  // the cache: num_blocks times store.block_bytes
  int32_t num_blocks = 0;
  int64_t staging_bytes = 64 << 20;  // of blocks that are read at once; at least one block
  // After an error of the disk it is not used for so long.
  absl::Duration pause = absl::Seconds(30);
  // One read or write that takes longer makes the disk a slow one while it lasts.
  absl::Duration slow = absl::Milliseconds(200);
  const base::Clock* clock = nullptr;
};

// The whole blocks of a prompt, which name what may be on disk.
struct DiskChain {
  uint64_t epoch = 0;           // of the root's key
  std::vector<int32_t> tokens;  // of the blocks
  std::vector<BlockKey> keys;   // that of the root, and then those of the blocks
  std::vector<bool> is_there;   // by block: the disk had it when it was looked up

  int64_t num_blocks() const { return std::ssize(is_there); }
};

// Blocks [begin, end) of a chain, to be read from disk.
struct DiskFetch {
  int64_t id = 0;
  std::shared_ptr<const DiskChain> chain;
  int64_t begin = 0;
  int64_t end = 0;
};

struct DiskEvent {
  enum class Kind : uint8_t {
    kStaged,  // the next num_blocks blocks are read: Place says where they are to go
    kPlaced,  // these blocks are in the cache
    kEnded,   // nothing more could be read
  };
  int64_t fetch = 0;
  Kind kind = Kind::kEnded;
  int64_t num_blocks = 0;
  bool is_last = false;  // nothing more comes of the fetch
};

// One thread, or in a test the owner by RunOne, does all that waits for the disk. It takes blocks
// from the SpillQueue, copies and writes them. For a fetch it reads blocks into memory of its own,
// a piece at a time. Only when a piece is there the step thread takes blocks of the cache for it,
// and the thread copies it. So a disk that hangs holds no block of the cache, and no step waits for
// it. A block that is damaged is not there, and ends the fetch.
//
// A fetch: StartFetch, then for each piece kStaged, Place, kPlaced. EndFetch may end it at any time
// but between Place and kPlaced; after EndFetch in that time kPlaced still comes, and is the last.
class DiskTier {
 public:
  static constexpr size_t kMostFetches = 16;  // that are started and have not ended

  // `directory` must outlive the tier. Errors: see SegmentStore::Open.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const files::StateDirectory& directory,
                                                        DiskTierConfig config);
  ~DiskTier() { Stop(); }

  // `on_event` is called on the tier's thread when TakeEvent has something.
  void Start(std::function<void()> on_event);
  // Joins the thread. Carries out the calls of Flush that wait, and for a second writes blocks that
  // were offered.
  void Stop();
  // See SegmentStore. Called before Start.
  void set_named(std::function<std::vector<BlockKey>()> named) {
    store_->set_named(std::move(named));
  }
  // Does one piece of work. Returns false if there is none. Only without Start.
  bool RunOne();
  BlockSpill& spill() { return spill_; }

  // --- Of any thread.

  // Returns the keys of a root, and then those of the first `num_blocks` blocks of `tokens` under
  // it.
  std::vector<BlockKey> KeysOf(std::string_view root_key, std::span<const int32_t> tokens,
                               size_t num_blocks) const;
  // Looks up the whole blocks of a prompt, of which the last token is always computed. `root_key`:
  // see CacheRootKey; it has the epoch. Returns null if the disk has none of them.
  std::shared_ptr<const DiskChain> LookUp(std::string_view root_key, uint64_t epoch,
                                          std::span<const int32_t> tokens) const;
  // The number that the first part of each root's key has now; it is larger after each Forget.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // False while the disk is slow, or is not used because it had an error.
  bool IsUsable() const;
  ReadPace pace() const;
  DiskStats stats() const;

  // --- Of the step thread.

  // Returns false if too many fetches are not complete. Ids ascend.
  bool StartFetch(DiskFetch fetch);
  // Says into which blocks the staged ones go; -1: nowhere. The blocks stay the caller's until
  // kPlaced comes.
  void Place(int64_t fetch, std::span<const int32_t> blocks);
  void EndFetch(int64_t fetch);
  std::optional<DiskEvent> TakeEvent();
  // Returns how many blocks are still to be read for this fetch and those with smaller ids.
  int64_t NumToRead(int64_t fetch) const;
  void NoteMisses(int64_t num_blocks) { misses_.Add(num_blocks); }

  // Nothing that was written before is found any more. `epoch` is larger than any before.
  void Forget(uint64_t epoch) { epoch_.store(epoch, std::memory_order_release); }
  // Forgets it on disk, too. Calls `done` on the tier's thread once that would outlive a loss of
  // power, or with an error.
  using FlushDone = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Flush(FlushDone done);

 private:
  // The fetch whose blocks are read.
  struct Active {
    enum class Phase : uint8_t { kReading, kStaged, kPlacing };
    DiskFetch fetch;
    Phase phase = Phase::kReading;
    int64_t next = 0;  // the first block that is not placed
    int64_t num_staged = 0;
    bool is_last = false;   // nothing comes after the staged blocks
    bool is_ended = false;  // nobody wants it
  };
  // A listing of a block, and the key that it has there.
  struct Known {
    uint64_t ticket = SpillQueue::kNoTicket;
    BlockKey key{};
  };

  DiskTier(std::unique_ptr<SegmentStore> store, DiskTierConfig config);
  void Run();
  void Wake();
  // The pieces of work. Each returns false if there is nothing to do.
  bool FlushOne();
  bool DiscardAll();
  bool PlaceStaged();
  bool ReadOne();
  bool WriteOne();
  struct Read {
    DiskFetch fetch;
    int64_t block = 0;  // of the chain
    int64_t place = 0;  // among the staged blocks
  };
  std::optional<Read> NextToRead();
  // `took`: see ReadPace.
  void NoteRead(int64_t fetch, bool is_there, absl::Duration took);
  void Send(DiskEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::span<std::byte> Staged(int64_t i);
  std::span<std::byte> BlockOf(int32_t block) const;
  // Counts an error of the disk, and lets it rest.
  void NoteError(const absl::Status& status);

  const DiskTierConfig config_;
  const std::unique_ptr<SegmentStore> store_;
  SpillQueue spill_;
  std::atomic<uint64_t> epoch_;
  std::atomic<int64_t> paused_until_ns_ = 0;  // by the clock
  base::Heartbeat disk_;                      // busy while one read or write lasts
  mutable base::Counter misses_;
  base::Counter hits_, errors_, dropped_;

  // The tier's thread alone uses these.
  std::unique_ptr<std::byte[]> staging_;  // null until the first read
  int64_t most_staged_ = 0;               // blocks
  std::vector<Known> known_;              // by block
  SpillQueue::Offered offered_;
  int64_t num_damaged_ = 0;

  mutable base::Mutex mu_;
  base::CondVar work_;
  bool is_woken_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<DiskFetch> waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<Active> active_ ABSL_GUARDED_BY(mu_);
  std::vector<int32_t> places_ ABSL_GUARDED_BY(mu_);  // of the staged blocks
  std::deque<DiskEvent> events_ ABSL_GUARDED_BY(mu_);
  std::deque<FlushDone> flushes_ ABSL_GUARDED_BY(mu_);
  ReadPace pace_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_events_ = false;
  std::function<void()> on_event_ = [] {};
  std::thread thread_;
};

}  // namespace quire::engine
