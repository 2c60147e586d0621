#include "text/chat_template.h"

#include <utility>

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/jinja/template.h"

namespace quire::text {

struct ChatTemplate::Impl {
  std::string source;
  ChatTemplateVariables variables;
  jinja::Template parsed;
};

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(
    std::string_view source, ChatTemplateVariables variables) {
  ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Create(source));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(
      std::make_unique<Impl>(Impl{std::string(source), std::move(variables), std::move(parsed)})));
}

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                 bool add_generation_prompt) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return RenderJson(
      {{"messages", std::move(list)}, {"add_generation_prompt", add_generation_prompt}});
}

absl::StatusOr<std::string> ChatTemplate::RenderJson(nlohmann::ordered_json context) const {
  if (!context.is_object())
    return absl::InvalidArgumentError("a template's variables are a JSON object");
  // Adds the variables that every template has in Hugging Face.
  const auto add = [&context](const char* name, nlohmann::ordered_json value) {
    if (!context.contains(name)) context[name] = std::move(value);
  };
  add("add_generation_prompt", false);
  add("tools", nullptr);
  add("documents", nullptr);
  for (const auto& [name, text] : impl_->variables) add(name.c_str(), text);
  return impl_->parsed.Render(context, absl::Now());
}

}  // namespace quire::text
