#include "client/generation_output.h"

#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "client/command.h"

namespace quire::client {
namespace {

// Prints a line such as "13 -0.4215 | 13 -0.4215, 5 -2.1000" for each position: the token at the
// position, then the most likely tokens.
void PrintLogprobs(const char* title, const std::vector<v1::PositionLogprobs>& positions) {
  if (positions.empty()) return;
  std::string out = absl::StrCat(title, " (token id, log probability | most likely)\n");
  for (const v1::PositionLogprobs& position : positions) {
    absl::StrAppendFormat(&out, "%8d %9.4f", position.chosen().token_id(),
                          position.chosen().logprob());
    if (position.chosen().rank() > 0) {
      absl::StrAppendFormat(&out, "  rank %d  \"%s\"", position.chosen().rank(),
                            absl::CHexEscape(position.chosen().text()));
    }
    const char* separator = " | ";
    for (const v1::TokenLogprob& top : position.top()) {
      absl::StrAppendFormat(&out, "%s%d %.4f", separator, top.token_id(), top.logprob());
      separator = ", ";
    }
    out += '\n';
  }
  Print(out);
}

// Returns the name of `reason` in lower case without the prefix: "length" for FINISH_REASON_LENGTH.
// Adds the stop text or the stop token, if there is one.
std::string Describe(v1::FinishReason reason, const v1::StoppedBy& stop) {
  const std::string& name = v1::FinishReason_Name(reason);
  std::string out = absl::AsciiStrToLower(absl::StripPrefix(name, "FINISH_REASON_"));
  if (stop.by_case() == v1::StoppedBy::kText) absl::StrAppend(&out, " at \"", stop.text(), "\"");
  if (stop.by_case() == v1::StoppedBy::kTokenId)
    absl::StrAppend(&out, " at token ", stop.token_id());
  return out;
}

}  // namespace

GenerationPrinter::GenerationPrinter(GenerationOutputOptions options) : options_(options) {
  if (options_.columns > 0) wrap_.emplace(options_.columns);
}

void GenerationPrinter::Take(const v1::GenerateStreamResponse& message) {
  if (message.has_usage()) usage_ = message.usage();
  if (message.has_timings()) timings_ = message.timings();
  if (message.index() == 0) text_ += message.text_delta();
  if (options_.json) {
    Print(ToJsonLine(message));
    return;
  }
  prompt_logprobs_.insert(prompt_logprobs_.end(), message.prompt_logprobs().begin(),
                          message.prompt_logprobs().end());
  Sample& sample = samples_[message.index()];
  sample.logprobs.insert(sample.logprobs.end(), message.logprobs().begin(),
                         message.logprobs().end());
  if (options_.num_samples <= 1) {
    PrintText(message.text_delta());
  } else {
    sample.text += message.text_delta();
  }
  if (message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    TakeEnd(message.index(), message.finish_reason(), message.stop());
  }
}

void GenerationPrinter::Take(const v1::GenerateResponse& response) {
  usage_ = response.usage();
  timings_ = response.timings();
  if (options_.json) {
    Print(ToJsonLine(response));
    return;
  }
  prompt_logprobs_ = {response.prompt_logprobs().begin(), response.prompt_logprobs().end()};
  for (const v1::Completion& completion : response.completions()) {
    Sample& sample = samples_[completion.index()];
    sample.logprobs = {completion.logprobs().begin(), completion.logprobs().end()};
    if (completion.index() == 0) text_ = completion.text();
    if (options_.num_samples <= 1) {
      PrintText(completion.text());
    } else {
      sample.text = completion.text();
    }
    if (completion.has_score()) sample.score = completion.score();
    TakeEnd(completion.index(), completion.finish_reason(), completion.stop());
  }
}

void GenerationPrinter::Finish() {
  if (!options_.json) {
    if (wrap_.has_value()) Print(wrap_->Finish());
    if (options_.num_samples <= 1) Print("\n");
    PrintLogprobs("prompt", prompt_logprobs_);
    for (const auto& [index, sample] : samples_) {
      PrintLogprobs(absl::StrFormat("sample %d", index).c_str(), sample.logprobs);
    }
  }
  if (options_.stats) PrintStats();
}

void GenerationPrinter::PrintText(const std::string& text) {
  Print(wrap_.has_value() ? wrap_->Take(text) : text);
}

void GenerationPrinter::TakeEnd(uint32_t index, v1::FinishReason reason,
                                const v1::StoppedBy& stop) {
  endings_[index] = Describe(reason, stop);
  if (const std::optional<double> score = samples_[index].score) {
    absl::StrAppendFormat(&endings_[index], ", score %.4f", *score);
  }
  if (options_.num_samples > 1) PrintSample(index);
}

void GenerationPrinter::PrintSample(uint32_t index) {
  Print(absl::StrFormat("--- sample %d (%s)\n%s\n", index, endings_[index], samples_[index].text));
}

void GenerationPrinter::PrintStats() const {
  const double decoded = usage_.completion_tokens() > 1 ? usage_.completion_tokens() - 1 : 0;
  std::cerr << absl::StrFormat("[%d prompt tokens, %d of them cached; %d generated",
                               usage_.prompt_tokens(), usage_.cached_tokens(),
                               usage_.completion_tokens());
  if (usage_.prefix_tokens() > 0) {
    std::cerr << absl::StrFormat("; %d tokens of the named prefix", usage_.prefix_tokens());
  }
  if (usage_.disk_tokens() > 0) {
    std::cerr << absl::StrFormat("; %d tokens read from disk", usage_.disk_tokens());
  }
  if (usage_.num_preemptions() > 0) {
    std::cerr << absl::StrFormat("; %d preemptions, %d tokens recomputed", usage_.num_preemptions(),
                                 usage_.recomputed_tokens());
  }
  std::cerr << absl::StrFormat("; queue %.1f ms, first token %.1f ms",
                               timings_.queue_seconds() * 1e3, timings_.ttft_seconds() * 1e3);
  if (timings_.decode_seconds() > 0) {
    std::cerr << absl::StrFormat(", then %.1f tokens/s", decoded / timings_.decode_seconds());
  }
  for (const auto& [index, ending] : endings_) {
    if (index == 0) std::cerr << "; ended by " << ending;
  }
  std::cerr << "]\n";
}

}  // namespace quire::client
