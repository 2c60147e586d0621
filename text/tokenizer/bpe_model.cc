#include "text/tokenizer/bpe_model.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "base/interrupt.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

// In a word of at most kShortWord symbols, visiting all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 32;
constexpr uint32_t kNoRank = UINT32_MAX;

}  // namespace

void BpeModel::AddToken(std::string_view bytes, int32_t id) {
  if (bytes.empty()) return;
  if (!tokens_.emplace(bytes, id).second) return;
  if (config_.unit == BpeUnit::kByte) {
    if (bytes.size() == 1) byte_tokens_[static_cast<uint8_t>(bytes[0])] = id;
    return;
  }
  const base::Utf8Char c = base::DecodeUtf8(bytes, 0);
  if (!c.valid || c.length != bytes.size()) return;
  if (c.code_point < ascii_characters_.size()) {
    ascii_characters_[c.code_point] = id;
  } else {
    characters_.emplace(c.code_point, id);
  }
}

int32_t BpeModel::AddCharacter(char32_t code_point, int32_t first_free_id) {
  const int32_t known = CharacterId(code_point);
  if (known >= 0) return known;
  if (first_character_id_ == INT32_MAX) first_character_id_ = first_free_id;
  // The new ids of ASCII characters come first, by code point. The new ids of other characters
  // follow in the order of the calls.
  const auto id =
      first_character_id_ + static_cast<int32_t>(characters_.size() + ascii_characters_.size());
  if (code_point < ascii_characters_.size()) {
    const int32_t ascii_id = first_character_id_ + static_cast<int32_t>(code_point);
    ascii_characters_[code_point] = ascii_id;
    return ascii_id;
  }
  characters_.emplace(code_point, id);
  return id;
}

int32_t BpeModel::CharacterId(char32_t code_point) const {
  if (code_point < ascii_characters_.size()) return ascii_characters_[code_point];
  const auto it = characters_.find(code_point);
  return it == characters_.end() ? kUnknown : it->second;
}

int32_t BpeModel::TokenId(std::string_view bytes) const {
  const auto it = tokens_.find(bytes);
  return it == tokens_.end() ? kUnknown : it->second;
}

size_t BpeModel::SlotOf(uint64_t pair) const {
  // Fibonacci hashing. Both halves of `pair` affect the upper bits of the product, and these bits
  // are mixed into the index.
  uint64_t hash = (pair ^ (pair >> 29)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  return static_cast<size_t>(hash) & (merges_.size() - 1);
}

void BpeModel::Rehash(size_t num_slots) {
  std::vector<Merge> old(num_slots);
  old.swap(merges_);
  for (const Merge& merge : old) {
    if (merge.pair == kNoPair) continue;
    size_t slot = SlotOf(merge.pair);
    while (merges_[slot].pair != kNoPair) slot = (slot + 1) & (merges_.size() - 1);
    merges_[slot] = merge;
  }
}

void BpeModel::ReserveMerges(size_t count) {
  size_t num_slots = 16;
  while (num_slots < 2 * count) num_slots *= 2;
  if (num_slots > merges_.size()) Rehash(num_slots);
}

void BpeModel::AddMerge(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  ReserveMerges(num_merges_ + 1);
  const uint64_t pair = PairKey(left, right);
  size_t slot = SlotOf(pair);
  while (merges_[slot].pair != kNoPair) {
    if (merges_[slot].pair == pair) return;
    slot = (slot + 1) & (merges_.size() - 1);
  }
  merges_[slot] = {.pair = pair, .rank = rank, .merged = merged};
  ++num_merges_;
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0 || merges_.empty()) return nullptr;
  const uint64_t pair = PairKey(left, right);
  for (size_t slot = SlotOf(pair);; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

void BpeModel::SplitIntoSymbols(std::string_view word, std::vector<WordToken>& symbols) const {
  for (uint32_t i = 0; i < word.size();) {
    uint32_t end = i + 1;
    int32_t id = kUnknown;
    if (config_.unit == BpeUnit::kByte) {
      id = byte_tokens_[static_cast<uint8_t>(word[i])];
    } else {
      const base::Utf8Char c = base::DecodeUtf8(word, i);
      end = i + static_cast<uint32_t>(c.length);
      id = CharacterId(c.code_point);
    }
    const bool dropped = id == kUnknown && config_.drop_unknown_first && config_.unknown_id < 0 &&
                         !config_.byte_fallback;
    if (!dropped) symbols.push_back({id, i, end});
    i = end;
  }
}

void BpeModel::MergeShort(std::vector<WordToken>& symbols) const {
  const Merge* pairs[kShortWord];  // pairs[i]: the merge of symbols i and i + 1
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = FindMerge(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] != nullptr && pairs[i]->rank < best_rank) {
        best = i;
        best_rank = pairs[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = {pairs[best]->merged, symbols[best].begin, symbols[best + 1].end};
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) pairs[best - 1] = FindMerge(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) pairs[best] = FindMerge(symbols[best].id, symbols[best + 1].id);
  }
  symbols.resize(count);
}

void BpeModel::MergeLong(std::vector<WordToken>& symbols) const {
  struct Candidate {
    uint32_t rank;
    uint32_t left;  // index of the left symbol
    // The ids of the two symbols when the candidate is added. The candidate is skipped if an
    // earlier merge has changed one of them.
    int32_t left_id;
    int32_t right_id;
    int32_t merged;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, left) > std::tie(other.rank, other.left);
    }
  };
  constexpr uint32_t kEnd = UINT32_MAX;
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> previous(count);
  std::vector<bool> merged_away(count, false);
  std::vector<Candidate> initial;
  const auto candidate = [&](uint32_t left, uint32_t right, auto add) {
    const Merge* merge = FindMerge(symbols[left].id, symbols[right].id);
    if (merge != nullptr) {
      add(Candidate{merge->rank, left, symbols[left].id, symbols[right].id, merge->merged});
    }
  };
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
    if (i + 1 < count) candidate(i, i + 1, [&](const Candidate& c) { initial.push_back(c); });
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(initial));
  const auto push = [&](const Candidate& c) { queue.push(c); };
  while (!queue.empty() && !base::Interrupted()) {
    const Candidate best = queue.top();
    queue.pop();
    const uint32_t left = best.left;
    if (merged_away[left] || symbols[left].id != best.left_id) continue;
    const uint32_t right = next[left];
    if (right == kEnd || symbols[right].id != best.right_id) continue;
    symbols[left] = {best.merged, symbols[left].begin, symbols[right].end};
    merged_away[right] = true;
    next[left] = next[right];
    if (next[left] != kEnd) previous[next[left]] = left;
    if (previous[left] != kEnd) candidate(previous[left], left, push);
    if (next[left] != kEnd) candidate(left, next[left], push);
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i != kEnd && count > 0; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

void BpeModel::Emit(std::string_view word, const std::vector<WordToken>& symbols,
                    std::vector<WordToken>& out) const {
  bool previous_unknown = false;
  for (const WordToken& symbol : symbols) {
    if (symbol.id >= 0 && symbol.id < first_character_id_) {
      out.push_back(symbol);
      previous_unknown = false;
      continue;
    }
    if (config_.byte_fallback) {
      bool all_known = true;
      for (uint32_t i = symbol.begin; i < symbol.end; ++i) {
        all_known = all_known && byte_tokens_[static_cast<uint8_t>(word[i])] >= 0;
      }
      if (all_known) {
        for (uint32_t i = symbol.begin; i < symbol.end; ++i) {
          out.push_back({byte_tokens_[static_cast<uint8_t>(word[i])], i, i + 1});
        }
        previous_unknown = false;
        continue;
      }
    }
    if (config_.unknown_id < 0) continue;
    if (previous_unknown && config_.fuse_unknown) {
      out.back().end = symbol.end;
    } else {
      out.push_back({config_.unknown_id, symbol.begin, symbol.end});
    }
    previous_unknown = true;
  }
}

bool BpeModel::covers_all() const {
  return (config_.unit == BpeUnit::kByte || config_.byte_fallback) &&
         std::ranges::all_of(byte_tokens_, [](int32_t id) { return id >= 0; });
}

void BpeModel::EncodeWord(std::string_view word, std::vector<WordToken>& out) const {
  if (config_.ignore_merges) {
    if (const int32_t id = TokenId(word); id >= 0) {
      out.push_back({id, 0, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  thread_local std::vector<WordToken> symbols;  // scratch
  symbols.clear();
  SplitIntoSymbols(word, symbols);
  if (symbols.size() <= kShortWord) {
    MergeShort(symbols);
  } else {
    MergeLong(symbols);
  }
  Emit(word, symbols, out);
  // The scratch memory of a huge word is freed. It would otherwise stay allocated until the thread
  // ends.
  if (symbols.capacity() > 64 * 1024) std::vector<WordToken>().swap(symbols);
}

}  // namespace quire::text
