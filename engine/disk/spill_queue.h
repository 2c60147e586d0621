#pragma once

// Hands blocks from the step thread to the thread that writes them to disk.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

#include "base/mutex.h"
#include "engine/kv/block_spill.h"

namespace quire::engine {

// A bounded ring of offers. If it is full, an offer is dropped: the step thread never waits for the
// disk. It waits at most until one block is copied, when it takes back the block that is just being
// copied.
//
// Each listing of a block has a ticket of its own, so what was learned of an earlier content of the
// block cannot be taken for the present one's. Nothing is allocated after warm-up.
class SpillQueue final : public BlockSpill {
 public:
  static constexpr size_t kCapacity = 1024;
  // A ticket of no listing.
  static constexpr uint64_t kNoTicket = 0;

  // `on_first` is called on the step thread after an offer to an empty queue.
  SpillQueue(int32_t num_blocks, int32_t block_size, std::function<void()> on_first);

  // Of the step thread; see BlockSpill.
  void Offer(int32_t block, int32_t parent, std::string_view root_key,
             std::span<const int32_t> tokens) override;
  void Withdraw(int32_t block) override;
  void Discard(int32_t block) override;

  // One listing of a block.
  struct Listing {
    int32_t block = -1;
    uint64_t ticket = kNoTicket;
  };
  struct Offered {
    Listing block;
    Listing parent;        // block -1: the root
    std::string root_key;  // set if the block follows the root
    std::vector<int32_t> tokens;
  };
  // These are of the other thread. Take moves on to the next offer. Returns false if there is none.
  bool Take(Offered& offered);
  // Calls `copy` while the block keeps its content. Returns false, without a call, if the block was
  // withdrawn. `copy` must not wait.
  bool CopyIfListed(const Listing& listing, absl::FunctionRef<void()> copy);
  // Returns the listings that were discarded since the last call.
  std::vector<Listing> TakeDiscarded();

  bool empty() const;
  int64_t num_dropped() const;  // offers that found the queue full, or lacked their parents

 private:
  const std::function<void()> on_first_;
  mutable base::Mutex mu_;
  base::CondVar copied_;
  std::vector<Offered> ring_ ABSL_GUARDED_BY(mu_);
  uint64_t num_offered_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_taken_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t num_dropped_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> tickets_ ABSL_GUARDED_BY(mu_);  // by block
  std::vector<Listing> discarded_ ABSL_GUARDED_BY(mu_);
  int32_t copying_ ABSL_GUARDED_BY(mu_) = -1;  // the block that is being copied
};

}  // namespace quire::engine
