#pragma once

#include <string>

namespace quire::engine {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

}  // namespace quire::engine
