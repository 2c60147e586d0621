#pragma once

// Whole engines for tests: every real part around a fake or a tiny model.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/make_engine.h"
#include "tests/testing/collecting_sink.h"
#include "tests/testing/fake_model.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::testing {

struct HarnessOptions {
  int32_t block_size = 16;
  int64_t num_blocks = 256;
  int32_t max_num_seqs = 32;
  int32_t max_num_batched_tokens = 64;
  int64_t max_model_len = 512;
  // Of the model's two layers, tokens; 0: all.
  std::vector<int64_t> layer_windows = {0, 0};
  int64_t window_blocks = 0;  // of each window
  int32_t max_queue = 1024;
  int32_t num_threads = 2;  // of the backend
  int64_t num_padding = 0;  // of the fake model's vocabulary
  float value_gain = 1.0f;  // of V in the second layer of the tiny models, taken back after it
  kernels::DType kv_dtype = kernels::DType::kF16;  // of the tiny models
  absl::Duration stalled_stream_timeout = absl::Seconds(30);
  absl::Duration max_step_time;
  const base::Clock* clock = &base::SteadyClock();
  // Called in each Forward of the fake model, the warm-up's too.
  std::function<void(const engine::ModelInput&)> on_forward;
};

class EngineHarness {
 public:
  // An engine on a FakeModel, whose answers are right only with the right blocks. Only this harness
  // has a fake() that is not null.
  static std::unique_ptr<EngineHarness> Fake(const HarnessOptions& options = {});
  // The same without threads, and with a chat template; not in a harness. `*model` is the engine's.
  static std::unique_ptr<engine::SteppedEngine> Stepped(const HarnessOptions& options,
                                                        FakeModel** model);
  // A randomly initialised two-layer Llama in float32 on the CPU backend.
  static std::unique_ptr<EngineHarness> TinyLlama(const HarnessOptions& options = {});
  // The same weights with ALiBi for positions.
  static std::unique_ptr<EngineHarness> TinyAlibi(const HarnessOptions& options = {});
  static const TinyLlamaShape kTinyShape;

  engine::Engine& engine() { return *engine_; }
  FakeModel* fake() { return fake_; }
  // Called at the start of each step, of any model; set while nothing runs.
  std::function<void()>& before_forward() { return *before_forward_; }

  // Submits and expects acceptance.
  std::shared_ptr<CollectingSink> Submit(engine::GenerateParams params, int64_t room = -1);
  // Submits all while the first step, which is the first one's alone, is held: the scheduler has
  // them in this order, and which sequences meet in the cache is no longer up to the machine.
  std::vector<std::shared_ptr<CollectingSink>> SubmitTogether(
      const std::vector<engine::GenerateParams>& all);
  // Until what was submitted has left the frontend.
  void WaitForFrontend();
  // Submits, waits to the end, expects success, returns sample 0.
  CollectingSink::Sample Generate(engine::GenerateParams params);
  // Waits until nothing runs, and expects that only cached blocks are kept of the requests that
  // ran.
  void ExpectIdleIsEmpty();
  // Ends every thread; counters are final after it.
  void Stop() { engine_.reset(); }

  std::vector<std::shared_ptr<engine::SubmittedRequest>> handles;

 private:
  static std::unique_ptr<EngineHarness> Tiny(const HarnessOptions& options,
                                             std::optional<double> alibi_bias_max);

  FakeModel* fake_ = nullptr;                        // not owned
  std::function<void()>* before_forward_ = nullptr;  // the model's
  std::unique_ptr<engine::Engine> engine_;
};

// Lists what an idle engine should have forgotten and the blocks that it has lost; empty if all is
// well.
std::string WhatIsKept(const engine::Stats& stats);

using MakeHarness = std::unique_ptr<EngineHarness> (*)(const HarnessOptions&);

// Token for token, and logit for logit: log-probabilities are compared by their bits.
void ExpectSame(const CollectingSink::Sample& got, const CollectingSink::Sample& want);

// Token ids a test can tell apart: `size` of them, from `seed`, never special.
engine::TokenIds RandomIds(int64_t size, uint32_t seed);

// Greedy, `max_tokens` long whatever is drawn, with ids and the five best log-probabilities back.
engine::GenerateParams GreedyParams(engine::TokenIds prompt, int32_t max_tokens);

}  // namespace quire::testing
