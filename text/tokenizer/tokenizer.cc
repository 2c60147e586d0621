#include "text/tokenizer/tokenizer.h"

#include "base/utf8.h"

namespace quire::text {

std::vector<int32_t> Tokenizer::IdsWithoutPiece(int64_t model_vocab_size) const {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < model_vocab_size; ++id) {
    if (id >= vocab_size() || Piece(id).empty()) ids.push_back(id);
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special_tokens && IsSpecial(id)) continue;
    bytes.append(TokenBytes(id));
  }
  std::string_view text = bytes;
  if (strips_leading_space() && text.starts_with(' ')) text.remove_prefix(1);
  std::string out;
  out.reserve(text.size());
  base::AppendLossyUtf8(text, out);
  return out;
}

}  // namespace quire::text
