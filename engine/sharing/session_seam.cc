#include "engine/sharing/session_seam.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/utf8.h"

namespace quire::engine {
namespace {

// The session's last tokens of which EncodeBehind makes a context. The tokens of a text depend on
// what stands a few words before it at most.
constexpr int64_t kContextTokens = 32;

// Returns the ids of `tokens` from the byte `border` on; nullopt if a token spans the border.
std::optional<TokenIds> IdsFrom(const std::vector<text::EncodedToken>& tokens, int64_t border) {
  TokenIds ids;
  for (const text::EncodedToken& token : tokens) {
    if (token.begin < border && token.end > border) return std::nullopt;
    if (token.begin >= border) ids.push_back(token.id);
  }
  return ids;
}

// Returns the ranges with all places moved by `by`; what is then before 0 is cut off.
std::vector<text::ByteRange> Moved(std::span<const text::ByteRange> ranges, int64_t by) {
  const auto moved = [by](uint32_t place) {
    return static_cast<uint32_t>(std::max<int64_t>(place + by, 0));
  };
  std::vector<text::ByteRange> out;
  for (const text::ByteRange& range : ranges) {
    if (range.end + by > 0) out.push_back({.begin = moved(range.begin), .end = moved(range.end)});
  }
  return out;
}

}  // namespace

absl::StatusOr<SessionSeam::Extended> SessionSeam::Extend(const SessionContent& before,
                                                          const PromptContent& given,
                                                          bool generates) const {
  absl::StatusOr<Extended> extended;
  if (before.is_bare_prefix()) {
    extended = ExtendPrefix(before, given, generates);
  } else if (const auto* messages = std::get_if<ChatMessages>(&given)) {
    extended = ExtendWithMessages(before, *messages, generates);
  } else if (const auto* ids = std::get_if<TokenIds>(&given); ids != nullptr && !ids->empty()) {
    extended = ExtendWithIds(before, *ids);
  } else if (const auto* text = std::get_if<std::string>(&given);
             text != nullptr && !text->empty()) {
    extended = ExtendWithText(before, *text);
  } else if (generates) {
    extended = ExtendWithNothing(before);
  } else {
    extended = absl::InvalidArgumentError("content: want at least one token, got none");
  }
  RETURN_IF_ERROR(extended.status());
  RETURN_IF_ERROR(CheckLength(generates ? "prompt" : "content", extended->content));
  return extended;
}

absl::StatusOr<SessionContent> SessionSeam::Restore(SessionContent prefix,
                                                    const SessionCopy& copy) const {
  RETURN_IF_ERROR(frontend_.CheckTokenIds("content.token_ids", copy.ids));
  const int64_t answer_len = copy.answer_len.value_or(0);
  if (answer_len < 0 || answer_len > std::ssize(copy.ids)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("content.answer_tokens: want at most the %d tokens of content, got %d",
                        copy.ids.size(), answer_len));
  }
  if (copy.answer_len.has_value() && !copy.messages.has_value()) {
    return absl::InvalidArgumentError("content.answer_tokens: want none without content.chat");
  }
  SessionContent content = std::move(prefix);
  content.Append(copy.ids);
  RETURN_IF_ERROR(CheckLength("content", content));
  if (!copy.messages.has_value()) return content;

  ChatMessages all;
  if (content.prefix() != nullptr) {
    const auto* const earlier = std::get_if<ChatMessages>(&content.prefix()->given);
    if (earlier == nullptr) {
      return absl::InvalidArgumentError(
          "content.chat: want none, since the prefix was not made of messages");
    }
    all = *earlier;
  }
  all.insert(all.end(), copy.messages->begin(), copy.messages->end());
  const bool begins_answer = copy.answer_len.has_value();
  ASSIGN_OR_RETURN(text::RenderedChat chat, frontend_.ApplyChatTemplate(all, begins_answer));
  auto conversation = std::make_shared<SessionConversation>();
  conversation->marks = {{.num_tokens = content.num_tokens() - answer_len,
                          .num_messages = all.size(),
                          .text_bytes = chat.text.size(),
                          .answer_end = content.num_tokens(),
                          .begins_answer = begins_answer}};
  conversation->messages = std::make_shared<const ChatMessages>(std::move(all));
  conversation->text = std::make_shared<const std::string>(std::move(chat.text));
  content.SetConversation(std::move(conversation));
  return content;
}

absl::Status SessionSeam::CheckLength(const char* field, const SessionContent& content) const {
  if (content.num_tokens() < max_model_len_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: want at most %d tokens in the session (max_model_len %d less one to generate), got %d",
      field, max_model_len_ - 1, max_model_len_, content.num_tokens()));
}

absl::StatusOr<SessionSeam::Extended> SessionSeam::ExtendPrefix(const SessionContent& before,
                                                                const PromptContent& given,
                                                                bool generates) const {
  const PrefixContent& prefix = *before.prefix();
  const auto* const earlier = std::get_if<ChatMessages>(&prefix.given);
  const auto* const ids = std::get_if<TokenIds>(&given);
  const bool has_nothing = ids != nullptr && ids->empty();
  if (has_nothing && !generates) {
    return absl::InvalidArgumentError("content: want at least one token, got none");
  }
  // Without a message of its own, a turn answers those of the prefix.
  const PromptContent no_messages = ChatMessages();
  const PromptContent& next = has_nothing && earlier != nullptr ? no_messages : given;
  ASSIGN_OR_RETURN(
      Frontend::AfterPrefix whole,
      frontend_.EncodeAfterPrefix(prefix, next, GenerateParams(), before.owns_prefix(), generates));
  Extended extended{.content = before, .kept_tokens = before.num_tokens()};
  extended.content.Append(TokenIds(whole.ids.begin() + before.num_tokens(), whole.ids.end()));
  if (const auto* messages = std::get_if<ChatMessages>(&next)) {
    ChatMessages all = *earlier;
    all.insert(all.end(), messages->begin(), messages->end());
    auto conversation = std::make_shared<SessionConversation>();
    conversation->marks = {{.num_tokens = extended.content.num_tokens(),
                            .num_messages = all.size(),
                            .text_bytes = whole.text.size(),
                            .answer_end = extended.content.num_tokens(),
                            .begins_answer = generates}};
    conversation->messages = std::make_shared<const ChatMessages>(std::move(all));
    conversation->text = std::make_shared<const std::string>(std::move(whole.text));
    extended.content.SetConversation(std::move(conversation));
  }
  return extended;
}

absl::StatusOr<SessionSeam::Extended> SessionSeam::ExtendWithIds(const SessionContent& before,
                                                                 const TokenIds& ids) const {
  RETURN_IF_ERROR(frontend_.CheckTokenIds("token_ids", ids));
  Extended extended{.content = before, .kept_tokens = before.num_tokens()};
  extended.content.Append(ids);
  return extended;
}

absl::StatusOr<SessionSeam::Extended> SessionSeam::ExtendWithText(const SessionContent& before,
                                                                  const std::string& text) const {
  if (before.conversation() != nullptr) {
    return absl::InvalidArgumentError(
        "text: want chat or token_ids, since the session is a conversation");
  }
  ASSIGN_OR_RETURN(TokenIds ids, EncodeBehind(before, text));
  RETURN_IF_ERROR(frontend_.CheckTokenIds("text: tokens", ids));
  Extended extended{.content = before, .kept_tokens = before.num_tokens()};
  extended.content.Append(std::move(ids));
  return extended;
}

absl::StatusOr<SessionSeam::Extended> SessionSeam::ExtendWithNothing(
    const SessionContent& before) const {
  if (before.num_tokens() == 0) {
    return absl::InvalidArgumentError(
        "prompt: want one of text, token_ids, chat, since the session is empty");
  }
  // Without a new message, a turn goes on with an answer, or begins the one that is due.
  const auto& conversation = before.conversation();
  if (conversation != nullptr && !conversation->marks.back().has_answer()) {
    return ExtendWithMessages(before, {}, /*generates=*/true);
  }
  return Extended{.content = before, .kept_tokens = before.num_tokens()};
}

absl::StatusOr<SessionSeam::Extended> SessionSeam::ExtendWithMessages(const SessionContent& before,
                                                                      const ChatMessages& messages,
                                                                      bool generates) const {
  const auto& earlier = before.conversation();
  if (earlier == nullptr && before.num_tokens() > 0) {
    return absl::InvalidArgumentError(
        "chat: want text or token_ids, since the session's tokens are no conversation");
  }
  auto conversation = std::make_shared<SessionConversation>();
  ChatMessages all;
  std::string seen;
  if (earlier != nullptr) {
    conversation->marks = earlier->marks;
    const SessionConversation::Mark& last = earlier->marks.back();
    const auto num_messages = static_cast<std::ptrdiff_t>(last.num_messages);
    all.assign(earlier->messages->begin(), earlier->messages->begin() + num_messages);
    seen = earlier->text->substr(0, last.text_bytes);
    if (last.has_answer()) {
      // The answer is read like the messages around it.
      const bool literal = std::ranges::any_of(all, &text::ChatMessage::literal) ||
                           std::ranges::any_of(messages, &text::ChatMessage::literal);
      const TokenIds answer = before.Ids(last.num_tokens, last.answer_end);
      seen += TextOf(answer, /*skip_special_tokens=*/false);
      all.push_back({.role = "assistant",
                     .content = base::LossyUtf8(TextOf(answer, /*skip_special_tokens=*/true)),
                     .literal = literal});
    }
  }
  all.insert(all.end(), messages.begin(), messages.end());
  ASSIGN_OR_RETURN(text::RenderedChat chat, frontend_.ApplyChatTemplate(all, generates));
  std::string& rendered = chat.text;

  Extended extended;
  TokenIds added;
  if (before.num_tokens() > 0 && rendered.starts_with(seen)) {
    extended = {.content = before, .kept_tokens = before.num_tokens()};
    ASSIGN_OR_RETURN(added, EncodeBehind(before, std::string_view(rendered).substr(seen.size()),
                                         Moved(chat.contents, -std::ssize(seen))));
  } else {
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                     frontend_.Encode(rendered, {.kind = text::InputKind::kChat,
                                                 .contents = std::move(chat.contents)}));
    added = *IdsFrom(tokens, 0);
    const TokenIds old = before.ToIds();
    const int64_t kept = std::ranges::mismatch(old, added).in1 - old.begin();
    extended = {.content = before.First(kept), .kept_tokens = kept};
    added.erase(added.begin(), added.begin() + kept);
    std::erase_if(conversation->marks, [&](const SessionConversation::Mark& mark) {
      return mark.num_tokens > kept || std::string_view(rendered).substr(0, mark.text_bytes) !=
                                           std::string_view(seen).substr(0, mark.text_bytes);
    });
    for (auto& mark : conversation->marks) mark.answer_end = std::min(mark.answer_end, kept);
  }
  RETURN_IF_ERROR(frontend_.CheckTokenIds("chat: tokens", added));
  extended.content.Append(std::move(added));

  const int64_t num_tokens = extended.content.num_tokens();
  auto& marks = conversation->marks;
  if (!marks.empty() && marks.back().num_tokens == num_tokens) marks.pop_back();
  marks.push_back({.num_tokens = num_tokens,
                   .num_messages = all.size(),
                   .text_bytes = rendered.size(),
                   .answer_end = num_tokens,
                   .begins_answer = generates});
  conversation->messages = std::make_shared<const ChatMessages>(std::move(all));
  conversation->text = std::make_shared<const std::string>(std::move(rendered));
  extended.content.SetConversation(std::move(conversation));
  return extended;
}

absl::StatusOr<TokenIds> SessionSeam::EncodeBehind(
    const SessionContent& before, std::string_view text,
    std::span<const text::ByteRange> contents) const {
  if (before.num_tokens() == 0) {
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens, frontend_.Encode(text, {}));
    return *IdsFrom(tokens, 0);
  }
  const int64_t begin = std::max(int64_t{0}, before.num_tokens() - kContextTokens);
  // Some tokenizers put a space before a text, and some begin a text with other tokens. So the text
  // gets a context: the session's own, or a line break if a token would span the border to it.
  for (const std::string& context :
       {TextOf(before.Ids(begin, before.num_tokens()), /*skip_special_tokens=*/false),
        std::string("\n")}) {
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                     frontend_.Encode(context + std::string(text),
                                      {.kind = text::InputKind::kPart,
                                       .contents = Moved(contents, std::ssize(context))}));
    if (std::optional<TokenIds> ids = IdsFrom(tokens, std::ssize(context))) return *std::move(ids);
  }
  ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                   frontend_.Encode(text, {.kind = text::InputKind::kPart,
                                           .contents = {contents.begin(), contents.end()}}));
  return *IdsFrom(tokens, 0);
}

std::string SessionSeam::TextOf(const TokenIds& ids, bool skip_special_tokens) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!skip_special_tokens || !tokenizer_.IsSpecial(id)) text += tokenizer_.TokenBytes(id);
  }
  return text;
}

}  // namespace quire::engine
