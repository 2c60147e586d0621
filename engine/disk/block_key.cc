#include "engine/disk/block_key.h"

#include <bit>

namespace quire::engine {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

BlockKey RootBlockKey(const BlockKey& secret, std::string_view root_key) {
  base::Sha256 sum;
  sum.Add(std::as_bytes(std::span(secret)));
  sum.AddSized(root_key);
  return sum.Finish();
}

BlockKey ChildBlockKey(const BlockKey& parent, std::span<const int32_t> tokens) {
  base::Sha256 sum;
  sum.Add(std::as_bytes(std::span(parent)));
  sum.Add(std::as_bytes(tokens));
  return sum.Finish();
}

}  // namespace quire::engine
