#pragma once

// Requests that wait for blocks from disk before they are scheduled.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
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
// same fetch.
//
// A request waits only while the disk is expected to be sooner than computing, see ReadPace: this
// is asked when it comes, and again in each Advance. It waits no longer when it is cancelled or
// past its deadline, nor does any while the disk is not usable. A tenant that would hold more
// blocks than it may (TenantLimits::max_blocks) gets none by a fetch. What waits no longer is
// scheduled as any other request is, and computes what is not there.
//
// To be used only on the step thread.
class DiskFetches {
 public:
  // A request waits for no fewer blocks: that would take longer than to compute them.
  static constexpr int64_t kLeastBlocks = 2;
  // A request waits no longer if nothing has come of any fetch for so long.
  static constexpr absl::Duration kMostSilence = absl::Seconds(2);

  // Returns the time that computing so many tokens of a prompt takes; zero if it is unknown.
  using ComputeTime = std::function<absl::Duration(int64_t num_tokens)>;

  // `tier` and `blocks` must outlive this.
  DiskFetches(DiskTier& tier, BlockManager& blocks, ComputeTime compute_time)
      : tier_(tier), blocks_(blocks), compute_time_(std::move(compute_time)) {}
  ~DiskFetches();

  // A request that waits gets so many tokens of its prompt, after so long.
  struct Gain {
    int64_t num_tokens = 0;
    absl::Duration time;  // zero if it is unknown
  };
  // Returns it for a request that TryWait would let wait now; otherwise nothing. `root_key`: see
  // CacheRootKey.
  Gain GainOf(const Request& request, const std::string& root_key, const DiskChain& chain,
              absl::Time now);
  // Returns it for a request that TryWaitForPrefix would let wait; otherwise nothing.
  Gain GainOfPrefix(const Request& request);

  // Returns true if the request is to wait.
  bool TryWait(const std::shared_ptr<const Request>& request, std::string root_key,
               std::shared_ptr<const DiskChain> chain, absl::Time now);
  // Returns true if the request is to wait because the named prefix on which it runs waits.
  bool TryWaitForPrefix(const std::shared_ptr<const Request>& request);
  // The request waits no longer. Returns false if it did not.
  bool StopWaiting(const Request& request, absl::Time now);

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
    int32_t max_blocks = 0;   // that the tenant may hold; 0: no limit
    int64_t next = 0;         // the first block that is not in the cache
    int64_t num_placed = 0;   // blocks that are being copied; 0: none
    int64_t num_to_read = 0;  // by the tier until its end, those before it included; see Look
    TenantCharges::Payer payer = TenantCharges::kNamelessPayer;
    bool is_wanted = true;
  };
  // The blocks [begin, end) of its prompt for which a request waits. A fetch brings those before
  // shared_end. The others are to be read after it.
  struct Wait {
    int64_t fetch = 0;
    int64_t begin = 0;
    int64_t shared_end = 0;
    int64_t end = 0;
    bool is_trial = false;  // see ReadPace
  };
  struct Waiting {
    std::shared_ptr<const Request> request;
    std::string root_key;
    std::shared_ptr<const DiskChain> chain;  // null: it waits for its prefix
    Wait what;
    bool is_first = false;  // the fetch began for it
    int32_t num_tries = 0;
  };

  // Returns what the request should wait for, with a new id where no fetch brings the first of its
  // blocks. Returns nothing if it should not wait.
  std::optional<Wait> Consider(const Request& request, const std::string& root_key,
                               const DiskChain& chain, absl::Time now);
  Gain GainOf(const Wait& wait) const;
  // Returns the fetch that brings block `begin` of the chain next; null if there is none.
  const Fetch* FetchOf(const DiskChain& chain, int64_t begin) const;
  // Brings num_to_read of all fetches up to date.
  void Look();
  // Returns what is left of it.
  ReadPace::Wanted LeftOf(const Wait& wait) const;
  bool TryWait(Waiting waiting, absl::Time now);
  void Handle(const DiskEvent& event, absl::Time now);
  // Takes blocks for what is staged. Returns false if there are none.
  bool TryPlace(Fetch& fetch, int64_t num_blocks);
  void End(int64_t fetch, absl::Time now);
  void AddReleased(const Waiting& waiting, const Fetch& fetch);
  Fetch* Find(int64_t id);
  // Returns the request that waits for what the prefix of `request` has; null if there is none.
  const Waiting* LoadOf(const Request& request) const;
  static std::span<const int32_t> TokensOf(const DiskChain& chain, int64_t num_blocks,
                                           int32_t block_size) {
    return std::span(chain.tokens).first(static_cast<size_t>(num_blocks * block_size));
  }

  DiskTier& tier_;
  BlockManager& blocks_;
  const ComputeTime compute_time_;
  std::deque<Fetch> fetches_;  // that the tier has, oldest first
  std::vector<Waiting> waiting_;
  std::vector<Released> released_;
  int64_t last_id_ = 0;
  absl::Time last_event_ = absl::InfinitePast();
};

}  // namespace quire::engine
