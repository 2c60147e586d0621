#include "engine/kv/block_table.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void BlockTable::AppendShared(BlockStore& store, int32_t block) {
  store.Hold(block);
  blocks_.push_back(block);
}

int32_t BlockTable::AppendOwn(BlockStore& store) {
  const int32_t block = store.Take();
  if (block >= 0) blocks_.push_back(block);
  return block;
}

int64_t BlockTable::NumBlocksToGrow(const BlockStore& store, int32_t block_size,
                                    int64_t first_write, int64_t num_tokens) const {
  const int64_t first = first_write / block_size;
  const bool shared =
      first < size() && num_tokens > first_write && store.pool().table_refs(blocks_[first]) > 1;
  return std::max(int64_t{0}, CeilDiv(num_tokens, block_size) - size()) + (shared ? 1 : 0);
}

bool BlockTable::TryGrow(BlockStore& store, int32_t block_size, int64_t first_write,
                         int64_t num_tokens, kernels::BlockCopy* copy, bool* copied) {
  *copied = false;
  const int64_t needed = NumBlocksToGrow(store, block_size, first_write, num_tokens);
  if (needed == 0) return true;
  if (needed > store.num_available()) return false;

  const int64_t first = first_write / block_size;
  if (first < size() && store.pool().table_refs(blocks_[first]) > 1) {
    *copied = true;
    *copy = {.source = blocks_[first], .destination = store.Take()};
    QUIRE_CHECK(copy->destination >= 0) << "an available block could not be evicted";
    store.TurnIntoSource(copy->source);
    blocks_[first] = copy->destination;
  }
  while (size() * block_size < num_tokens) {
    QUIRE_CHECK(AppendOwn(store) >= 0) << "an available block could not be evicted";
  }
  return true;
}

void BlockTable::ForkFrom(const BlockTable& parent, BlockStore& store, int32_t block_size,
                          int64_t num_tokens) {
  QUIRE_CHECK(blocks_.empty() && num_tokens <= parent.size() * block_size)
      << num_tokens << " tokens of " << parent.size() << " blocks";
  for (const int32_t block : parent.blocks().first(CeilDiv(num_tokens, block_size))) {
    AppendShared(store, block);
  }
}

void BlockTable::Replace(BlockStore& store, int64_t i, int32_t block) {
  store.Hold(block);
  store.Drop(blocks_[i]);
  blocks_[i] = block;
}

void BlockTable::Clear(BlockStore& store, bool in_flight) {
  while (!blocks_.empty()) {
    store.Drop(blocks_.back(), in_flight);
    blocks_.pop_back();
  }
}

}  // namespace quire::engine
