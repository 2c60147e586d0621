#include "text/tokenizer/bpe_model.h"

#include <map>
#include <rapidcheck.h>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace quire::text {
namespace {

using Merges = std::map<std::pair<int32_t, int32_t>, std::pair<uint32_t, int32_t>>;

// Merges pairs by the definition of BPE, until no pair can be merged. Each merge takes the pair of
// the best rank, and among pairs of equal rank the leftmost pair.
std::vector<int32_t> NaiveMerge(std::vector<int32_t> ids, const Merges& merges) {
  while (true) {
    size_t best = ids.size();
    std::pair<uint32_t, int32_t> best_merge{UINT32_MAX, 0};
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.find({ids[i], ids[i + 1]});
      if (it != merges.end() && it->second.first < best_merge.first) {
        best = i;
        best_merge = it->second;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = best_merge.second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::vector<int32_t> Ids(const std::vector<WordToken>& tokens) {
  std::vector<int32_t> ids;
  for (const WordToken& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(BpeModelTest, EqualsTheDefinitionForShortAndLongWords) {
  int long_words = 0;
  EXPECT_TRUE(rc::check("merging equals the naive model", [&long_words] {
    // The tokens are a, b, c and the results of random merges. Many merges have equal ranks.
    BpeModel model({});
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (size_t i = 0; i < tokens.size(); ++i) model.AddToken(tokens[i], static_cast<int32_t>(i));
    Merges merges;
    const int num_merges = *rc::gen::inRange(0, 40);
    for (int k = 0; k < num_merges; ++k) {
      const int32_t left = *rc::gen::inRange<int32_t>(0, static_cast<int32_t>(tokens.size()));
      const int32_t right = *rc::gen::inRange<int32_t>(0, static_cast<int32_t>(tokens.size()));
      const auto rank = *rc::gen::inRange<uint32_t>(0, 12);
      const auto merged = static_cast<int32_t>(tokens.size());
      if (!merges.try_emplace({left, right}, rank, merged).second) continue;
      tokens.push_back(tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)]);
      model.AddMerge(left, right, rank, merged);
    }
    const auto length = *rc::gen::inRange<size_t>(1, 200);
    std::string word;
    std::vector<int32_t> symbols;
    for (size_t i = 0; i < length; ++i) {
      symbols.push_back(*rc::gen::inRange<int32_t>(0, 3));
      word.push_back(static_cast<char>('a' + symbols.back()));
    }
    long_words += length > 32 ? 1 : 0;
    std::vector<WordToken> out;
    model.EncodeWord(word, out);
    RC_ASSERT(Ids(out) == NaiveMerge(symbols, merges));
    uint32_t at = 0;
    for (const WordToken& token : out) {
      RC_ASSERT(token.begin == at);
      RC_ASSERT(word.substr(token.begin, token.end - token.begin) ==
                tokens[static_cast<size_t>(token.id)]);
      at = token.end;
    }
    RC_ASSERT(at == word.size());
  }));
  EXPECT_GT(long_words, 10);  // long words are merged in another way, so both ways ran
}

TEST(BpeModelTest, AMegabyteWordIsNoTrouble) {
  BpeModel model({});
  for (int32_t i = 0; i < 20; ++i) {
    model.AddToken(std::string(size_t{1} << i, 'a'), i);
    if (i > 0) model.AddMerge(i - 1, i - 1, static_cast<uint32_t>(i), i);
  }
  std::vector<WordToken> out;
  model.EncodeWord(std::string((1 << 20) + 3, 'a'), out);
  EXPECT_EQ(Ids(out), (std::vector<int32_t>{19, 19, 1, 0}));
}

TEST(BpeModelTest, UnknownSymbols) {
  const auto encode = [](BpeModelConfig config, std::string_view word) {
    BpeModel model(config);
    model.AddToken("a", 0);
    model.AddToken("b", 1);
    model.AddToken("ab", 2);
    model.AddMerge(0, 1, 0, 2);
    for (int byte = 0; byte < 128; ++byte)
      model.SetByteToken(static_cast<uint8_t>(byte + 128), 100 + byte);
    std::vector<WordToken> out;
    model.EncodeWord(word, out);
    return Ids(out);
  };
  using IdList = std::vector<int32_t>;
  const BpeUnit unit = BpeUnit::kCharacter;
  EXPECT_EQ(encode({.unit = unit}, "axb"), (IdList{0, 1}));
  EXPECT_EQ(encode({.unit = unit, .drop_unknown_first = true}, "axb"), (IdList{2}));
  EXPECT_EQ(encode({.unit = unit, .unknown_id = 9}, "axxb"), (IdList{0, 9, 9, 1}));
  EXPECT_EQ(encode({.unit = unit, .unknown_id = 9, .fuse_unknown = true}, "axxb"),
            (IdList{0, 9, 1}));
  EXPECT_EQ(encode({.unit = unit, .unknown_id = 9, .byte_fallback = true}, "a\u00e9x"),
            (IdList{0, 100 + 0x43, 100 + 0x29, 9}));
}

TEST(BpeModelTest, WholeWordsWithoutMerges) {
  BpeModel model({.ignore_merges = true});
  model.AddToken("a", 0);
  model.AddToken("b", 1);
  model.AddToken("ab", 2);
  std::vector<WordToken> out;
  model.EncodeWord("ab", out);
  model.EncodeWord("ba", out);
  EXPECT_EQ(Ids(out), (std::vector<int32_t>{2, 1, 0}));
}

}  // namespace
}  // namespace quire::text
