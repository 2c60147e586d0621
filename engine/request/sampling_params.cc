#include "engine/request/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

template <typename... Args>
absl::Status Invalid(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

template <typename Number>
absl::Status InRange(const char* field, Number value, std::type_identity_t<Number> low,
                     std::type_identity_t<Number> high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": want ", low, "..", high, ", got ", value));
}

absl::Status InHalfOpen(const char* field, double value, double above, double high) {
  if (std::isfinite(value) && value > above && value <= high) return absl::OkStatus();
  return Invalid("%s: want (%g, %g], got %g", field, above, high, value);
}

absl::Status TokenInVocabulary(const char* field, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return Invalid("%s: want token ids 0..%d, got %d", field, vocab_size - 1, id);
}

// Checks that the list is no longer than the vocabulary and that each id is in the vocabulary. The
// list may contain repeats.
absl::Status AreTokens(const char* field, const std::vector<int32_t>& ids, int32_t vocab_size) {
  if (std::ssize(ids) > vocab_size) {
    return Invalid("%s: want at most %d ids (the vocabulary), got %d", field, vocab_size,
                   ids.size());
  }
  for (const int32_t id : ids) RETURN_IF_ERROR(TokenInVocabulary(field, id, vocab_size));
  return absl::OkStatus();
}

// The scores of beams are the model's own, so nothing may change its distribution.
absl::Status ValidateBeam(const SamplingParams& p) {
  const BeamParams& beam = *p.beam;
  RETURN_IF_ERROR(InRange("sampling.beam.width", beam.width, 2, kMaxBeamWidth));
  RETURN_IF_ERROR(InRange("sampling.beam.length_penalty", beam.length_penalty, -5, 5));
  RETURN_IF_ERROR(InRange("sampling.beam.num_return", beam.num_return, 1, beam.width));
  if (p.n != 1) {
    return Invalid("sampling.n: want 1 with sampling.beam, got %d; set beam.num_return", p.n);
  }
  if (p.best_of) return Invalid("sampling.best_of: want none with sampling.beam");
  const SamplingParams plain;
  const auto must_be_plain = [](const char* field, bool is_plain) {
    return is_plain ? absl::OkStatus()
                    : Invalid("sampling.%s: want it absent with sampling.beam, which draws nothing",
                              field);
  };
  RETURN_IF_ERROR(must_be_plain("temperature", p.temperature == plain.temperature));
  RETURN_IF_ERROR(must_be_plain("top_k", p.top_k == plain.top_k));
  RETURN_IF_ERROR(must_be_plain("typical_p", p.typical_p == plain.typical_p));
  RETURN_IF_ERROR(must_be_plain("top_p", p.top_p == plain.top_p));
  RETURN_IF_ERROR(must_be_plain("min_p", p.min_p == plain.min_p));
  RETURN_IF_ERROR(must_be_plain("presence_penalty", p.presence_penalty == plain.presence_penalty));
  RETURN_IF_ERROR(
      must_be_plain("frequency_penalty", p.frequency_penalty == plain.frequency_penalty));
  RETURN_IF_ERROR(
      must_be_plain("repetition_penalty", p.repetition_penalty == plain.repetition_penalty));
  return must_be_plain("logit_bias", p.logit_bias.empty());
}

absl::Status ValidateSampling(const SamplingParams& p, int32_t vocab_size) {
  RETURN_IF_ERROR(InRange("sampling.temperature", p.temperature, 0, 100));
  if (p.top_k < 0) return Invalid("sampling.top_k: want >= 0 (0: all), got %d", p.top_k);
  RETURN_IF_ERROR(InHalfOpen("sampling.typical_p", p.typical_p, 0, 1));
  RETURN_IF_ERROR(InHalfOpen("sampling.top_p", p.top_p, 0, 1));
  RETURN_IF_ERROR(InRange("sampling.min_p", p.min_p, 0, 1));
  RETURN_IF_ERROR(InRange("sampling.presence_penalty", p.presence_penalty, -2, 2));
  RETURN_IF_ERROR(InRange("sampling.frequency_penalty", p.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(InHalfOpen("sampling.repetition_penalty", p.repetition_penalty, 0, 10));
  if (p.penalty_last_n < -1) {
    return Invalid("sampling.penalty_last_n: want >= -1 (-1: all), got %d", p.penalty_last_n);
  }
  RETURN_IF_ERROR(InRange("sampling.n", p.n, 1, 64));
  if (p.beam) RETURN_IF_ERROR(ValidateBeam(p));
  if (p.best_of && (*p.best_of < p.n || *p.best_of > 64)) {
    return Invalid("sampling.best_of: want n (%d) to 64, got %d", p.n, *p.best_of);
  }
  if (std::ssize(p.logit_bias) > kernels::kMostBiases) {
    return Invalid("sampling.logit_bias: want at most %d entries, got %d", kernels::kMostBiases,
                   p.logit_bias.size());
  }
  for (const LogitBias& entry : p.logit_bias) {
    RETURN_IF_ERROR(TokenInVocabulary("sampling.logit_bias", entry.token_id, vocab_size));
    RETURN_IF_ERROR(InRange("sampling.logit_bias", entry.bias, -100, 100));
  }
  return AreTokens("sampling.allowed_token_ids", p.allowed_token_ids, vocab_size);
}

absl::Status ValidateStop(const StopParams& p, int32_t vocab_size) {
  if (p.max_tokens.has_value() && *p.max_tokens < 1) {
    return Invalid("stop.max_tokens: want >= 1, got %d", *p.max_tokens);
  }
  if (p.min_tokens < 0) return Invalid("stop.min_tokens: want >= 0, got %d", p.min_tokens);
  if (p.max_tokens.has_value() && p.min_tokens > *p.max_tokens) {
    return Invalid("stop.min_tokens: want at most max_tokens (%d), got %d", *p.max_tokens,
                   p.min_tokens);
  }
  if (p.stop.size() > 16) {
    return Invalid("stop.stop: want at most 16 strings, got %d", p.stop.size());
  }
  for (const std::string& text : p.stop) {
    if (text.empty() || text.size() > 256) {
      return Invalid("stop.stop: want 1..256 bytes each, got %d", text.size());
    }
  }
  return AreTokens("stop.stop_token_ids", p.stop_token_ids, vocab_size);
}

}  // namespace

absl::Status Validate(const SamplingParams& sampling, const StopParams& stop,
                      const OutputOptions& output, const CacheParams& cache,
                      const SchedParams& sched, int32_t vocab_size) {
  RETURN_IF_ERROR(ValidateSampling(sampling, vocab_size));
  RETURN_IF_ERROR(ValidateStop(stop, vocab_size));
  if (sampling.beam) {
    if (!stop.stop.empty()) {
      return Invalid("stop.stop: want none with sampling.beam; name tokens in stop_token_ids");
    }
    if (output.top_logprobs || output.prompt_logprobs) {
      return Invalid(
          "output.%s_logprobs: want it absent with sampling.beam; Score the answers for them",
          output.top_logprobs ? "top" : "prompt");
    }
    if (cache.window_tokens != 0) {
      return Invalid("cache.window_tokens: want 0 with sampling.beam, got %d; leave one out",
                     cache.window_tokens);
    }
  }
  if (output.top_logprobs) {
    RETURN_IF_ERROR(InRange("output.top_logprobs", *output.top_logprobs, 0, 20));
  }
  if (output.prompt_logprobs) {
    RETURN_IF_ERROR(InRange("output.prompt_logprobs", *output.prompt_logprobs, 0, 20));
  }
  if (cache.salt.size() > 256) {
    return Invalid("cache.salt: want at most 256 bytes, got %d", cache.salt.size());
  }
  if (cache.sink_tokens < 0 || (cache.sink_tokens > 0 && cache.window_tokens == 0)) {
    return Invalid("cache.sink_tokens: want >= 0, and more only with cache.window_tokens, got %d",
                   cache.sink_tokens);
  }
  if (cache.window_tokens < 0) {
    return Invalid("cache.window_tokens: want >= 0 (0: no window), got %d", cache.window_tokens);
  }
  RETURN_IF_ERROR(InRange("sched.priority", sched.priority, -100, 100));
  // Errors name sched.tenant for both, because a client sets only that field.
  if (const size_t size = std::max(sched.tenant.size(), cache.part.size()); size > 256) {
    return Invalid("sched.tenant: want at most 256 bytes, got %d", size);
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
