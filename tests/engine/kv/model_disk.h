#pragma once

// A naive model of the thread that copies blocks to a disk, and of the disk.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/kv/block_spill.h"
#include "tests/engine/kv/slot_model.h"

namespace quire::engine {

// Knows the whole blocks that the cache offers, and keeps the slots of those that CopyOne has
// copied. Names a block by its root's key and all tokens from the root to the block's end. When a
// block is offered, and when it is copied, its slots must have the hashes of its tokens: a function
// that finds a difference fails the test. Functions with a random number draw from it.
class ModelDisk final : public BlockSpill {
 public:
  using Name = std::pair<std::string, std::vector<int32_t>>;

  // `memory`, all slots of the cache, is borrowed. So is `counts`, which gets the number of
  // withdrawals and the like.
  ModelDisk(int32_t block_size, std::span<const Slot> memory,
            std::map<std::string, int64_t>& counts)
      : block_size_(block_size), memory_(memory), counts_(counts) {}

  void Offer(int32_t block, int32_t parent, std::string_view root_key,
             std::span<const int32_t> tokens) override;
  void Withdraw(int32_t block) override;
  void Discard(int32_t block) override;

  // Until `all` is false again, what is withdrawn must have been discarded.
  void set_discards_all(bool all) { discards_all_ = all; }
  bool IsOffered(int32_t block) const { return offered_.contains(block); }
  int64_t num_offered() const { return static_cast<int64_t>(offered_.size()); }

  // Copies a block that is offered and not copied yet. Returns false if there is none.
  bool CopyOne(uint32_t random);
  // Returns the name of a block on the disk, or null.
  const Name* PickKept(uint32_t random) const;
  // Returns the hashes of the leading blocks of `name` that the disk has.
  std::vector<std::vector<uint64_t>> Read(const Name& name) const;

 private:
  struct Offered {
    Name name;
    bool is_copied = false;
  };

  // Returns the hashes of a block, which must be those of its name.
  std::vector<uint64_t> Copy(int32_t block, const Name& name) const;

  const int32_t block_size_;
  const std::span<const Slot> memory_;
  std::map<std::string, int64_t>& counts_;
  std::map<int32_t, Offered> offered_;          // by block
  std::map<Name, std::vector<uint64_t>> kept_;  // the disk
  bool discards_all_ = false;
};

}  // namespace quire::engine
