// Blocks that are copied to a disk, and come back from it.

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {
namespace {

constexpr uint64_t kGarbage = 0xbad;  // the hash of what is half written

}  // namespace

void KvWorld::Spill() {
  if (disk_->CopyOne(random_())) Count("spill");
}

void KvWorld::BeginLoad() {
  // Mostly something that the cache has lost.
  const ModelDisk::Name* name = nullptr;
  for (int tries = Pick(1, 4); tries > 0; --tries) {
    name = disk_->PickKept(random_());
    if (name == nullptr) return;
    Tokens more = name->second;
    more.push_back(0);  // the last one is not looked up
    if (blocks_->NumCached(name->first, more) < Size(name->second)) break;
  }
  Load load{.root = name->first, .tenant = NamesOfRoot(name->first).tenant, .tokens = name->second};
  // Perhaps more than the disk has.
  for (int n = Pick(0, 3) == 0 ? block_size_ : 0; n > 0; --n) load.tokens.push_back(Pick(0, 1));
  load.on_disk = disk_->Read({load.root, load.tokens});
  const SequenceId id = next_load_--;
  const int64_t num_blocks = Size(load.tokens) / block_size_;
  const int64_t available = blocks_->num_available();
  load.num_cached = blocks_->TryBeginLoad(id, load.root, load.tokens, PayerOf(load.tenant));
  if (load.num_cached < 0) {
    ASSERT_LT(available, num_blocks);
    ASSERT_FALSE(blocks_->Holds(id));
    // A step in flight may have read what the load held for a moment.
    ASSERT_GE(blocks_->num_available() + blocks_->stats().num_quarantined, available);
    Count("load that does not fit");
    return;
  }
  ASSERT_LE(load.num_cached, num_blocks);
  load.num_written = load.num_cached;
  // A disk may write at any time, a part of a block at first.
  for (const int32_t block : blocks_->Table(id).subspan(load.num_cached)) {
    const auto first = memory_[0].begin() + block * block_size_;
    std::fill_n(first, block_size_, Slot{.hash = kGarbage, .root = load.root});
  }
  loads_[id] = std::move(load);
  Count("begin of a load");
}

void KvWorld::AdvanceLoad(SequenceId id) {
  if (Pick(0, 2) == 0) return EndLoad(id);
  const Load& load = loads_.at(id);
  if (load.num_written < std::ssize(load.on_disk)) WriteNext(id);
}

void KvWorld::WriteNext(SequenceId id) {
  Load& load = loads_.at(id);
  const int32_t block = blocks_->Table(id)[static_cast<size_t>(load.num_written)];
  const std::vector<uint64_t>& hashes = load.on_disk[static_cast<size_t>(load.num_written)];
  for (int32_t i = 0; i < block_size_; ++i) {
    memory_[0][block * block_size_ + i] = {
        .hash = hashes[i], .root = load.root, .was_restored = true};
  }
  ++load.num_written;
}

void KvWorld::EndLoad(SequenceId id) {
  // All that there is, or some of it, perhaps a part of a block, or nothing.
  Load& load = loads_.at(id);
  const auto most = std::max(load.num_cached, static_cast<int64_t>(load.on_disk.size()));
  int64_t num_loaded = most * block_size_;
  if (Pick(0, 1) == 0) num_loaded = Pick(0, static_cast<int>(num_loaded));
  if (Pick(0, 4) == 0) num_loaded = 0;
  if (Pick(0, 1) == 0) num_loaded = num_loaded / block_size_ * block_size_;
  while (load.num_written * block_size_ < num_loaded) WriteNext(id);
  // Nobody may read what was not loaded.
  const std::span<const int32_t> table = blocks_->Table(id);
  for (int64_t i = std::max(num_loaded, load.num_cached * block_size_); i < Size(load.tokens);
       ++i) {
    memory_[0][table[i / block_size_] * block_size_ + i % block_size_].hash = kGarbage;
  }
  const Load ended = std::move(load);
  loads_.erase(id);
  if (num_loaded == 0 && Pick(0, 1) == 0) {
    blocks_->Release(id);  // as when nobody waits for it any more
  } else {
    blocks_->EndLoad(id, ended.tokens, num_loaded);
  }
  Tokens more = ended.tokens;
  more.push_back(0);  // the last one is not looked up
  const int64_t num_whole = num_loaded / block_size_ * block_size_;
  ASSERT_GE(blocks_->NumCached(ended.root, more), num_whole);
  if (num_loaded > 0) seen_.emplace_back(more.begin(), more.begin() + num_loaded + 1);
  const bool is_new = num_loaded > ended.num_cached * block_size_;
  Count(!is_new                           ? "restore of nothing"
        : num_loaded < Size(ended.tokens) ? "restore in part"
                                          : "restore");
}

}  // namespace quire::engine
