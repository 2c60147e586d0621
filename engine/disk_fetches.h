#pragma once

// Requests that wait for blocks from disk before they are scheduled.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "engine/disk/disk_tier.h"
#include "engine/kv/block_manager.h"
#include "engine/request/request.h"

namespace quire::engine {

// A request whose prompt is on disk, further than the cache in memory has it, waits until its
// blocks are there. Then it is a request like any other, whose prompt the cache has. It holds
// nothing while it waits, and nobody waits for it. Requests that lack the same blocks wait for the
// same fetch. A request that is cancelled or past its deadline, and every request while the disk is
// not usable, waits no longer, and computes what is not there. To be used only on the step thread.
class DiskFetches {
 public:
  // A request waits for no fewer blocks: that would take longer than to compute them.
  static constexpr int64_t kLeastBlocks = 2;
  // A request waits no longer if nothing has come of any fetch for so long.
  static constexpr absl::Duration kMostSilence = absl::Seconds(2);

  // Both must outlive this.
  DiskFetches(DiskTier& tier, BlockManager& blocks) : tier_(tier), blocks_(blocks) {}
  ~DiskFetches();

  // Returns true if the request is to wait. `root_key`: see CacheRootKey.
  bool TryWait(const std::shared_ptr<const Request>& request, std::string root_key,
               std::shared_ptr<const DiskChain> chain, absl::Time now);
  // Returns true if the request is to wait because the named prefix on which it runs waits.
  bool TryWaitForPrefix(const std::shared_ptr<const Request>& request);
  // The request waits no longer. Returns false if it did not.
  bool StopWaiting(const Request& request);

  struct Released {
    std::shared_ptr<const Request> request;
    // The tokens of the prompt that were read for it.
    int64_t begin = 0;
    int64_t end = 0;
  };
  // Takes what the disk has done, and returns the requests that wait no longer.
  std::vector<Released> Advance(absl::Time now);

  int64_t num_waiting() const { return std::ssize(waiting_); }
  // Returns the time at which Advance is to be called even if the disk has done nothing.
  absl::Time NextWakeup(absl::Time now) const;

 private:
  struct Fetch {
    DiskFetch what;
    std::string root_key;
    std::string tenant;
    int64_t next = 0;        // the first block that is not in the cache
    int64_t num_placed = 0;  // blocks that are being copied; 0: none
    TenantCharges::Payer payer = TenantCharges::kNamelessPayer;
    bool is_wanted = true;
  };
  struct Waiting {
    std::shared_ptr<const Request> request;
    std::string root_key;
    std::shared_ptr<const DiskChain> chain;  // null: it waits for its prefix
    int64_t fetch = 0;
    bool is_first = false;  // the fetch began for it
    int32_t num_tries = 0;
  };

  bool TryWait(Waiting waiting);
  void Handle(const DiskEvent& event);
  // Takes blocks for what is staged. Returns false if there are none.
  bool TryPlace(Fetch& fetch, int64_t num_blocks);
  void End(int64_t fetch);
  void AddReleased(const Waiting& waiting, const Fetch& fetch);
  Fetch* Find(int64_t id);
  static std::span<const int32_t> TokensOf(const DiskChain& chain, int64_t num_blocks,
                                           int32_t block_size) {
    return std::span(chain.tokens).first(static_cast<size_t>(num_blocks * block_size));
  }

  DiskTier& tier_;
  BlockManager& blocks_;
  std::deque<Fetch> fetches_;  // that the tier has, oldest first
  std::vector<Waiting> waiting_;
  std::vector<Released> released_;
  int64_t last_id_ = 0;
  absl::Time last_event_ = absl::InfinitePast();
};

}  // namespace quire::engine
