#include "convert/tokenizer_probe.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "tests/convert/small_tokenizers.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"

namespace quire::convert {
namespace {

using base::ToAbsl;
using nlohmann::json;
using testing::ByteLevelJson;
using testing::SplitsOf;

std::unique_ptr<text::Tokenizer> SplitBy(const text::GgufPreTokenizer& pre) {
  json root = ByteLevelJson();
  root["pre_tokenizer"] = SplitsOf(pre.patterns);
  root["model"]["ignore_merges"] = pre.ignore_merges;
  return text::testing::TokenizerFromJson(root.dump());
}

// A probe also makes texts of the vocabulary's tokens. Here it leaves out all tokens, so only its
// built-in texts can show a difference.
TEST(TokenizerProbeTest, ItsOwnTextsTellEverySplitFromEveryOther) {
  std::vector<std::unique_ptr<text::Tokenizer>> tokenizers;
  const std::vector<std::string_view> names = text::DistinctGgufPreTokenizers();
  for (const std::string_view name : names)
    tokenizers.push_back(SplitBy(*text::FindGgufPreTokenizer(name)));
  const std::vector<bool> all(static_cast<size_t>(tokenizers[0]->vocab_size()), true);
  for (size_t i = 0; i < names.size(); ++i) {
    const TokenizerProbe probe(*tokenizers[i], {.left_out = all});
    for (size_t k = 0; k < names.size(); ++k) {
      const bool same_words = text::FindGgufPreTokenizer(names[i])->patterns ==
                              text::FindGgufPreTokenizer(names[k])->patterns;
      EXPECT_EQ(probe.FirstDifference(*tokenizers[k]).has_value(), !same_words)
          << ToAbsl(names[i]) << " and " << ToAbsl(names[k]);
    }
  }
}

TEST(TokenizerProbeTest, DescribesADifference) {
  EXPECT_EQ(Describe({.text = "a\n\"", .want = {1, 2}, .got = {3}}), R"("a\n\"": want 1 2, got 3)");
  const TokenizerDifference longer{.text = std::string(100, 'a'),
                                   .want = std::vector<int32_t>(20, 7)};
  EXPECT_EQ(Describe(longer),
            "\"" + std::string(80, 'a') + "\"...: want 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 ..., got ");
}

}  // namespace
}  // namespace quire::convert
