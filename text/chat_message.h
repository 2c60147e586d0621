#pragma once

#include <string>

namespace quire::text {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

}  // namespace quire::text
