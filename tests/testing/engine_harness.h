#pragma once

// Makes whole engines for tests. The engines have real parts around a fake tokenizer and a fake or
// tiny model.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/make_engine.h"
#include "kernels/ops/attention_pattern.h"
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
  // The keys that queries see in each of the model's two layers.
  std::vector<kernels::AttentionPattern> layer_patterns = {{}, {}};
  int64_t window_blocks = 0;  // of each KV group that has a window
  int32_t max_queue = 1024;
  int32_t num_threads = 2;  // threads of the CPU backend
  // Makes the backend. If empty, the harness uses the CPU backend.
  std::function<std::unique_ptr<kernels::Backend>()> make_backend;
  int64_t head_dim = 16;    // of the tiny models
  int64_t num_padding = 0;  // padding ids of the fake model's vocabulary
  // The type of the matrices of TinyLlama() and TinyAlibi(). With a type of blocks, their sizes are
  // multiples of 32.
  kernels::WeightType weight_type = kernels::WeightType::kF32;
  // Scales V in the second layer of the tiny models. The output projection undoes the scaling.
  float value_gain = 1.0f;
  kernels::DType kv_dtype = kernels::DType::kF16;  // of the tiny models' KV cache
  kernels::CacheScales cache_scales = {};          // of both layers, if the cache is fp8
  absl::Duration stalled_stream_timeout = absl::Seconds(30);
  absl::Duration max_step_time;
  int32_t max_draft_tokens = 0;
  std::optional<int32_t> pipeline_depth = std::nullopt;  // absent: the backend's
  bool warms_up_every_size = false;
  std::string kv_disk_dir;  // EngineConfig::kv_disk_dir
  int64_t kv_disk_mib = 0;  // EngineConfig::kv_disk_mib
  int64_t prefix_disk_mib = 16;
  const base::Clock* clock = &base::SteadyClock();
  // Called in each Forward of the fake model, including the warm-up's.
  std::function<void(const engine::ModelInput&)> on_forward;
  // Called with the parts of an engine on a FakeModel before that is made.
  std::function<void(engine::EngineParts&)> edit_parts;
};

class EngineHarness {
 public:
  // Returns a harness whose engine runs a FakeModel. The answers of that model are right only if
  // the model reads the right blocks. fake() is null in every other harness.
  static std::unique_ptr<EngineHarness> Fake(const HarnessOptions& options = {});
  // Returns an engine on a FakeModel, without a harness. The engine has a chat template, and no
  // step or frontend threads. Sets `*model` to the model, which the engine owns.
  static std::unique_ptr<engine::SteppedEngine> Stepped(const HarnessOptions& options,
                                                        FakeModel** model);
  // Returns a harness on a randomly initialised two-layer Llama in float32 on the CPU backend.
  static std::unique_ptr<EngineHarness> TinyLlama(const HarnessOptions& options = {});
  // Returns a harness like TinyLlama()'s, but the model uses ALiBi instead of RoPE.
  static std::unique_ptr<EngineHarness> TinyAlibi(const HarnessOptions& options = {});
  // Returns a harness like TinyLlama()'s, but the layers differ. The second layer has other numbers
  // of heads, and values that are longer than its keys.
  static std::unique_ptr<EngineHarness> TinyUneven(const HarnessOptions& options = {});
  // Returns a harness like TinyLlama()'s, but each layer has a mixture of five experts, of which
  // two compute a token.
  static std::unique_ptr<EngineHarness> TinyMixture(const HarnessOptions& options = {});
  static const TinyLlamaShape kTinyShape;

  engine::Engine& engine() { return *engine_; }
  FakeModel* fake() { return fake_; }
  // The function that the model, fake or tiny, calls at the start of each step. Set it while
  // nothing runs.
  std::function<void()>& before_forward() { return *before_forward_; }

  // Submits a request and expects that the engine accepts it.
  std::shared_ptr<CollectingSink> Submit(engine::GenerateParams params, int64_t room = -1);
  // Submits all requests while the first step, which runs the first request alone, is held back. So
  // the scheduler gets the requests in the order of `all`. In every run, the same sequences share
  // cached blocks, however fast the machine is.
  std::vector<std::shared_ptr<CollectingSink>> SubmitTogether(
      const std::vector<engine::GenerateParams>& all);
  // Waits until every request submitted so far has left the frontend.
  void WaitForFrontend();
  // Submits a request, waits for its end and expects success. Returns sample 0.
  CollectingSink::Sample Generate(engine::GenerateParams params);
  // Waits until nothing runs. Expects that the engine then keeps nothing of its requests except
  // cached blocks.
  void ExpectIdleIsEmpty();
  // Destroys the engine, which ends its threads. Counters that a test's hooks update are final
  // after that.
  void Stop() { engine_.reset(); }

  std::vector<std::shared_ptr<engine::SubmittedRequest>> handles;

 private:
  static std::unique_ptr<EngineHarness> Tiny(const HarnessOptions& options,
                                             std::optional<double> alibi_bias_max);
  static std::unique_ptr<EngineHarness> On(const HarnessOptions& options,
                                           engine::ModelConfig config,
                                           const InMemoryWeights& weights,
                                           const engine::TensorNames& names);

  FakeModel* fake_ = nullptr;                        // not owned
  std::function<void()>* before_forward_ = nullptr;  // a member of the model
  std::unique_ptr<engine::Engine> engine_;
};

// Lists everything that an idle engine should not keep, such as sequences and held blocks, and all
// blocks that are neither free nor cached. Returns an empty string if there is nothing to list.
std::string WhatIsKept(const engine::Stats& stats);

using MakeHarness = std::unique_ptr<EngineHarness> (*)(const HarnessOptions&);

// Expects that tokens, texts and finish reasons are equal, that log-probabilities are equal bit for
// bit, and their ranks.
void ExpectSame(const CollectingSink::Sample& got, const CollectingSink::Sample& want);

// `sink` has the n samples of one request with `params`. Expects that sample k equals the answer of
// `alone` for the same parameters with n = 1 and seed + k.
void ExpectSamplesAreSingleRequests(
    CollectingSink& sink, engine::GenerateParams params,
    const std::function<CollectingSink::Sample(const engine::GenerateParams&)>& alone);

// Returns `size` pseudorandom ids of byte tokens, drawn from `seed`. No id is a special token.
engine::TokenIds RandomIds(int64_t size, uint32_t seed);

// Returns the parameters of a greedy request that draws `max_tokens` tokens even past an end token.
// The answer has token ids, the five best log-probabilities, and ranks.
engine::GenerateParams GreedyParams(engine::TokenIds prompt, int32_t max_tokens);

}  // namespace quire::testing
