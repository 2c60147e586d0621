#include "engine/kv/eviction_queue.h"

#include "base/check.h"

namespace quire::engine {

EvictionQueue::EvictionQueue(int32_t num_blocks) : place_(num_blocks, -1) {
  heap_.reserve(num_blocks);
}

void EvictionQueue::Push(int32_t block, int64_t value) {
  QUIRE_CHECK(!Contains(block)) << "block " << block;
  heap_.push_back({.value = value, .order = next_order_++, .block = block});
  SiftUp(heap_.size() - 1);
}

void EvictionQueue::Remove(int32_t block) {
  QUIRE_CHECK(Contains(block)) << "block " << block;
  const size_t place = place_[block];
  place_[block] = -1;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  Put(place, last);
  SiftUp(place);
  SiftDown(place_[last.block]);
}

int32_t EvictionQueue::Pop() {
  if (heap_.empty()) return -1;
  const int32_t block = heap_.front().block;
  Remove(block);
  return block;
}

void EvictionQueue::Put(size_t place, const Entry& entry) {
  heap_[place] = entry;
  place_[entry.block] = static_cast<int32_t>(place);
}

void EvictionQueue::SiftUp(size_t place) {
  const Entry entry = heap_[place];
  while (place > 0) {
    const size_t parent = (place - 1) / 2;
    if (!(entry < heap_[parent])) break;
    Put(place, heap_[parent]);
    place = parent;
  }
  Put(place, entry);
}

void EvictionQueue::SiftDown(size_t place) {
  const Entry entry = heap_[place];
  while (true) {
    size_t child = 2 * place + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < entry)) break;
    Put(place, heap_[child]);
    place = child;
  }
  Put(place, entry);
}

}  // namespace quire::engine
