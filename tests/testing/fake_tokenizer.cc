#include "tests/testing/fake_tokenizer.h"

#include <algorithm>
#include <utility>

namespace quire::testing {

FakeTokenizer::FakeTokenizer(std::vector<std::string> pieces) {
  for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
  for (std::string& piece : pieces) tokens_.push_back(std::move(piece));
  tokens_.emplace_back("<s>");
  tokens_.emplace_back("</s>");
  end_ids_ = {eos_id()};
  frame_.prefix_ids = {bos_id()};
}

int64_t FakeTokenizer::max_token_bytes() const {
  return std::ssize(*std::ranges::max_element(tokens_, {}, &std::string::size));
}

absl::StatusOr<std::vector<text::EncodedToken>> FakeTokenizer::Encode(
    std::string_view text, const text::EncodeOptions& options) const {
  std::vector<text::EncodedToken> encoded;
  for (size_t begin = 0; begin < text.size();) {
    int32_t best = static_cast<unsigned char>(text[begin]);
    for (int32_t id = 256; id < bos_id(); ++id) {
      if (text.substr(begin).starts_with(tokens_[id]) &&
          tokens_[id].size() > tokens_[best].size()) {
        best = id;
      }
    }
    const size_t end = begin + tokens_[best].size();
    encoded.push_back(
        {.id = best, .begin = static_cast<int64_t>(begin), .end = static_cast<int64_t>(end)});
    begin = end;
  }
  frame_.Put(options.kind, std::ssize(text), encoded);
  return encoded;
}

}  // namespace quire::testing
