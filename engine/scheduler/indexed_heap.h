#pragma once

// A binary heap whose items know their places, so that any of them can be removed or moved.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire::engine {

// The index of an item in the array of one heap. The item stores this index.
using HeapPlace = size_t;
inline constexpr HeapPlace kNotInHeap = SIZE_MAX;

// The heap does not own its items. `kPlace` is the member in which an item stores its place in this
// heap; the member is kNotInHeap at first. `Before` returns true if its first argument is nearer to
// the top. Push, Remove and Update are O(log items). A heap allocates only when it grows beyond its
// largest size so far.
template <typename T, HeapPlace T::*kPlace, typename Before>
class IndexedHeap {
 public:
  bool empty() const { return items_.empty(); }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  T& top() const { return *items_.front(); }
  bool Contains(const T& item) const { return item.*kPlace != kNotInHeap; }

  // Sets `out` to the first `n` items from the top, in order. Takes O(n^2) for a heap of any
  // size.
  void First(size_t n, std::vector<T*>& out) {
    out.clear();
    next_.clear();
    if (!items_.empty()) next_.push_back(0);
    while (!next_.empty() && out.size() < n) {
      const auto first = std::min_element(
          next_.begin(), next_.end(),
          [this](HeapPlace a, HeapPlace b) { return Before()(*items_[a], *items_[b]); });
      const HeapPlace place = *first;
      out.push_back(items_[place]);
      next_.erase(first);
      for (HeapPlace child = 2 * place + 1; child <= 2 * place + 2; ++child) {
        if (child < items_.size()) next_.push_back(child);
      }
    }
  }

  void Push(T& item) {
    QUIRE_CHECK(!Contains(item));
    items_.push_back(&item);
    item.*kPlace = items_.size() - 1;
    Rise(items_.size() - 1);
  }

  void Remove(T& item) {
    const HeapPlace place = item.*kPlace;
    QUIRE_CHECK(place < items_.size() && items_[place] == &item);
    T& last = *items_.back();
    items_.pop_back();
    item.*kPlace = kNotInHeap;
    if (&last == &item) return;
    Put(place, last);
    Update(last);
  }

  // To be called after a value that Before compares has changed.
  void Update(T& item) {
    Rise(item.*kPlace);
    Sink(item.*kPlace);
  }

 private:
  void Put(HeapPlace place, T& item) {
    items_[place] = &item;
    item.*kPlace = place;
  }

  void Rise(HeapPlace place) {
    T& item = *items_[place];
    for (; place > 0; place = (place - 1) / 2) {
      T& parent = *items_[(place - 1) / 2];
      if (!Before()(item, parent)) break;
      Put(place, parent);
    }
    Put(place, item);
  }

  void Sink(HeapPlace place) {
    T& item = *items_[place];
    while (2 * place + 1 < items_.size()) {
      HeapPlace child = 2 * place + 1;
      if (child + 1 < items_.size() && Before()(*items_[child + 1], *items_[child])) ++child;
      if (!Before()(*items_[child], item)) break;
      Put(place, *items_[child]);
      place = child;
    }
    Put(place, item);
  }

  std::vector<T*> items_;
  std::vector<HeapPlace> next_;  // scratch of First: places of items whose parents are in `out`
};

}  // namespace quire::engine
