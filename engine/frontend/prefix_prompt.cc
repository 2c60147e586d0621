// The functions of Frontend for named prefixes: the seam between the tokens of a prefix and those
// of what follows.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/frontend/frontend.h"
#include "engine/frontend/token_ids.h"

namespace quire::engine {
namespace {

// Messages that may come next. What the template writes before both, it writes before every message
// of a user.
constexpr const char* kNextMessages[] = {"x", "7 y"};

constexpr size_t kShownBytes = 40;

std::string Shown(std::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(std::string(text.substr(0, kShownBytes))),
                      "\"");
}

}  // namespace

absl::StatusOr<TokenIds> Frontend::EncodePrefix(const PromptContent& given) const {
  const GenerateParams params;  // a prefix is a prompt without special wishes
  TokenIds ids;
  if (const TokenIds* taken = std::get_if<TokenIds>(&given)) {
    RETURN_IF_ERROR(CheckPromptLength(params, std::ssize(*taken)));
    RETURN_IF_ERROR(CheckTokenIds("token_ids", *taken));
    ids = *taken;
  } else if (const std::string* text = std::get_if<std::string>(&given)) {
    RETURN_IF_ERROR(CheckFits("text", params, std::ssize(*text)));
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens, Encode(*text, {}));
    ids = Ids(tokens);
  } else {
    const auto& messages = std::get<ChatMessages>(given);
    const auto encode = [&](text::RenderedChat rendered) -> absl::StatusOr<TokenIds> {
      RETURN_IF_ERROR(CheckFits("chat", params, std::ssize(rendered.text)));
      ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                       Encode(rendered.text, {.kind = text::InputKind::kChat,
                                              .contents = std::move(rendered.contents)}));
      return Ids(tokens);
    };
    const auto keep_common = [&](const TokenIds& other) {
      const auto length = std::min(ids.size(), other.size());
      ids.erase(std::mismatch(ids.begin(), ids.begin() + length, other.begin()).first, ids.end());
    };
    for (const char* next : kNextMessages) {
      ChatMessages more = messages;
      more.push_back({.role = "user", .content = next});
      ASSIGN_OR_RETURN(text::RenderedChat rendered,
                       ApplyChatTemplate(more, /*add_generation_prompt=*/true));
      ASSIGN_OR_RETURN(TokenIds others, encode(std::move(rendered)));
      if (next == kNextMessages[0]) {
        ids = std::move(others);
      } else {
        keep_common(others);
      }
    }
    // The next message may be no user's. Many templates refuse messages that end with a system's.
    if (const auto alone = ApplyChatTemplate(messages, /*add_generation_prompt=*/false);
        alone.ok()) {
      ASSIGN_OR_RETURN(const TokenIds others, encode(*alone));
      keep_common(others);
    }
  }
  RETURN_IF_ERROR(CheckTokenIds("prefix: tokens", ids));
  RETURN_IF_ERROR(CheckPromptLength(params, std::ssize(ids)));
  if (ids.empty()) {
    return absl::InvalidArgumentError(
        "prefix: want at least one token that stays the same whatever follows, got none");
  }
  return ids;
}

absl::Status Frontend::CheckMayRead(bool is_owner, const OutputOptions& output) {
  if (is_owner || !(output.echo || output.prompt_logprobs)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "output: want neither echo nor prompt_logprobs: only the owner of a prefix may read it");
}

absl::StatusOr<std::optional<Frontend::PromptText>> Frontend::FillPromptAfterPrefix(
    Request& request) const {
  const GenerateParams& params = request.params;
  const bool is_owner = request.prefix->tenant == params.sched.tenant;
  RETURN_IF_ERROR(CheckMayRead(is_owner, params.output));
  ASSIGN_OR_RETURN(AfterPrefix whole, EncodeAfterPrefix(*request.prefix, params.prompt, params,
                                                        is_owner, /*generates=*/true));
  request.prompt_ids = std::move(whole.ids);
  if (std::holds_alternative<TokenIds>(params.prompt)) {
    if (params.output.echo) FillEcho(request);
    return std::nullopt;
  }
  if (params.output.echo) request.prompt_text = whole.text;
  return PromptText{.text = std::move(whole.text), .options = whole.options};
}

absl::StatusOr<Frontend::AfterPrefix> Frontend::EncodeAfterPrefix(const PrefixContent& prefix,
                                                                  const PromptContent& prompt,
                                                                  const GenerateParams& params,
                                                                  bool is_owner,
                                                                  bool generates) const {
  AfterPrefix whole;
  if (const TokenIds* ids = std::get_if<TokenIds>(&prompt)) {
    RETURN_IF_ERROR(CheckPromptLength(params, std::ssize(prefix.ids) + std::ssize(*ids)));
    RETURN_IF_ERROR(CheckTokenIds("token_ids", *ids));
    whole.ids = prefix.ids;
    whole.ids.insert(whole.ids.end(), ids->begin(), ids->end());
    return whole;
  }
  if (prompt.index() != prefix.given.index()) {
    return absl::InvalidArgumentError(
        "prompt: want token_ids, or what the prefix was made of, text after text and messages "
        "after messages");
  }
  if (const ChatMessages* messages = std::get_if<ChatMessages>(&prompt)) {
    ChatMessages all = std::get<ChatMessages>(prefix.given);
    all.insert(all.end(), messages->begin(), messages->end());
    ASSIGN_OR_RETURN(text::RenderedChat chat, ApplyChatTemplate(all, generates));
    whole.text = std::move(chat.text);
    whole.options.contents = std::move(chat.contents);
    whole.options.kind = text::InputKind::kChat;
  } else {
    whole.text = absl::StrCat(std::get<std::string>(prefix.given), std::get<std::string>(prompt));
  }
  RETURN_IF_ERROR(CheckFits("prompt", params, std::ssize(whole.text)));
  ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens, Encode(whole.text, whole.options));
  const std::optional<TokenIds> behind = IdsBehind(tokenizer_.frame(), prefix.ids, Ids(tokens));
  if (!behind) return PartsFromPrefix(prefix, is_owner, whole.text, tokens);
  whole.ids = prefix.ids;
  whole.ids.insert(whole.ids.end(), behind->begin(), behind->end());
  RETURN_IF_ERROR(CheckTokenIds("prompt: tokens", whole.ids));
  return whole;
}

absl::Status Frontend::PartsFromPrefix(const PrefixContent& prefix, bool is_owner,
                                       std::string_view text,
                                       std::span<const text::EncodedToken> whole) const {
  size_t at = 0;
  while (at < std::min(whole.size(), prefix.ids.size()) && whole[at].id == prefix.ids[at]) ++at;
  const auto byte = static_cast<size_t>(at < whole.size() ? whole[at].begin : std::ssize(text));
  std::string message = absl::StrFormat(
      "prompt: want a text that begins with the %d tokens of the prefix when both are tokenized "
      "together, but they part at token %d, byte %d; move the border between prefix and prompt, or "
      "send token_ids",
      prefix.ids.size(), at, byte);
  // Another tenant may use the prefix, not read it.
  if (is_owner) {
    const TokenIds rest(
        prefix.ids.begin() + static_cast<int64_t>(at),
        prefix.ids.begin() + static_cast<int64_t>(std::min(prefix.ids.size(), at + kShownBytes)));
    absl::StrAppend(&message, ": the prefix has ",
                    Shown(tokenizer_.Decode(rest, /*skip_special_tokens=*/false)), ", the prompt ",
                    Shown(text.substr(byte)));
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace quire::engine
