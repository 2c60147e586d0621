// Runs any bytes as a GenerateRequest through all code but the model: conversion, frontend,
// sampler, stops, text and answer. The result must be an error with a message or a correct answer,
// and never a crash.
//
// The first byte of the input chooses a request. The other bytes are a message that is merged into
// that request. The wire format merges bytes that follow a message in the same way. So a few bytes
// change one field of a request that is otherwise valid. A zero byte chooses the empty request, so
// any request may follow it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/frontend/frontend.h"
#include "engine/output/output_processor.h"
#include "engine/output/token_stops.h"
#include "engine/runner/row_work.h"
#include "kernels/sampling/sampler.h"
#include "quire/v1/inference_service.pb.h"
#include "server/service/proto_conversion.h"
#include "server/service/rpc_status.h"
#include "tests/server/fake_engine.h"
#include "tests/testing/fake_tokenizer.h"

namespace quire {
namespace {

using engine::Request;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 24;
const engine::FrontendLimits kLimits = {.max_model_len = 256,
                                        .max_prompt_bytes = 512,
                                        .cache_tokens = kNumBlocks * kBlockSize,
                                        .block_size = kBlockSize,
                                        .max_num_seqs = 8};
// The largest number of tokens of a sample, and the largest number of samples. More would add time
// but no new paths.
constexpr int64_t kMaxTokens = 40;
constexpr int32_t kMaxSamples = 2;

constexpr std::string_view kRequests[] = {
    "",
    R"(text: "Once upon a time STOP, \342\202\254 5")",
    R"(token_ids { ids: [72, 105, 258, 259, 257] }
       sampling { temperature: 0.7 top_k: 40 typical_p: 0.9 top_p: 0.95 min_p: 0.05
                  presence_penalty: 0.5 frequency_penalty: -0.5 repetition_penalty: 1.1
                  penalty_last_n: 16 seed: 7 n: 2 logit_bias { key: 101 value: -4 }
                  allowed_token_ids: [72, 105, 101, 258, 259, 261, 262] }
       stop { min_tokens: 2 stop_token_ids: 33 }
       output { token_ids: true top_logprobs: 3 })",
    R"(model: "m" chat { messages { role: "system" content: "be brief" }
                         messages { role: "user" content: "hi" } }
       sampling { temperature: 0 }
       stop { max_tokens: 20 stop: ["STOP", "hi", "s>"] include_stop: false ignore_eos: true }
       output { text: true echo: true usage_per_chunk: true skip_special_tokens: false }
       cache { salt: "s" bypass_read: true } sched { priority: -3 tenant: "t" })",
};

constexpr std::string_view kTemplate =
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

std::vector<v1::GenerateRequest> ParseRequests() {
  std::vector<v1::GenerateRequest> requests;
  for (const std::string_view text : kRequests) {
    QUIRE_CHECK(
        google::protobuf::TextFormat::ParseFromString(std::string(text), &requests.emplace_back()))
        << text;
  }
  return requests;
}

// Checks that a client can parse `message`. It could not if a string in it were not UTF-8.
template <class Message>
void CheckReadable(const Message& message) {
  QUIRE_CHECK(Message().ParseFromString(message.SerializeAsString())) << message.DebugString();
}

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(status.code() == absl::StatusCode::kInvalidArgument && !status.message().empty())
      << status;
  CheckReadable(server::ToRpcStatus(status));
}

void CheckFeasible(const Request& request, int32_t vocab_size) {
  const auto prompt_len = static_cast<int64_t>(request.prompt_ids.size());
  const engine::CacheWindow& window = request.cache_window;
  const int64_t longest = window.on() ? engine::kMaxStreamTokens : kLimits.max_model_len;
  QUIRE_CHECK(prompt_len > 0 && request.max_tokens > 0 &&
              prompt_len + request.max_tokens <= longest)
      << prompt_len << " + " << request.max_tokens;
  for (const int32_t id : request.prompt_ids) QUIRE_CHECK(id >= 0 && id < vocab_size) << id;
  // An empty cache must hold all samples together. Without a window, they share the full blocks of
  // the prompt.
  const int64_t n = request.params.sampling.num_samples();
  if (window.on()) {
    QUIRE_CHECK(window.capacity() <= kLimits.max_model_len &&
                n * window.MostHeld() <= kLimits.cache_tokens)
        << window.capacity() << " x " << n;
    return;
  }
  const int64_t shared = n > 1 ? prompt_len / kBlockSize : 0;
  const int64_t each = (prompt_len + request.max_tokens + kBlockSize - 1) / kBlockSize;
  QUIRE_CHECK(shared + n * (each - shared) <= kNumBlocks)
      << prompt_len << " + " << request.max_tokens << " x " << n;
}

void CheckDrawn(const Request& request, const kernels::SampledRow& drawn) {
  const kernels::TokenSet& allowed = request.allowed_ids;
  QUIRE_CHECK(allowed.empty() || allowed.Contains(drawn.id)) << "token " << drawn.id;
  const std::optional<int32_t>& wanted = request.params.output.top_logprobs;
  QUIRE_CHECK(drawn.logprobs.has_value() == wanted.has_value());
  if (wanted) QUIRE_CHECK(std::ssize(drawn.logprobs->top) == *wanted);
}

// Checks that `text` contains no stop string, unless the request allows one. `text` is the whole
// output of a sample that ended by itself. It does not include an echoed prompt.
void CheckAnswer(const Request& request, std::string_view text) {
  const engine::StopParams& stop = request.params.stop;
  if (stop.include_stop || stop.min_tokens > 0) return;
  for (const std::string& string : stop.stop) {
    QUIRE_CHECK(text.find(string) == std::string_view::npos)
        << '"' << string << "\" in \"" << text << '"';
  }
}

class RequestPath {
 public:
  void Run(const v1::GenerateRequest& wire) {
    const auto request = std::make_shared<Request>();
    if (const absl::Status status = Prepare(wire, *request); !status.ok()) {
      CheckRefusal(status);
      return;
    }
    CheckFeasible(*request, tokenizer_.vocab_size());
    engine::OutputProcessor output(tokenizer_);
    output.Add(0, request);
    for (int32_t k = 0; k < std::min(request->params.sampling.num_samples(), kMaxSamples); ++k) {
      Generate(*request, k, output);
    }
  }

 private:
  absl::Status Prepare(const v1::GenerateRequest& wire, Request& request) const {
    ASSIGN_OR_RETURN(request.params, server::FromProto(wire));
    // A random seed would make a failure hard to reproduce.
    if (!request.params.sampling.seed) request.params.sampling.seed = 0;
    return frontend_.Prepare(request);
  }

  void Generate(const Request& request, int32_t k, engine::OutputProcessor& output) {
    engine::TokenIds tokens = request.prompt_ids;
    std::string text;
    for (int64_t position = 0; position < kMaxTokens; ++position) {
      absl::StatusOr<kernels::SampledRow> drawn = sampler_.Sample(
          Logits(request, position),
          MakeSampleRow({.sample = k, .num_top = request.params.output.top_logprobs}, request,
                        tokens, position));
      if (!drawn.ok()) {  // the request allows none of the tokens
        CheckRefusal(drawn.status());
        return;
      }
      CheckDrawn(request, *drawn);
      tokens.push_back(drawn->id);
      const engine::TokenVerdict verdict =
          CheckTokenStops(request, tokenizer_.end_ids(), drawn->id, position + 1);
      const engine::TokenDelta delta = output.Push(k, *std::move(drawn), verdict).delta;
      CheckReadable(server::ToProto(delta, engine_));
      text += delta.text;
      if (delta.finish_reason != engine::FinishReason::kNone) {
        const engine::OutputOptions& options = request.params.output;
        const size_t echoed = options.echo && options.text ? request.prompt_text.size() : 0;
        CheckAnswer(request, std::string_view(text).substr(echoed));
        return;
      }
      QUIRE_CHECK(position + 1 < request.max_tokens) << "goes on behind max_tokens";
    }
    CheckReadable(server::ToProto(output.Cut(k, engine::FinishReason::kAbort).delta, engine_));
  }

  // Returns the logits of a model that repeats the prompt with a high probability.
  std::span<const float> Logits(const Request& request, int64_t position) {
    for (size_t id = 0; id < logits_.size(); ++id) {
      logits_[id] =
          static_cast<float>((id * 7919 + static_cast<size_t>(position) * 104729) % 97) / 12;
    }
    const engine::TokenIds& prompt = request.prompt_ids;
    logits_[static_cast<size_t>(prompt[static_cast<size_t>(position) % prompt.size()])] += 8;
    return logits_;
  }

  const testing::FakeEngine engine_;  // has the bytes of tokens
  const testing::FakeTokenizer tokenizer_{{"Hello", " time", "\xE2\x82", "\xAC", "STO"}};
  const std::unique_ptr<text::ChatTemplate> template_ = *text::ChatTemplate::Create(kTemplate, {});
  const engine::Frontend frontend_{tokenizer_, template_.get(), kLimits};
  kernels::sampling::Sampler sampler_{
      {.vocab_size = tokenizer_.vocab_size(), .end_ids = tokenizer_.end_ids()}};
  std::vector<float> logits_ = std::vector<float>(static_cast<size_t>(tokenizer_.vocab_size()));
};

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const requests = new auto(quire::ParseRequests());
  static auto* const path = new quire::RequestPath();
  // Protobuf logs a line for each string that is not UTF-8, and many inputs have such strings. The
  // silencer suppresses these lines, but not the messages of aborts.
  static const google::protobuf::LogSilencer silencer;
  if (size == 0) return 0;
  quire::v1::GenerateRequest wire = (*requests)[data[0] % requests->size()];
  if (wire.MergeFromString(std::string(reinterpret_cast<const char*>(data) + 1, size - 1))) {
    path->Run(wire);
  }
  return 0;
}
