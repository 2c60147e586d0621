#pragma once

// A model's own chat template, rendered by our Jinja engine (engine/tokenizer/jinja/).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "engine/request/chat_message.h"

namespace quire::engine {

struct ChatTemplateVariables {
  std::string bos_token;
  std::string eos_token;
};

// Immutable after Create; thread-safe.
class ChatTemplate {
 public:
  // InvalidArgument names the construct that our engine lacks, with its line: refused when the
  // model loads, not at the first chat.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(std::string_view source,
                                                              ChatTemplateVariables variables);
  ~ChatTemplate();

  // The prompt. InvalidArgument carries the text of the template's raise_exception, or says what
  // the template did wrong; rendering is bounded in output bytes and steps.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const;

  // The prompt from any variables: `context` is an object, most often with messages,
  // add_generation_prompt and tools; what it lacks of bos_token, eos_token, tools and documents
  // (none) is added. The order of its keys is kept, which a template that prints tools as JSON
  // shows.
  absl::StatusOr<std::string> RenderJson(nlohmann::ordered_json context) const;

  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine
