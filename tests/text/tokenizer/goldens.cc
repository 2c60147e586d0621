#include "tests/text/tokenizer/goldens.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/json.h"
#include "base/strings.h"
#include "tests/testing/test_data.h"
#include "text/tokenizer/tokenizer_json.h"

namespace quire::text::testing {

using base::ToAbsl;
using nlohmann::json;

const std::vector<std::string> kTinyNames = {"byte_level",    "split_pattern", "punctuation_nfc",
                                             "sentencepiece", "metaspace",     "unigram"};

json ParseFile(const std::string& path) {
  absl::StatusOr<json> parsed = base::ParseJson(quire::testing::ReadFile(path), path);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *std::move(parsed) : json();
}

json ReadTestJson(std::string_view name) {
  return ParseFile(
      quire::testing::TestSourcePath(absl::StrCat("text/tokenizer/testdata/", ToAbsl(name))));
}

std::unique_ptr<Tokenizer> TokenizerFromJson(const std::string& tokenizer_json) {
  const json null;
  auto tokenizer = CreateTokenizer(HfTokenizerFiles{.tokenizer_json = tokenizer_json,
                                                    .config = null,
                                                    .generation_config = null,
                                                    .tokenizer_config = null});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> TinyTokenizer(std::string_view name) {
  return TokenizerFromJson(quire::testing::ReadFile(quire::testing::TestSourcePath(
      absl::StrCat("text/tokenizer/testdata/tiny_", ToAbsl(name), ".json"))));
}

std::vector<EncodedToken> Encoded(const Tokenizer& tokenizer, std::string_view text,
                                  const EncodeOptions& options) {
  auto tokens = tokenizer.Encode(text, options);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return tokens.ok() ? *std::move(tokens) : std::vector<EncodedToken>();
}

std::vector<int32_t> IdsOf(const std::vector<EncodedToken>& tokens) {
  std::vector<int32_t> ids;
  for (const EncodedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

std::string Joined(const std::vector<EncodedToken>& tokens) {
  return absl::StrJoin(IdsOf(tokens), " ");
}

std::string HashOf(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(id) >> shift) & 0xFF)) * 0x100000001B3u;
    }
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace quire::text::testing
