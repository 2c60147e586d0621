#include "client/prompt_flags.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

#include "base/status_macros.h"
#include "client/command.h"

namespace quire::client {
namespace {

int64_t NumPrompts(const base::FlagSet& flags) {
  const char* const kinds[] = {"prompt", "prompt_file", "token_ids", "chat_file"};
  return std::count_if(std::begin(kinds), std::end(kinds),
                       [&](const char* kind) { return flags.IsSet(kind); });
}

template <typename Request>
absl::Status SetPromptOf(const base::FlagSet& flags, const PromptFlags& given, Request* request) {
  if (NumPrompts(flags) != 1) {
    return absl::InvalidArgumentError(
        "give the prompt with one of --prompt, --prompt_file, --token_ids, --chat_file");
  }
  if (flags.IsSet("prompt")) {
    request->set_text(given.prompt);
  } else if (flags.IsSet("prompt_file")) {
    ASSIGN_OR_RETURN(*request->mutable_text(), ReadTextFile(given.prompt_file));
  } else if (flags.IsSet("token_ids")) {
    auto ids = base::ParseIdList(given.token_ids);
    if (!ids.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--token_ids: ", ids.status().message()));
    }
    request->mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  } else {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(given.chat_file));
    const auto parsed = google::protobuf::util::JsonStringToMessage(text, request->mutable_chat());
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--chat_file: ", parsed.ToString()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddPromptFlags(base::FlagSet& flags, PromptFlags* prompt) {
  flags.Section("Prompt (one of)");
  flags.Add("prompt", "TEXT", "a text", &prompt->prompt);
  flags.Add("prompt_file", "FILE", "the text of a file; - is standard input", &prompt->prompt_file);
  flags.Add("token_ids", "IDS", "token ids, e.g. 1,2,3", &prompt->token_ids);
  flags.Add("chat_file", "FILE",
            "a conversation for the model's chat template, as JSON: "
            "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}]}",
            &prompt->chat_file);
  flags.SuggestForOperand("prompt");
  flags.AddHabits("prompt", {"p"});
  flags.AddHabits("prompt_file", {"f", "file"});
}

absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::GenerateRequest* request) {
  if (request->has_session_name() && NumPrompts(flags) == 0) return absl::OkStatus();
  return SetPromptOf(flags, given, request);
}

absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::ScoreRequest* request) {
  return SetPromptOf(flags, given, request);
}

absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::AppendToSessionRequest* request) {
  return SetPromptOf(flags, given, request);
}

absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::CreatePrefixRequest* request) {
  return SetPromptOf(flags, given, request);
}

}  // namespace quire::client
