#pragma once

// A model's own chat template, rendered by our Jinja engine (text/jinja/).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/chat_message.h"

namespace quire::text {

struct ChatTemplateVariables {
  std::string bos_token;
  std::string eos_token;
};

// Immutable after Create; thread-safe.
class ChatTemplate {
 public:
  // InvalidArgument names a construct that our engine lacks, and its line, so that the model is
  // refused when it loads, not at the first chat.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(std::string_view source,
                                                              ChatTemplateVariables variables);
  ~ChatTemplate();

  // Renders the prompt. InvalidArgument has the text of the template's raise_exception, or the
  // template's error. Rendering is bounded in output bytes and steps.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const;

  // Renders the prompt from any variables: `context` is an object, most often with messages,
  // add_generation_prompt and tools. Missing bos_token, eos_token, tools and documents (null) are
  // added. The order of its keys is kept, since a template that prints tools as JSON shows it.
  absl::StatusOr<std::string> RenderJson(nlohmann::ordered_json context) const;

  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::text
