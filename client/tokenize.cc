// quire tokenize: turns text into tokens or tokens into text, or applies the chat template to a
// conversation.

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/json_util.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/request_flags.h"

namespace quire::client {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  std::string text;
  std::string text_file;
  std::string token_ids;
  std::string chat_file;
  std::optional<std::string> model;
  v1::TokenizeRequest use;  // has no other field
  std::optional<bool> add_special_tokens;
  std::optional<bool> parse_special_tokens;
  std::optional<bool> skip_special_tokens;
};

absl::Status Tokenize(Connection& connection, const TokenizeFlags& given, std::string text) {
  v1::TokenizeRequest request = given.use;
  request.set_text(std::move(text));
  if (given.model) request.set_model(*given.model);
  if (given.add_special_tokens) request.set_add_special_tokens(*given.add_special_tokens);
  if (given.parse_special_tokens) request.set_parse_special_tokens(*given.parse_special_tokens);
  v1::TokenizeResponse response;
  RETURN_IF_ERROR(connection.Tokenize(request, &response));
  if (given.common.json) {
    Print(ToJsonLine(response));
    return absl::OkStatus();
  }
  for (const v1::Token& token : response.tokens()) {
    Print(absl::StrFormat("%8d  %6d..%-6d  \"%s\"\n", token.id(), token.begin(), token.end(),
                          absl::Utf8SafeCEscape(token.piece())));
  }
  return absl::OkStatus();
}

absl::Status Detokenize(Connection& connection, const TokenizeFlags& given,
                        const std::vector<int32_t>& ids) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  if (given.model) request.set_model(*given.model);
  if (given.skip_special_tokens) request.set_skip_special_tokens(*given.skip_special_tokens);
  v1::DetokenizeResponse response;
  RETURN_IF_ERROR(connection.Detokenize(request, &response));
  Print(given.common.json ? ToJsonLine(response) : absl::StrCat(response.text(), "\n"));
  return absl::OkStatus();
}

absl::Status ApplyTemplate(Connection& connection, const TokenizeFlags& given,
                           const v1::ChatMessages& chat) {
  v1::ApplyChatTemplateRequest request;
  *request.mutable_chat() = chat;
  if (given.model) request.set_model(*given.model);
  v1::ApplyChatTemplateResponse response;
  RETURN_IF_ERROR(connection.ApplyChatTemplate(request, &response));
  Print(given.common.json ? ToJsonLine(response) : response.text());
  return absl::OkStatus();
}

}  // namespace

int RunTokenize(const Args& args, Interrupt& interrupt) {
  TokenizeFlags given;
  base::FlagSet flags(
      "quire tokenize --text TEXT [flags]",
      "Shows the tokens of a text (id, range of bytes, piece in the vocabulary), or the "
      "text of tokens.");
  flags.Section("Input (one of)");
  flags.Add("text", "TEXT", "show the tokens of this text", &given.text);
  flags.Add("text_file", "FILE", "show the tokens of this file's text; - is standard input",
            &given.text_file);
  flags.Add("token_ids", "IDS", "show the text of these tokens, e.g. 1,2,3", &given.token_ids);
  flags.Add("chat_file", "FILE",
            "show the prompt that the model's chat template makes of "
            "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}]}",
            &given.chat_file);
  flags.SuggestForOperand("text");
  flags.AddHabits("text", {"p", "prompt"});
  flags.AddHabits("text_file", {"f", "file"});
  flags.Section("Options");
  flags.Add("model", "NAME", "name of the model (default: the served one)", &given.model);
  flags.Add("use", "USE",
            "what the text is, for the tokens around it: prompt, chat, continuation or whole "
            "(default prompt)",
            [&given](std::string_view text) {
              return SetEnum(&given.use, v1::TokenizeRequest::descriptor()->FindFieldByName("use"),
                             text);
            });
  flags.AddSwitch("add_special_tokens",
                  "add the tokens that the use wants, such as BOS; =false: none (default true)",
                  base::SetterOf(&given.add_special_tokens));
  flags.AddSwitch("parse_special_tokens", "read \"<|...|>\" in the text as the special token",
                  base::SetterOf(&given.parse_special_tokens));
  flags.AddSwitch("skip_special_tokens",
                  "leave special tokens out of the text; =false: keep them (default true)",
                  base::SetterOf(&given.skip_special_tokens));
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;

  const char* const kinds[] = {"text", "text_file", "token_ids", "chat_file"};
  if (std::count_if(std::begin(kinds), std::end(kinds),
                    [&](const char* kind) { return flags.IsSet(kind); }) != 1) {
    return FailUsage(flags, absl::InvalidArgumentError(
                                "give one of --text, --text_file, --token_ids, --chat_file"));
  }
  std::vector<int32_t> ids;
  v1::ChatMessages chat;
  if (flags.IsSet("token_ids")) {
    const auto parsed = base::ParseIdList(given.token_ids);
    if (!parsed.ok()) return FailUsage(flags, parsed.status());
    ids = *parsed;
  } else if (flags.IsSet("text_file") || flags.IsSet("chat_file")) {
    const bool is_chat = flags.IsSet("chat_file");
    const auto text = ReadTextFile(is_chat ? given.chat_file : given.text_file);
    if (!text.ok()) return FailUsage(flags, text.status());
    given.text = *text;
    if (is_chat) {
      const auto status = google::protobuf::util::JsonStringToMessage(*text, &chat);
      if (!status.ok()) {
        return FailUsage(flags, absl::InvalidArgumentError("--chat_file: " + status.ToString()));
      }
    }
  }

  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  const absl::Status status = flags.IsSet("token_ids") ? Detokenize(**connection, given, ids)
                              : flags.IsSet("chat_file")
                                  ? ApplyTemplate(**connection, given, chat)
                                  : Tokenize(**connection, given, given.text);
  interrupt.ClearHandler();
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace quire::client
