#include "engine/scheduler/prompt_lookup.h"

#include <algorithm>
#include <bit>

namespace quire::engine {
namespace {

constexpr size_t kLeastPlaces = 256;

// The most places that a search looks at. Without a limit, a prompt that was made to cause hash
// collisions would hold up the step thread.
constexpr int kMostProbes = 8;

// The most tokens that one call adds to the table, so that a long prompt delays no step.
constexpr int64_t kMostIndexed = 4096;

using Tokens = std::span<const int32_t>;

// Returns the kMatched tokens before index `end`.
Tokens KeyOf(Tokens tokens, int64_t end) {
  return tokens.subspan(static_cast<size_t>(end - PromptLookup::kMatched), PromptLookup::kMatched);
}

// Returns true if the tokens that the lookup compares are equal before `a` and before `b`.
bool SameKey(Tokens tokens, int64_t a, int64_t b) {
  return std::ranges::equal(KeyOf(tokens, a), KeyOf(tokens, b));
}

}  // namespace

size_t PromptLookup::PlaceOf(Tokens tokens, int64_t end) const {
  uint64_t hash = 0;
  for (const int32_t token : KeyOf(tokens, end)) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  const size_t mask = table_.size() - 1;
  for (size_t probe = 0; probe < kMostProbes; ++probe) {
    const size_t place = (hash + probe) & mask;
    if (table_[place] == 0 || SameKey(tokens, table_[place], end)) return place;
  }
  return hash & mask;
}

void PromptLookup::Index(Tokens tokens, int64_t end) {
  if (const auto least = static_cast<size_t>(2 * end); table_.size() < least) {
    table_.assign(std::bit_ceil(std::max(least, kLeastPlaces)), 0);
    indexed_ = kMatched - 1;
  }
  end = std::min(end, indexed_ + kMostIndexed);
  while (indexed_ < end) {
    ++indexed_;
    table_[PlaceOf(tokens, indexed_)] = static_cast<int32_t>(indexed_);
  }
}

int32_t PromptLookup::Draft(Tokens tokens, int32_t most, std::vector<int32_t>& drafts) {
  const int64_t end = std::ssize(tokens);
  if (end <= kMatched) return 0;
  Index(tokens, end - 1);  // without the last tokens themselves
  if (indexed_ < end - 1) return 0;
  const int64_t found = table_[PlaceOf(tokens, end)];
  if (found == 0 || !SameKey(tokens, found, end)) return 0;
  const auto first = std::ssize(drafts);
  for (int64_t i = found; i < found + most; ++i) {
    drafts.push_back(i < end ? tokens[static_cast<size_t>(i)]
                             : drafts[static_cast<size_t>(first + i - end)]);
  }
  return most;
}

}  // namespace quire::engine
