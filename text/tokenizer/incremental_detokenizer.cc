#include "text/tokenizer/incremental_detokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace quire::text {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               std::string pending)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      pending_(std::move(pending)) {}

std::string_view IncrementalDetokenizer::HiddenBytes(int32_t id) const {
  if (!skip_special_tokens_ || !tokenizer_.IsSpecial(id)) return {};
  return tokenizer_.TokenBytes(id);
}

std::string IncrementalDetokenizer::Push(int32_t id) {
  if (!HiddenBytes(id).empty()) return "";
  pending_.append(tokenizer_.TokenBytes(id));
  // Later tokens can change only the bytes of an unfinished character at the end, which has at most
  // three bytes. All bytes before it are certain.
  size_t certain = pending_.size();
  for (size_t i = pending_.size() > 3 ? pending_.size() - 3 : 0; i < pending_.size(); ++i) {
    const base::Utf8Char c = base::DecodeUtf8(pending_, i);
    if (c.incomplete && i + c.length == pending_.size()) {
      certain = i;
      break;
    }
  }
  std::string text;
  base::AppendLossyUtf8(std::string_view(pending_).substr(0, certain), text);
  pending_.erase(0, certain);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  base::AppendLossyUtf8(pending_, text);
  pending_.clear();
  return text;
}

}  // namespace quire::text
