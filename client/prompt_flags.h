#pragma once

// The flags for the prompt, for all subcommands that take a prompt.

#include <string>

#include "absl/status/status.h"

#include "base/flags/flag_set.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/session_service.pb.h"

namespace quire::client {

struct PromptFlags {
  std::string prompt;
  std::string prompt_file;
  std::string chat_file;
  std::string token_ids;
};

// Adds the flags as a section of their own. `prompt` must outlive flags.Parse.
void AddPromptFlags(base::FlagSet& flags, PromptFlags* prompt);

// Sets the request's prompt. Returns InvalidArgument unless exactly one of the flags was given and
// its prompt can be read. A request that names a session needs no prompt.
absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::GenerateRequest* request);
absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::ScoreRequest* request);
absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::AppendToSessionRequest* request);
absl::Status SetPrompt(const base::FlagSet& flags, const PromptFlags& given,
                       v1::CreatePrefixRequest* request);

}  // namespace quire::client
