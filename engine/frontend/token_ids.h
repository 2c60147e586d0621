#pragma once

// The ids of tokens.

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

}  // namespace quire::engine
