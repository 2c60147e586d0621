#pragma once

// The roots of the prefix cache. The blocks of the cache form trees, and each tree grows from one
// root. A root is a namespace: sequences with different roots share no blocks.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/strings.h"

namespace quire::engine {

using RootId = int32_t;

// Identifies the pin of a named prefix (see BlockManager::TryPin). Never used twice.
using PinId = uint64_t;
inline constexpr PinId kNoPin = 0;

// A 128-bit XXH3 hash, chained over a root's key and the blocks from the root on.
struct ChainHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const ChainHash&) const = default;
};

// Returns the key of a cache root. Sequences share blocks only if all arguments are equal, apart
// from the blocks of a named prefix. `prefix`: the pin of the named prefix on which the sequences
// run, if any. The key contains the length of each argument before the argument itself, so
// different arguments give different keys.
std::string CacheRootKey(std::string_view model, std::string_view adapter, std::string_view tenant,
                         std::string_view part, std::string_view salt, PinId prefix = kNoPin);

// The parts of a root's key that people may see. The salt is none of them.
struct RootNames {
  std::string tenant;
  std::string part;
};
RootNames NamesOfRoot(std::string_view root_key);

// Gives each root key an id. Keys are compared in full. A root lives as long as a sequence or a
// block refers to it, so there are never more roots than sequences and blocks together.
//
// A root may stand on a named prefix: its trees then hold only what follows the prefix's whole
// blocks. Such a root is dead once the prefix's pin has ended, since no request will start from it
// any more. Not thread-safe.
class CacheRoots {
 public:
  // Returns the root of `key`. Creates the root if needed, and adds a reference to it.
  // `base_tokens` are the tokens before the root's first blocks, in the whole blocks of the prefix
  // `on`. The same key always comes with the same prefix.
  RootId Acquire(std::string_view key, PinId on = kNoPin, int64_t base_tokens = 0);
  void AddRef(RootId root) { ++roots_[root].refs; }
  void Release(RootId root);
  // A prefix begins before roots stand on it.
  void BeginPrefix(PinId prefix) { prefixes_.emplace(prefix, 0); }
  // Returns true if roots stand on the prefix. They are now dead.
  bool EndPrefix(PinId prefix);

  const std::string& key(RootId root) const { return roots_[root].key; }
  PinId on(RootId root) const { return roots_[root].on; }
  int64_t base_tokens(RootId root) const { return roots_[root].base_tokens; }
  bool dead(RootId root) const {
    const PinId on = roots_[root].on;
    return on != kNoPin && !prefixes_.contains(on);
  }
  const ChainHash& hash(RootId root) const { return roots_[root].hash; }
  // Returns a number that differs each time the id is used for a new key.
  uint32_t generation(RootId root) const { return roots_[root].generation; }
  int64_t refs(RootId root) const { return roots_[root].refs; }
  // Ids given out so far are 0 .. num_ids() - 1; unused ones have no reference.
  int64_t num_ids() const { return static_cast<int64_t>(roots_.size()); }
  int64_t size() const { return static_cast<int64_t>(by_key_.size()); }

 private:
  struct Root {
    std::string key;
    ChainHash hash;
    PinId on = kNoPin;
    int64_t base_tokens = 0;
    int64_t refs = 0;
    uint32_t generation = 0;
  };

  std::unordered_map<std::string, RootId, base::StringHash, std::equal_to<>> by_key_;
  std::vector<Root> roots_;
  std::vector<RootId> unused_;
  std::unordered_map<PinId, int64_t> prefixes_;  // begun and not ended; the roots on each
};

}  // namespace quire::engine
