#pragma once

// Byte-pair encoding of one word. Pairs of neighbouring symbols are merged until no pair has a
// merge. The pair with the lowest rank is merged first; among equal ranks the leftmost.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/strings.h"
#include "text/tokenizer/word_model.h"

namespace quire::text {

// The kind of symbol into which a word is split before merging.
enum class BpeUnit {
  kByte,       // byte-level: a byte is a symbol
  kCharacter,  // SentencePiece: a UTF-8 character is a symbol
};

struct BpeModelConfig {
  BpeUnit unit = BpeUnit::kByte;
  int32_t unknown_id = -1;     // for a symbol without a token; -1: the symbol is dropped
  bool fuse_unknown = false;   // neighbouring unknown symbols become one token
  bool byte_fallback = false;  // an unknown character becomes the tokens of its bytes
  bool ignore_merges = false;  // a word that equals a token becomes that token, without merging
  // True: an unknown symbol is dropped before merging, so that its neighbours may merge (Hugging
  // Face). False: an unknown symbol is dropped after merging (llama.cpp).
  bool drop_unknown_first = false;
};

// Immutable once filled; thread-safe. EncodeWord takes O(n log n) for a word of n symbols. There is
// no cache of words.
class BpeModel final : public WordModel {
 public:
  explicit BpeModel(const BpeModelConfig& config) : config_(config) {}

  const BpeModelConfig& config() const { return config_; }

  // Adds a token. `bytes` is the text of the token. EncodeWord uses this text to find the tokens of
  // single symbols and, with ignore_merges, of whole words.
  void AddToken(std::string_view bytes, int32_t id);
  void SetByteToken(uint8_t byte, int32_t id) { byte_tokens_[byte] = id; }
  // Returns the id of a character. A character that is not a token, but occurs in longer tokens,
  // gets a new id of its own, which is `first_free_id` or higher.
  int32_t AddCharacter(char32_t code_point, int32_t first_free_id);
  // Adds the merge of two symbols into the token `merged`. Lower ranks merge first. If a pair is
  // added twice, the first merge stays.
  void AddMerge(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  void ReserveMerges(size_t count);

  int32_t CharacterId(char32_t code_point) const;  // -1: none
  int32_t TokenId(std::string_view bytes) const;   // -1: none

  // Appends the tokens of `word`. With BpeUnit::kCharacter the word must be valid UTF-8.
  void EncodeWord(std::string_view word, std::vector<WordToken>& out) const override;
  bool covers_all() const override;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr int32_t kUnknown = -1;

  static uint64_t PairKey(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t SlotOf(uint64_t pair) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;  // null: none
  void Rehash(size_t num_slots);

  void SplitIntoSymbols(std::string_view word, std::vector<WordToken>& symbols) const;
  void MergeShort(std::vector<WordToken>& symbols) const;
  void MergeLong(std::vector<WordToken>& symbols) const;
  void Emit(std::string_view word, const std::vector<WordToken>& symbols,
            std::vector<WordToken>& out) const;

  BpeModelConfig config_;
  std::array<int32_t, 256> byte_tokens_ = NoBytes();
  std::array<int32_t, 128> ascii_characters_ = NoAscii();
  std::unordered_map<char32_t, int32_t> characters_;  // characters beyond ASCII
  int32_t first_character_id_ = INT32_MAX;            // ids from here on are characters, not tokens
  std::unordered_map<std::string, int32_t, base::StringHash, std::equal_to<>> tokens_;
  std::vector<Merge> merges_;  // open addressing, linear probing; at most half full
  size_t num_merges_ = 0;

  static constexpr std::array<int32_t, 256> NoBytes() {
    std::array<int32_t, 256> ids{};
    ids.fill(-1);
    return ids;
  }
  static constexpr std::array<int32_t, 128> NoAscii() {
    std::array<int32_t, 128> ids{};
    ids.fill(-1);
    return ids;
  }
};

}  // namespace quire::text
