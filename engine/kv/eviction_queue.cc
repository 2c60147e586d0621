#include "engine/kv/eviction_queue.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire::engine {

EvictionQueue::EvictionQueue(int32_t num_blocks, int32_t num_classes)
    : num_blocks_(num_blocks),
      num_classes_(num_classes),
      links_(static_cast<size_t>(num_blocks) + static_cast<size_t>(num_classes) * kNumAges),
      filled_(num_classes) {
  for (int32_t head = num_blocks; head < static_cast<int32_t>(links_.size()); ++head) {
    links_[head].next = links_[head].previous = head;
  }
}

void EvictionQueue::Push(int32_t block, int32_t reuse_class, int64_t time_ms, End end) {
  QUIRE_CHECK(!Contains(block) && reuse_class >= 0 && reuse_class < num_classes_)
      << "block " << block << ", class " << reuse_class;
  const int64_t slot = std::min(time_ms >> kSlotBits, now_slot_);
  const int32_t place =
      slot <= now_slot_ - kNumSlots ? kNumSlots : static_cast<int32_t>(slot & (kNumSlots - 1));
  const int32_t head = Head(reuse_class, place);
  Link& link = links_[block];
  const int32_t next = end == End::kFirst ? links_[head].next : head;
  link = {.next = next, .previous = links_[next].previous, .order = next_order_++};
  links_[link.previous].next = block;
  links_[next].previous = block;
  filled_[reuse_class][place / 64] |= uint64_t{1} << (place % 64);
  ++size_;
}

void EvictionQueue::Remove(int32_t block) {
  QUIRE_CHECK(Contains(block)) << "block " << block;
  Link& link = links_[block];
  links_[link.previous].next = link.next;
  links_[link.next].previous = link.previous;
  link.next = -1;
  --size_;
}

void EvictionQueue::Advance(int64_t now_ms) {
  const int64_t slot = now_ms >> kSlotBits;
  if (slot <= now_slot_) return;
  const int64_t last_old = std::min(now_slot_, slot - kNumSlots);
  for (int64_t s = now_slot_ - kNumSlots + 1; s <= last_old; ++s) Retire(s);
  now_slot_ = slot;
  num_left_ = 0;
}

void EvictionQueue::Retire(int64_t slot) {
  const auto place = static_cast<int32_t>(slot & (kNumSlots - 1));
  for (int32_t c = 0; c < num_classes_; ++c) {
    uint64_t& word = filled_[c][place / 64];
    const uint64_t bit = uint64_t{1} << (place % 64);
    if ((word & bit) == 0) continue;
    word &= ~bit;
    const int32_t head = Head(c, place);
    if (IsEmpty(head)) continue;
    const int32_t old = Head(c, kNumSlots);
    const int32_t first = links_[head].next, last = links_[head].previous;
    links_[first].previous = links_[old].previous;
    links_[links_[old].previous].next = first;
    links_[last].next = old;
    links_[old].previous = last;
    links_[head].next = links_[head].previous = head;
    filled_[c][kNumSlots / 64] |= uint64_t{1} << (kNumSlots % 64);
  }
}

int32_t EvictionQueue::Choose(const std::vector<Ranks>& ranks) {
  int32_t best = -1;
  float lowest = 0.0f;
  for (int32_t c = 0; c < num_classes_; ++c) {
    for (int32_t w = 0; w < kWords; ++w) {
      for (uint64_t left = filled_[c][w]; left != 0; left &= left - 1) {
        const int32_t place = w * 64 + std::countr_zero(left);
        const int32_t head = Head(c, place);
        if (IsEmpty(head)) {
          filled_[c][w] &= ~(left & -left);
          continue;
        }
        const float rank = ranks[c][Age(place)];
        if (best < 0 || rank < lowest ||
            (rank == lowest && links_[links_[head].next].order < links_[links_[best].next].order)) {
          best = head;
          lowest = rank;
        }
      }
    }
  }
  return best;
}

int32_t EvictionQueue::Pop(const std::vector<Ranks>& ranks) {
  if (size_ == 0) return -1;
  if (num_left_ == 0 || IsEmpty(chosen_)) {
    chosen_ = Choose(ranks);
    num_left_ = std::clamp(size_ / kPopsPerChoice, 1, kMostPops);
  }
  --num_left_;
  const int32_t block = links_[chosen_].next;
  Remove(block);
  return block;
}

}  // namespace quire::engine
