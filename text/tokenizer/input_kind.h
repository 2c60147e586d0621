#pragma once

namespace quire::text {

// What a text is, which decides the tokens that InputFrame puts around its own.
enum class InputKind {
  kPrompt,  // begins a prompt, and something follows: the prefix
  kChat,    // a rendered conversation: the prefix, if a conversation gets it (begins_chats)
  kPart,    // follows other tokens: nothing
  kWhole,   // nothing follows: prefix and suffix
};

}  // namespace quire::text
