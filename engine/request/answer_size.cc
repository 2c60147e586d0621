#include "engine/request/answer_size.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/strings.h"
#include "engine/request/retry_after.h"

namespace quire::engine {
namespace {

constexpr int64_t kFloatBytes = 5;  // with the tag
// The least that a log-probability takes: the tag and length of the message, the float, and an id
// of one byte with its tag.
constexpr int64_t kLeastLogprob = 2 + kFloatBytes + 2;
constexpr int64_t kLeastPosition = 4;  // tags and lengths of the position and its chosen token

int64_t VarintBytes(int64_t value) {
  int64_t bytes = 1;
  for (; value >= 128; value >>= 7) ++bytes;
  return bytes;
}

// Returns the size of a message of `bytes` as a field of another one.
int64_t Nested(int64_t bytes) { return 1 + VarintBytes(bytes) + bytes; }

// `rank` is 0 if neither it nor the token's bytes were asked for.
int64_t WireBytes(const TokenLogprob& logprob, int32_t rank, const text::Tokenizer& tokenizer) {
  int64_t bytes = 1 + VarintBytes(logprob.token_id) + kFloatBytes;
  if (rank > 0) {
    bytes += 1 + VarintBytes(rank) + Nested(std::ssize(tokenizer.TokenBytes(logprob.token_id)));
  }
  return Nested(bytes);
}

int64_t WireBytes(const std::vector<PositionLogprobs>& logprobs, const text::Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (const PositionLogprobs& position : logprobs) {
    int64_t of_position = WireBytes(position.chosen, position.rank, tokenizer);
    int32_t rank = 0;
    for (const TokenLogprob& top : position.top) {
      if (position.rank > 0) ++rank;
      of_position += WireBytes(top, rank, tokenizer);
    }
    bytes += Nested(of_position);
  }
  return bytes;
}

// A value of 0 is not written. So may be one id of the likeliest tokens, and the logarithm of one
// probability, of the chosen token too.
int64_t LeastPositions(int64_t num_positions, const std::optional<int32_t>& num_top) {
  if (!num_top) return 0;
  const int64_t of_top = *num_top * kLeastLogprob - kFloatBytes - 2;
  return num_positions * (kLeastPosition + std::max<int64_t>(of_top, 0));
}

std::string_view CureOf(const GenerateParams& params) {
  if (!params.continuations.empty()) return "score fewer continuations at once";
  if (params.sampling.beam || params.ranks_samples()) {
    return "ask for fewer samples, tokens or log-probabilities";
  }
  return "stream this: use GenerateStream";
}

}  // namespace

int64_t AnswerBytes(const TokenDelta& delta, const GenerateParams& params,
                    const text::Tokenizer& tokenizer) {
  if (!params.continuations.empty()) {  // whether a token is the likeliest stands for the list
    int64_t bytes = 0;
    for (const PositionLogprobs& position : delta.logprobs) {
      bytes += WireBytes(position.chosen, position.rank, tokenizer) + 2;
    }
    return bytes;
  }
  int64_t bytes = std::ssize(delta.text) + WireBytes(delta.prompt_logprobs, tokenizer);
  if (params.output.top_logprobs) bytes += WireBytes(delta.logprobs, tokenizer);
  if (params.output.token_ids) {
    for (const int32_t id : delta.token_ids) bytes += VarintBytes(id);
  }
  return bytes;
}

absl::Status CheckLeastAnswer(const Request& request) {
  const GenerateParams& params = request.params;
  if (params.max_answer_bytes == 0) return absl::OkStatus();
  const char* field = "output.prompt_logprobs";
  int64_t bytes = LeastPositions(std::ssize(request.prompt_ids) - 1, params.output.prompt_logprobs);
  const int64_t of_prompt = bytes;
  if (request.is_scoring()) {
    for (const TokenIds& ids : request.continuation_ids) {
      bytes += std::ssize(ids) * kLeastPosition;
    }
    field = "continuations";
  } else if (!params.resume) {
    const StopParams& stop = params.stop;
    const bool cannot_stop = stop.ignore_eos && stop.stop.empty() && stop.stop_token_ids.empty();
    const int64_t num_tokens = cannot_stop ? request.max_tokens : stop.min_tokens;
    const int64_t n =
        params.sampling.beam ? params.sampling.beam->num_return : params.sampling.num_samples();
    const int64_t of_ids = params.output.token_ids ? num_tokens : 0;
    bytes += n * (of_ids + LeastPositions(num_tokens, params.output.top_logprobs));
    if (bytes - of_prompt > of_prompt) field = cannot_stop ? "stop.max_tokens" : "stop.min_tokens";
  }
  if (bytes <= params.max_answer_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: want an answer of at most %d bytes (--max_answer_mib) in one message, this one has at "
      "least %d; %s",
      field, params.max_answer_bytes, bytes, base::ToAbsl(CureOf(params))));
}

absl::Status AnswerTooLarge(int64_t max_bytes, std::string_view cure) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrFormat(
          "max_answer_mib: the answer has more than the %d bytes that one message may have; %s",
          max_bytes, base::ToAbsl(cure))),
      absl::ZeroDuration());
}

absl::Status AnswerTooLarge(const GenerateParams& params) {
  return AnswerTooLarge(params.max_answer_bytes, CureOf(params));
}

}  // namespace quire::engine
