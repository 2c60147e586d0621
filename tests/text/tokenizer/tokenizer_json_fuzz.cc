// Parses any bytes as a tokenizer.json. Expects an error or a tokenizer that works, never a crash.
// The seeds are the tiny tokenizers of testdata/.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nlohmann/json.hpp"

#include "base/check.h"
#include "text/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using quire::text::CreateTokenizer;
  using quire::text::HfTokenizerFiles;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const nlohmann::json null;
  const auto tokenizer = CreateTokenizer(HfTokenizerFiles{text, null, null, null});
  if (!tokenizer.ok()) return 0;
  const std::string_view prompt = "The <s> reason </s>\n 123 it's \xFF é ▁人🙂  x";
  const auto tokens = (*tokenizer)->Encode(prompt, {});
  if (!tokens.ok()) return 0;  // a pattern of the input gave up
  for (const auto& token : *tokens) {
    QUIRE_CHECK(token.id >= 0 && token.id < (*tokenizer)->vocab_size());
    QUIRE_CHECK(token.begin <= token.end && token.end <= static_cast<int64_t>(prompt.size()));
  }
  return 0;
}
