#include "engine/output/replay.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/interrupt.h"
#include "base/status_macros.h"

namespace quire::engine {
namespace {

// Drops the first `num_bytes` bytes of a text that comes in parts.
class TextSkipper {
 public:
  explicit TextSkipper(uint64_t num_bytes) : left_(num_bytes) {}

  void Add(std::string_view text) {
    num_bytes_ += text.size();
    const auto skipped = static_cast<size_t>(std::min<uint64_t>(left_, text.size()));
    left_ -= skipped;
    rest_.append(text.substr(skipped));
  }

  uint64_t num_bytes() const { return num_bytes_; }  // of all parts
  uint64_t num_missing() const { return left_; }     // still to be dropped
  std::string& rest() { return rest_; }

 private:
  uint64_t num_bytes_ = 0;
  uint64_t left_;
  std::string rest_;
};

bool BeginsInsideCharacter(std::string_view text) {
  return !text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80;
}

absl::StatusOr<ReplayedSample> ReplaySample(const text::Tokenizer& tokenizer,
                                            const std::shared_ptr<const StopPatterns>& patterns,
                                            const Request& request, int32_t index) {
  const TokenIds& ids = request.params.resume->token_ids[index];
  const uint64_t arrived = request.params.resume->text_bytes[index];
  ReplayedSample sample = {
      .output = SampleOutput(tokenizer, patterns, request, index),
      .delta = {.index = index, .seed = request.seed + static_cast<uint64_t>(index)}};
  TextSkipper text(arrived);
  for (size_t i = 0; i < ids.size() && !base::Interrupted(); ++i) {
    const TokenVerdict verdict =
        CheckTokenStops(request, tokenizer.end_ids(), ids[i], static_cast<int64_t>(i) + 1);
    Output output = sample.output.Push(request, {.id = ids[i]}, verdict);
    text.Add(output.delta.text);
    if (output.delta.finish_reason == FinishReason::kNone) continue;
    if (i + 1 < ids.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "resume_token_ids[%d]: want no token after the one that ends the sample, got %d tokens, "
          "of which number %d ends it",
          index, ids.size(), i + 1));
    }
    sample.delta.finish_reason = output.delta.finish_reason;
    sample.delta.stop_string = std::move(output.delta.stop_string);
    sample.delta.stop_token_id = output.delta.stop_token_id;
  }
  if (text.num_missing() > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resume_text_bytes[%d]: want at most %d, the bytes of text that the given "
                        "tokens release, got %d",
                        index, text.num_bytes(), arrived));
  }
  if (BeginsInsideCharacter(text.rest())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resume_text_bytes[%d]: want whole characters, got %d, which is inside one",
                        index, arrived));
  }
  sample.delta.text = std::move(text.rest());
  return sample;
}

}  // namespace

absl::Status ReplayOutput(const text::Tokenizer& tokenizer, Request& request) {
  const ResumeParams& resume = *request.params.resume;
  const auto patterns = std::make_shared<const StopPatterns>(request.params.stop.stop);
  std::vector<std::shared_ptr<ReplayedSample>> replayed;
  for (int32_t k = 0; k < request.params.sampling.num_samples(); ++k) {
    ASSIGN_OR_RETURN(ReplayedSample sample, ReplaySample(tokenizer, patterns, request, k));
    replayed.push_back(std::make_shared<ReplayedSample>(std::move(sample)));
  }
  if (!std::ranges::all_of(resume.token_ids, &TokenIds::empty)) {
    request.replayed = std::move(replayed);
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
