#pragma once

// The chat template of a model, rendered by the Jinja engine in text/jinja/.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/chat_message.h"
#include "text/tokenizer/aligned_text.h"

namespace quire::text {

// Texts of special tokens by the names that templates use: "bos_token".
using ChatTemplateVariables = std::map<std::string, std::string>;

// A rendered conversation.
struct RenderedChat {
  std::string text;
  // The bytes of `text` that came from the contents of literal messages, ascending and disjoint.
  std::vector<ByteRange> contents;
};

// Immutable after Create; thread-safe.
class ChatTemplate {
 public:
  // Parses `source`. If the engine does not support a construct in `source`, returns an
  // InvalidArgument error that names the construct and its line. So an unsupported template is
  // known when its model loads, not at the first chat.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(std::string_view source,
                                                              ChatTemplateVariables variables);
  ~ChatTemplate();

  // Renders the prompt. An InvalidArgument error has the text that the template passes to
  // raise_exception, or describes an error in the template. The output bytes and the steps of a
  // rendering are limited.
  absl::StatusOr<RenderedChat> Render(const std::vector<ChatMessage>& messages,
                                      bool add_generation_prompt) const;

  // Renders the prompt from any variables. `context` is an object, most often with messages,
  // add_generation_prompt and tools. Adds the following variables where they are absent:
  // add_generation_prompt (false), tools and documents (null), and those given to Create. The order
  // of keys in `context` is kept, because a template that prints tools as JSON shows that order.
  absl::StatusOr<std::string> RenderJson(nlohmann::ordered_json context) const;

  const std::string& source() const;

 private:
  // Adds the variables that RenderJson names.
  void AddVariables(nlohmann::ordered_json& context) const;

  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::text
