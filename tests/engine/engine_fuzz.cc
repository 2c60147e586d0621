// Sends requests with arbitrary, unvalidated parameters to a whole engine around a FakeModel. At
// any moment a request may be cancelled or aborted, pass its deadline, fail, or be read slowly. The
// engine has no thread of its own. So the same input has the same effect each time, apart from
// deadlines and stalls of a few milliseconds. Every request must end exactly once. After that, the
// engine must keep nothing of the requests, and must answer a new request as if it were the first.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fuzzer/FuzzedDataProvider.h>

#include "absl/time/clock.h"

#include "base/check.h"
#include "tests/testing/engine_harness.h"

namespace quire::testing {
namespace {

using engine::GenerateParams;
using engine::TokenIds;

constexpr int kMaxOps = 200;
constexpr int kMaxSteps = 20000;

class Script {
 public:
  Script(const uint8_t* data, size_t size)
      : data_(data, size), engine_(EngineHarness::Stepped(Options(), &model_)) {}

  void Run() {
    for (int op = 0; op < kMaxOps && data_.remaining_bytes() > 0; ++op) DoOne();
    for (Submitted& each : submitted_) {
      // The reader of an answer may read the rest, cancel the request, or stall.
      if (data_.ConsumeBool()) each.sink->SetRoom(-1);
      if (data_.ConsumeBool() || each.is_endless) each.handle->Cancel();
    }
    model_->fail_at_forward = -1;
    RunUntilIdle();
    for (const Submitted& each : submitted_) {
      QUIRE_CHECK(each.sink->finished() && each.sink->num_after_finish() == 0);
    }
    QUIRE_CHECK(num_flushes_ == 0);
    const std::string kept = WhatIsKept(engine_->stats());
    QUIRE_CHECK(kept.empty()) << "kept by an idle engine: " << kept;
    AnswerOne();
  }

 private:
  struct Submitted {
    std::shared_ptr<CollectingSink> sink;
    std::shared_ptr<engine::SubmittedRequest> handle;
    bool is_endless = false;  // a stream of up to 16 million tokens
  };

  static HarnessOptions Options() {
    return {.block_size = 4,
            .num_blocks = 24,
            .max_num_seqs = 6,
            .max_num_batched_tokens = 16,
            .max_model_len = 64,
            .max_queue = 12,
            .num_threads = 1,
            .stalled_stream_timeout = absl::Milliseconds(2)};
  }

  void DoOne() {
    switch (data_.ConsumeIntegralInRange(0, 11)) {
      case 0:
      case 1:
      case 2:
        return Submit(Params());
      case 3:
        engine_->RunFrontend();
        return;
      case 4:
        if (!submitted_.empty()) Any().handle->Cancel();
        return;
      case 5:
        if (!submitted_.empty()) {
          (void)engine_->Abort(Any().handle->request_id(), Rarely() ? "b" : "");
        }
        return;
      case 6:
        if (!submitted_.empty()) Any().sink->SetRoom(data_.ConsumeIntegralInRange(-1, 8));
        return;
      case 7:  // rarely, since each failure writes a line to the log
        if (Rarely())
          model_->fail_at_forward = model_->num_forwards + data_.ConsumeIntegralInRange(0, 3);
        return;
      case 11:
        if (Rarely()) {
          ++num_flushes_;
          engine_->FlushPrefixCache([this](const absl::StatusOr<int64_t>&) { --num_flushes_; });
        }
        [[fallthrough]];
      default:
        engine_->RunFrontend();
        engine_->Step();
        return;
    }
  }

  Submitted& Any() {
    return submitted_[data_.ConsumeIntegralInRange<size_t>(0, submitted_.size() - 1)];
  }

  void Submit(GenerateParams params) {
    auto sink = std::make_shared<CollectingSink>(Rarely() ? Small() : -1);
    const bool is_endless = params.cache.window_tokens > 0;
    auto handle = engine_->Submit(std::move(params), sink);
    if (!handle.ok()) return;
    submitted_.push_back(
        {.sink = std::move(sink), .handle = *std::move(handle), .is_endless = is_endless});
  }

  void RunUntilIdle() {
    for (int i = 0; i < kMaxSteps; ++i) {
      const bool frontend = engine_->RunFrontend();
      const bool step = engine_->Step();
      if (frontend || step) continue;
      if (engine_->WaitIdle(absl::ZeroDuration()).ok()) return;
      absl::SleepFor(absl::Microseconds(100));  // a stall or a deadline will end a request
    }
    QUIRE_CHECK(false) << "busy after " << kMaxSteps << " steps: " << WhatIsKept(engine_->stats());
  }

  void AnswerOne() {
    TokenIds context = RandomIds(10, 3);
    const auto sink = std::make_shared<CollectingSink>();
    QUIRE_CHECK(engine_->Submit(GreedyParams(context, 8), sink).ok());
    RunUntilIdle();
    QUIRE_CHECK(sink->status().ok()) << sink->status().ToString();
    for (const int32_t id : sink->sample().token_ids) {
      QUIRE_CHECK(id == model_->NextToken(context)) << "the cache holds what it should not";
      context.push_back(id);
    }
  }

  bool Rarely() { return data_.ConsumeIntegralInRange(0, 7) == 0; }
  int32_t Small() { return data_.ConsumeIntegralInRange(0, 9); }
  int32_t Number() {
    if (!Rarely()) return Small();
    constexpr int32_t kLimits[] = {
        -1,   -2,    63,    64,         65,
        257,  258,   1024,  1 << 24,    std::numeric_limits<int32_t>::max(),
        -100, -1000, 65536, 1000000000, std::numeric_limits<int32_t>::min()};
    return data_.PickValueInArray(kLimits);
  }
  float Real() {
    if (!Rarely()) return static_cast<float>(Small()) / 8;
    constexpr float kLimits[] = {-1.0f,
                                 100.0f,
                                 101.0f,
                                 1e-45f,
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN()};
    return data_.PickValueInArray(kLimits);
  }
  std::string Text() {
    if (Rarely()) return std::string(data_.ConsumeIntegralInRange(0, 2000), 'a');
    return data_.ConsumeRandomLengthString(40);
  }
  TokenIds Ids() {
    TokenIds ids(data_.ConsumeIntegralInRange(0, Rarely() ? 400 : 12));
    const int32_t first = data_.ConsumeIntegralInRange(0, 255);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = (first + static_cast<int32_t>(i)) % 258;
    if (Rarely()) ids.push_back(Number());
    return ids;
  }

  GenerateParams Params() {
    GenerateParams params;
    if (Rarely()) params.request_id = std::string(1, static_cast<char>('a' + Small()));
    if (Rarely()) params.owner = "b";
    switch (data_.ConsumeIntegralInRange(0, 3)) {
      case 0:
        params.prompt = Text();
        break;
      case 1: {
        engine::ChatMessages messages(data_.ConsumeIntegralInRange<size_t>(0, 3));
        for (text::ChatMessage& message : messages) message = {"user", Text()};
        params.prompt = std::move(messages);
        break;
      }
      default:
        params.prompt = Ids();
    }
    if (Rarely()) {
      params.continuations.resize(data_.ConsumeIntegralInRange<size_t>(1, Rarely() ? 70 : 4));
      for (auto& continuation : params.continuations) {
        if (data_.ConsumeBool()) {
          continuation = Ids();
        } else {
          continuation = Text();
        }
      }
    }
    FillSampling(params.sampling);
    FillStop(params.stop);
    FillOutput(params.output);
    params.answers_at_once = data_.ConsumeBool();
    if (Rarely()) FillBeams(params);
    if (Rarely()) params.cache.salt = Text();
    params.cache.bypass_read = Rarely();
    params.cache.bypass_write = Rarely();
    if (Rarely()) params.cache.sink_tokens = Number();
    if (Rarely()) params.cache.window_tokens = Rarely() ? Number() : 4 * Small();
    if (Rarely()) params.sched = {.priority = Number(), .tenant = Text()};
    if (Rarely()) params.deadline = absl::Now() + absl::Milliseconds(Small() - 5);
    return params;
  }

  void FillSampling(engine::SamplingParams& sampling) {
    if (data_.ConsumeBool()) sampling.temperature = Real();
    if (Rarely()) sampling.top_k = Number();
    if (Rarely()) sampling.typical_p = Real();
    if (Rarely()) sampling.top_p = Real();
    if (Rarely()) sampling.min_p = Real();
    if (Rarely()) sampling.presence_penalty = Real();
    if (Rarely()) sampling.frequency_penalty = Real();
    if (Rarely()) sampling.repetition_penalty = Real();
    if (Rarely()) sampling.penalty_last_n = Number();
    if (data_.ConsumeBool()) sampling.n = Number();
    if (Rarely()) sampling.best_of = Number();
    if (data_.ConsumeBool()) sampling.seed = static_cast<uint64_t>(Small());
    if (Rarely()) {
      for (const int32_t id : Ids())
        sampling.logit_bias.push_back({.token_id = id, .bias = Real()});
    }
    if (Rarely()) sampling.allowed_token_ids = Ids();
  }

  // Turns most requests that it changes into beam searches that the engine accepts.
  void FillBeams(GenerateParams& params) {
    using EarlyStopping = engine::BeamParams::EarlyStopping;
    const bool is_plain = !Rarely();
    if (is_plain) {
      params.sampling = engine::SamplingParams();
      params.continuations.clear();
      params.cache.window_tokens = 0;
      params.output.top_logprobs.reset();
      params.output.prompt_logprobs.reset();
      params.answers_at_once = true;
    }
    params.sampling.beam = {
        .width = is_plain ? data_.ConsumeIntegralInRange(2, 6) : Number(),
        .length_penalty = Real(),
        .early_stopping = data_.PickValueInArray(
            {EarlyStopping::kHeuristic, EarlyStopping::kAlways, EarlyStopping::kNever}),
        .num_return = Rarely() ? Number() : 1};
  }

  void FillStop(engine::StopParams& stop) {
    if (!Rarely()) stop.max_tokens = Number();
    if (Rarely()) stop.min_tokens = Number();
    if (Rarely()) stop.stop.assign(data_.ConsumeIntegralInRange<size_t>(0, 17), Text());
    if (Rarely()) stop.stop_token_ids = Ids();
    stop.include_stop = Rarely();
    stop.ignore_eos = Rarely();
  }

  void FillOutput(engine::OutputOptions& output) {
    output.text = !Rarely();
    output.token_ids = data_.ConsumeBool();
    if (Rarely()) output.top_logprobs = Number();
    if (Rarely()) output.prompt_logprobs = Number();
    output.echo = Rarely();
    output.usage_per_chunk = Rarely();
    output.skip_special_tokens = data_.ConsumeBool();
  }

  FuzzedDataProvider data_;
  FakeModel* model_ = nullptr;  // owned by the engine
  const std::unique_ptr<engine::SteppedEngine> engine_;
  std::vector<Submitted> submitted_;
  int num_flushes_ = 0;  // flushes that are not answered yet
};

}  // namespace
}  // namespace quire::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::testing::Script(data, size).Run();
  return 0;
}
