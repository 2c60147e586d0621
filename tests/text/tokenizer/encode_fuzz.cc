// Encodes any bytes with each tiny tokenizer of testdata/. Checks that offsets stay in the text,
// and that decoding token by token equals decoding all tokens at once. Must run in the repository's
// root.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "base/check.h"
#include "tests/testing/test_data.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/tokenizer/tokenizer_json.h"

namespace {

using quire::text::EncodedToken;
using quire::text::Tokenizer;

std::vector<std::unique_ptr<Tokenizer>> LoadTokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  const nlohmann::json null;
  for (const char* name : {"byte_level", "split_pattern", "punctuation_nfc", "sentencepiece",
                           "metaspace", "unigram"}) {
    const std::string path = quire::testing::TestSourcePath(
        std::string("text/tokenizer/testdata/tiny_") + name + ".json");
    const std::string text = quire::testing::ReadFile(path);
    QUIRE_CHECK(!text.empty()) << path << " is not there: run this from the repository's root";
    auto tokenizer =
        quire::text::CreateTokenizer(quire::text::HfTokenizerFiles{text, null, null, null});
    QUIRE_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizers.push_back(*std::move(tokenizer));
  }
  return tokenizers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const tokenizers = new auto(LoadTokenizers());
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& tokenizer : *tokenizers) {
    std::vector<int32_t> ids;
    EncodedToken last;
    const auto tokens = tokenizer->Encode(text, {.parse_special_tokens = size % 2 == 0});
    QUIRE_CHECK(tokens.ok()) << tokens.status().ToString();
    for (const EncodedToken& token : *tokens) {
      QUIRE_CHECK(token.begin >= last.begin && token.end >= last.end && token.begin <= token.end);
      QUIRE_CHECK(token.end <= static_cast<int64_t>(size));
      last = token;
      ids.push_back(token.id);
    }
    QUIRE_CHECK(tokenizer->max_token_bytes() == 0 ||
                static_cast<int64_t>(size) <= tokenizer->max_token_bytes() * std::ssize(ids));
    quire::text::IncrementalDetokenizer detokenizer(*tokenizer, /*skip_special_tokens=*/false);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.Push(id);
    streamed += detokenizer.Flush();
    if (tokenizer->strips_leading_space() && streamed.starts_with(' ')) streamed.erase(0, 1);
    QUIRE_CHECK(streamed == tokenizer->Decode(ids, /*skip_special_tokens=*/false));
  }
  return 0;
}
