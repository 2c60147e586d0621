#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/jinja/template.h"

namespace quire::text {
namespace {

// Returns the ranges of the bytes that are marked.
std::vector<ByteRange> RangesOf(std::string_view marks) {
  std::vector<ByteRange> ranges;
  for (size_t begin = marks.find('\1'); begin != std::string_view::npos;) {
    const size_t end = std::min(marks.find('\0', begin), marks.size());
    ranges.push_back({.begin = static_cast<uint32_t>(begin), .end = static_cast<uint32_t>(end)});
    begin = marks.find('\1', end);
  }
  return ranges;
}

}  // namespace

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

absl::StatusOr<RenderedChat> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                  bool add_generation_prompt) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  nlohmann::ordered_json context = {{"messages", std::move(list)},
                                    {"add_generation_prompt", add_generation_prompt}};
  AddVariables(context);
  jinja::ContentStrings contents;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].literal) continue;
    contents.insert(&context["messages"][i]["content"].get_ref<const std::string&>());
  }
  ASSIGN_OR_RETURN(jinja::TracedText rendered,
                   impl_->parsed.RenderTraced(context, contents, absl::Now()));
  return RenderedChat{.text = std::move(rendered.bytes), .contents = RangesOf(rendered.marks)};
}

void ChatTemplate::AddVariables(nlohmann::ordered_json& context) const {
  // Adds the variables that every template has in Hugging Face.
  const auto add = [&context](const char* name, nlohmann::ordered_json value) {
    if (!context.contains(name)) context[name] = std::move(value);
  };
  add("add_generation_prompt", false);
  add("tools", nullptr);
  add("documents", nullptr);
  for (const auto& [name, text] : impl_->variables) add(name.c_str(), text);
}

absl::StatusOr<std::string> ChatTemplate::RenderJson(nlohmann::ordered_json context) const {
  if (!context.is_object())
    return absl::InvalidArgumentError("a template's variables are a JSON object");
  AddVariables(context);
  return impl_->parsed.Render(context, absl::Now());
}

}  // namespace quire::text
