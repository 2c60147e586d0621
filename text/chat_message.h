#pragma once

#include <string>

namespace quire::text {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  // The content is read as text: control tokens that are written out in it are none
  // (ChatMessages.literal_contents).
  bool literal = false;
};

}  // namespace quire::text
