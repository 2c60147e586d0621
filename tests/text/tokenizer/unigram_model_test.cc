#include "text/tokenizer/unigram_model.h"

#include <deque>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::text {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Ids(const UnigramModel& model, std::string_view word) {
  std::vector<WordToken> tokens;
  model.EncodeWord(word, tokens);
  std::vector<int32_t> ids;
  for (const WordToken& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(UnigramModelTest, TakesTheSplitOfTheLargestSum) {
  const UnigramModel model({.unknown_id = 0}, {{"<unk>", 0.0},
                                               {"a", -1.0},
                                               {"b", -2.0},
                                               {"ab", -2.5},
                                               {"abc", -9.0},
                                               {"c", -4.0},
                                               {"bc", -3.0}});
  EXPECT_THAT(Ids(model, "ab"), ElementsAre(3));      // ab: -2.5; a b: -3
  EXPECT_THAT(Ids(model, "abc"), ElementsAre(1, 6));  // a bc: -4; ab c: -6.5; abc: -9
  EXPECT_THAT(Ids(model, ""), ElementsAre());
}

TEST(UnigramModelTest, NeighbouringUnknownCharactersAreOneToken) {
  const std::vector<UnigramModel::Piece> pieces = {{"<unk>", 0.0}, {"a", -1.0}};
  std::vector<WordToken> tokens;
  UnigramModel({.unknown_id = 0}, pieces).EncodeWord("aéüa<unk>x", tokens);
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[1].id, 0);
  EXPECT_EQ(tokens[1].begin, 1u);
  EXPECT_EQ(tokens[1].end, 5u);
  EXPECT_EQ(tokens[3].id, 0);  // "<unk>" and "x" are one unknown token
  EXPECT_EQ(tokens[3].end, 12u);
  EXPECT_THAT(Ids(UnigramModel({}, pieces), "aéa"), ElementsAre(1, 1));
}

TEST(UnigramModelTest, FallsBackToBytesOnlyWhereAllAreThere) {
  const UnigramModel model({.unknown_id = 0, .byte_fallback = true},
                           {{"<unk>", 0.0}, {"a", -1.0}, {"<0xC3>", -5.0}, {"<0xA9>", -5.0}});
  EXPECT_THAT(Ids(model, "aé"), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(model, "aü"), ElementsAre(1, 0));
  EXPECT_THAT(Ids(model, "éü"), ElementsAre(0));
  EXPECT_THAT(Ids(model, "<unk>"), ElementsAre(0));
}

// Returns the best score of all splits of `word`, found by trying every split.
double BestScore(const std::vector<UnigramModel::Piece>& pieces, std::string_view word) {
  if (word.empty()) return 0.0;
  double best = -1e9;
  for (const auto& piece : pieces) {
    if (piece.text.empty() || !word.starts_with(piece.text)) continue;
    best = std::max(best, piece.score + BestScore(pieces, word.substr(piece.text.size())));
  }
  return best;
}

TEST(UnigramModelTest, NoSplitIsBetter) {
  EXPECT_TRUE(rc::check("the score is that of the best split", [] {
    std::vector<UnigramModel::Piece> pieces = {{"a", -3.0}, {"b", -3.5}};
    std::deque<std::string> texts;
    const int count = *rc::gen::inRange(0, 12);
    for (int i = 0; i < count; ++i) {
      const std::string text =
          *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element('a', 'b')));
      texts.push_back(text.substr(0, 5));
      pieces.push_back({texts.back(), -*rc::gen::inRange(1, 200) / 16.0});
    }
    // The last of several pieces with equal text counts.
    std::vector<UnigramModel::Piece> seen = pieces;
    for (size_t i = 0; i < seen.size(); ++i) {
      for (size_t j = i + 1; j < seen.size(); ++j) {
        if (seen[i].text == pieces[j].text) seen[i].text = {};
      }
    }
    const auto word = *rc::gen::container<std::string>(rc::gen::element('a', 'b'));
    const std::string_view text = std::string_view(word).substr(0, 12);
    std::vector<WordToken> tokens;
    UnigramModel({}, pieces).EncodeWord(text, tokens);
    double score = 0.0;
    uint32_t at = 0;
    for (const WordToken& token : tokens) {
      const auto& piece = pieces[static_cast<size_t>(token.id)];
      RC_ASSERT(token.begin == at);
      RC_ASSERT(text.substr(at, token.end - at) == piece.text);
      at = token.end;
      score += piece.score;
    }
    RC_ASSERT(at == text.size());
    RC_ASSERT(score == BestScore(seen, text));
  }));
}

}  // namespace
}  // namespace quire::text
