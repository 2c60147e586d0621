#include "engine/disk/spill_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace quire::engine {
namespace {

// A root's key of more bytes takes memory anew, once for each place of the ring.
constexpr size_t kUsualKey = 256;

}  // namespace

SpillQueue::SpillQueue(int32_t num_blocks, int32_t block_size, std::function<void()> on_first)
    : on_first_(std::move(on_first)),
      ring_(kCapacity),
      tickets_(static_cast<size_t>(num_blocks), kNoTicket) {
  for (Offered& offered : ring_) {
    offered.tokens.reserve(static_cast<size_t>(block_size));
    offered.root_key.reserve(kUsualKey);
  }
}

void SpillQueue::Offer(int32_t block, int32_t parent, std::string_view root_key,
                       std::span<const int32_t> tokens) {
  bool is_first = false;
  {
    const base::MutexLock lock(mu_);
    uint64_t& ticket = tickets_[static_cast<size_t>(block)];
    ticket = kNoTicket;
    const uint64_t parents = parent < 0 ? kNoTicket : tickets_[static_cast<size_t>(parent)];
    // Without the parent's key, that of the block is not known.
    if ((parent >= 0 && parents == kNoTicket) || num_offered_ - num_taken_ == kCapacity) {
      ++num_dropped_;
      return;
    }
    is_first = num_offered_ == num_taken_;
    ticket = next_ticket_++;
    Offered& offered = ring_[num_offered_++ % kCapacity];
    offered.block = {.block = block, .ticket = ticket};
    offered.parent = {.block = parent, .ticket = parents};
    offered.root_key.assign(parent < 0 ? root_key : std::string_view());
    offered.tokens.assign(tokens.begin(), tokens.end());
  }
  if (is_first) on_first_();
}

void SpillQueue::Withdraw(int32_t block) {
  const base::MutexLock lock(mu_);
  tickets_[static_cast<size_t>(block)] = kNoTicket;
  while (copying_ == block) copied_.WaitFor(mu_, std::chrono::seconds(1));
}

void SpillQueue::Discard(int32_t block) {
  bool is_known = false;
  {
    const base::MutexLock lock(mu_);
    const uint64_t ticket = tickets_[static_cast<size_t>(block)];
    is_known = ticket != kNoTicket && discarded_.size() < kCapacity;
    if (is_known) discarded_.push_back({.block = block, .ticket = ticket});
  }
  Withdraw(block);
  if (is_known) on_first_();
}

bool SpillQueue::Take(Offered& offered) {
  const base::MutexLock lock(mu_);
  if (num_taken_ == num_offered_) return false;
  std::swap(offered, ring_[num_taken_++ % kCapacity]);
  return true;
}

bool SpillQueue::CopyIfListed(const Listing& listing, absl::FunctionRef<void()> copy) {
  {
    const base::MutexLock lock(mu_);
    if (tickets_[static_cast<size_t>(listing.block)] != listing.ticket) return false;
    copying_ = listing.block;
  }
  copy();
  const base::MutexLock lock(mu_);
  copying_ = -1;
  copied_.NotifyAll();
  return true;
}

std::vector<SpillQueue::Listing> SpillQueue::TakeDiscarded() {
  const base::MutexLock lock(mu_);
  return std::exchange(discarded_, {});
}

bool SpillQueue::empty() const {
  const base::MutexLock lock(mu_);
  return num_taken_ == num_offered_ && discarded_.empty();
}

int64_t SpillQueue::num_dropped() const {
  const base::MutexLock lock(mu_);
  return num_dropped_;
}

}  // namespace quire::engine
