#pragma once

// The ids of tokens.

#include <algorithm>
#include <optional>
#include <span>

#include "engine/request/request.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

inline TokenIds Ids(std::span<const text::EncodedToken> tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  for (const text::EncodedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

// Returns the ids of `whole` that follow those of `begin`; nullopt if they part. A named prefix
// keeps the tokens that it was made of, also when an earlier version put no BOS before them, or a
// second one. So if only that differs, what follows does.
inline std::optional<TokenIds> IdsBehind(const text::InputFrame& frame, const TokenIds& begin,
                                         const TokenIds& whole) {
  const auto behind = [](std::span<const int32_t> first,
                         std::span<const int32_t> all) -> std::optional<TokenIds> {
    const auto [left, rest] = std::ranges::mismatch(first, all);
    if (left != first.end()) return std::nullopt;
    return TokenIds(rest, all.end());
  };
  if (std::optional<TokenIds> ids = behind(begin, whole)) return ids;
  return behind(std::span(begin).subspan(static_cast<size_t>(frame.NumLeading(begin))),
                std::span(whole).subspan(static_cast<size_t>(frame.NumLeading(whole))));
}

}  // namespace quire::engine
