#include "text/tokenizer/input_frame.h"

#include <algorithm>
#include <string_view>

namespace quire::text {
namespace {

bool IsAt(const std::vector<int32_t>& ids, std::span<const EncodedToken> tokens) {
  return std::ranges::equal(ids, tokens, {}, {}, &EncodedToken::id);
}

}  // namespace

void InputFrame::Put(InputKind kind, int64_t num_bytes, std::vector<EncodedToken>& tokens) const {
  const bool is_whole = kind == InputKind::kWhole;
  const bool begins =
      is_whole || kind == InputKind::kPrompt || (kind == InputKind::kChat && begins_chats);
  const std::span<const EncodedToken> given = tokens;
  const size_t num_first = std::min(prefix_ids.size(), given.size());
  const size_t num_last = std::min(suffix_ids.size(), given.size());
  const bool has_prefix = IsAt(prefix_ids, given.first(num_first));
  const bool has_suffix = IsAt(suffix_ids, given.last(num_last));
  if (begins && !has_prefix) {
    tokens.insert(tokens.begin(), prefix_ids.size(), {});
    for (size_t i = 0; i < prefix_ids.size(); ++i) tokens[i].id = prefix_ids[i];
  }
  if (!is_whole || has_suffix) return;
  for (const int32_t id : suffix_ids) {
    tokens.push_back({.id = id, .begin = num_bytes, .end = num_bytes});
  }
}

std::string InputFrame::BeginChat(std::string rendered, size_t own_bytes) const {
  const std::string_view own = std::string_view(rendered).substr(0, own_bytes);
  if (begins_chats && !own.starts_with(prefix_text)) rendered.insert(0, prefix_text);
  return rendered;
}

int64_t InputFrame::NumLeading(std::span<const int32_t> ids) const {
  const size_t length = prefix_ids.size();
  size_t at = 0;
  while (length > 0 && ids.size() - at >= length &&
         std::ranges::equal(prefix_ids, ids.subspan(at, length))) {
    at += length;
  }
  return static_cast<int64_t>(at);
}

}  // namespace quire::text
