#pragma once

// The interface through which the cache tells what becomes of its whole blocks, so that they can be
// kept elsewhere.

#include <cstdint>
#include <span>
#include <string_view>

namespace quire::engine {

// The functions are called on the step thread, for each block that a step fills, so they must not
// wait for anything slow.
class BlockSpill {
 public:
  virtual ~BlockSpill() = default;

  // The cache has listed `block`, whose K and V were computed and do not change until Withdraw. It
  // follows `parent`, which was offered before and is listed; -1: it follows the root with this key
  // (see CacheRootKey). The arguments are valid during the call.
  virtual void Offer(int32_t block, int32_t parent, std::string_view root_key,
                     std::span<const int32_t> tokens) = 0;
  // The block, which may never have been offered, is listed no more, and will have other contents.
  virtual void Withdraw(int32_t block) = 0;
  // Like Withdraw, of a block whose K and V may be unsound: they must not be used again.
  virtual void Discard(int32_t block) = 0;
};

}  // namespace quire::engine
