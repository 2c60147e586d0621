#include "tests/testing/engine_harness.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder.h"
#include "kernels/backend_registry.h"
#include "tests/testing/fake_tokenizer.h"
#include "tests/testing/hooked_model.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/step_gate.h"

namespace quire::testing {
namespace {

// The tokens of a FakeTokenizer without pieces: 256 bytes and two special tokens.
constexpr int64_t kVocabSize = 258;

engine::EngineConfig ConfigFor(const HarnessOptions& options) {
  return {.block_size = options.block_size,
          .max_num_seqs = options.max_num_seqs,
          .max_num_batched_tokens = options.max_num_batched_tokens,
          .max_step_time = options.max_step_time,
          .max_model_len = options.max_model_len,
          .max_queue = options.max_queue,
          .kv_disk_dir = options.kv_disk_dir,
          .kv_disk_mib = options.kv_disk_mib,
          .prefix_disk_mib = options.prefix_disk_mib,
          .stalled_stream_timeout = options.stalled_stream_timeout};
}

engine::EngineParts PartsFor(const HarnessOptions& options, const engine::KvCacheShape& shape) {
  engine::EngineParts parts;
  parts.backend =
      options.make_backend
          ? options.make_backend()
          : *kernels::CreateBackend({.name = "cpu", .num_threads = options.num_threads});
  parts.tokenizer = std::make_unique<FakeTokenizer>();
  parts.limits = {
      .max_tokens = options.max_num_batched_tokens,
      .max_seqs = options.max_num_seqs,
      .max_logit_rows = options.max_num_seqs + 64,
      .max_model_len = options.max_model_len,
      .block_size = options.block_size,
      .max_draft_tokens = options.max_draft_tokens,
      .pipeline_depth = options.pipeline_depth.value_or(parts.backend->info().pipeline_depth),
      .warms_up_every_size = options.warms_up_every_size};
  std::vector<engine::KvGroup> groups =
      engine::GroupLayers(options.layer_patterns, options.max_model_len);
  for (engine::KvGroup& group : groups) {
    group.num_blocks = group.pattern.sees_all() ? options.num_blocks : options.window_blocks;
  }
  parts.cache = *engine::KvCache::Create(*parts.backend, shape, std::move(groups));
  parts.model_info.name = "tiny";
  if (!options.kv_disk_dir.empty()) {
    parts.directory = *files::StateDirectory::Open(options.kv_disk_dir);
  }
  parts.server_info.model_digest = "digest";
  parts.server_info.answer_numerics = "numerics";
  parts.clock = options.clock;
  return parts;
}

void SetModel(std::unique_ptr<engine::Model> model, engine::EngineParts& parts) {
  parts.model = std::move(model);
  parts.sampler = *engine::PrepareSampler(*parts.tokenizer, parts.model->config().vocab_size,
                                          parts.limits, *parts.backend);
}

// Returns a model like TinyLlama()'s, whose layers still need RoPE or ALiBi.
engine::ModelConfig TinyConfig(const HarnessOptions& options, const TinyLlamaShape& shape,
                               std::string architecture) {
  return {.architecture = std::move(architecture),
          .vocab_size = shape.vocab_size,
          .hidden_size = shape.hidden_size,
          .max_position_embeddings = options.max_model_len,
          .layers = LayersOf(shape, options.layer_patterns)};
}

engine::EngineParts FakeParts(const HarnessOptions& options, FakeModel** fake) {
  engine::EngineParts parts = PartsFor(
      options,
      {.layers = {options.layer_patterns.size(), {.num_kv_heads = 1, .key_dim = 8, .value_dim = 8}},
       .block_size = options.block_size});
  auto model = std::make_unique<FakeModel>(kVocabSize, options.block_size,
                                           std::ssize(options.layer_patterns), options.num_padding);
  model->on_forward = options.on_forward;
  *fake = model.get();
  SetModel(std::move(model), parts);
  if (options.edit_parts) options.edit_parts(parts);
  return parts;
}

}  // namespace

std::unique_ptr<EngineHarness> EngineHarness::Fake(const HarnessOptions& options) {
  auto harness = std::make_unique<EngineHarness>();
  engine::EngineParts parts = FakeParts(options, &harness->fake_);
  harness->before_forward_ = &harness->fake_->before_forward;
  harness->engine_ = *engine::MakeEngine(std::move(parts), ConfigFor(options));
  return harness;
}

std::unique_ptr<engine::SteppedEngine> EngineHarness::Stepped(const HarnessOptions& options,
                                                              FakeModel** model) {
  engine::EngineParts parts = FakeParts(options, model);
  parts.chat_template = *text::ChatTemplate::Create(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {});
  return *engine::MakeSteppedEngine(std::move(parts), ConfigFor(options));
}

const TinyLlamaShape EngineHarness::kTinyShape = {.vocab_size = kVocabSize,
                                                  .hidden_size = 48,
                                                  .intermediate_size = 80,
                                                  .num_hidden_layers = 2,
                                                  .num_attention_heads = 4,
                                                  .num_key_value_heads = 2,
                                                  .head_dim = 16};

std::unique_ptr<EngineHarness> EngineHarness::TinyLlama(const HarnessOptions& options) {
  return Tiny(options, std::nullopt);
}

std::unique_ptr<EngineHarness> EngineHarness::TinyAlibi(const HarnessOptions& options) {
  return Tiny(options, 8.0);
}

std::unique_ptr<EngineHarness> EngineHarness::Tiny(const HarnessOptions& options,
                                                   std::optional<double> alibi_bias_max) {
  TinyLlamaShape shape = kTinyShape;
  shape.head_dim = options.head_dim;
  if (options.weight_type != kernels::WeightType::kF32) {
    shape.hidden_size = 64;
    shape.intermediate_size = 96;
  }
  InMemoryWeights weights = MakeTinyLlama(shape);
  weights.Scale("model.layers.1.self_attn.v_proj.weight", options.value_gain);
  weights.Scale("model.layers.1.self_attn.o_proj.weight", 1.0f / options.value_gain);
  if (options.weight_type != kernels::WeightType::kF32) weights.Quantize(options.weight_type);
  engine::ModelConfig config = TinyConfig(options, shape, "llama");
  config.alibi_bias_max = alibi_bias_max;
  if (alibi_bias_max) {
    for (engine::LayerSpec& layer : config.layers) layer.attention.rope = -1;
  } else {
    config.ropes = {{.rope_dim = shape.head_dim}};
  }
  return On(options, config, weights, engine::kLlama.hf_names({}));
}

std::unique_ptr<EngineHarness> EngineHarness::TinyUneven(const HarnessOptions& options) {
  engine::ModelConfig config = TinyConfig(options, kTinyShape, "llama");
  config.ropes = {{.rope_dim = 24}};
  engine::AttentionSpec &first = config.layers[0].attention, &second = config.layers[1].attention;
  first.set_head_dim(32);
  second.num_heads = 6;
  second.num_kv_heads = 3;
  second.key_dim = 24;
  second.value_dim = 40;
  const engine::TensorNames names = engine::kLlama.hf_names({});
  return On(options, config, MakeRandomWeights(config, names), names);
}

std::unique_ptr<EngineHarness> EngineHarness::TinyMixture(const HarnessOptions& options) {
  TinyLlamaShape shape = kTinyShape;
  shape.head_dim = options.head_dim;
  engine::ModelConfig config = TinyConfig(options, shape, "mixtral");
  config.ropes = {{.rope_dim = shape.head_dim}};
  for (engine::LayerSpec& layer : config.layers) {
    layer.feed_forward.experts = {.count = 5, .per_token = 2};
  }
  const engine::TensorNames names = engine::kMixtral.hf_names(config.layers[0]);
  return On(options, config, MakeRandomWeights(config, names), names);
}

std::unique_ptr<EngineHarness> EngineHarness::On(const HarnessOptions& options,
                                                 engine::ModelConfig config,
                                                 const InMemoryWeights& weights,
                                                 const engine::TensorNames& names) {
  auto harness = std::make_unique<EngineHarness>();
  for (engine::LayerSpec& layer : config.layers) {
    layer.attention.cache_scales = options.cache_scales;
  }
  engine::EngineParts parts = PartsFor(options, {.layers = engine::KvLayerShapes(config),
                                                 .block_size = options.block_size,
                                                 .dtype = options.kv_dtype});
  auto model = std::make_unique<HookedModel>(
      *engine::CreateDecoder(config, weights, names, *parts.backend, parts.limits));
  harness->before_forward_ = &model->before_forward;
  SetModel(std::move(model), parts);
  harness->engine_ = *engine::MakeEngine(std::move(parts), ConfigFor(options));
  return harness;
}

std::shared_ptr<CollectingSink> EngineHarness::Submit(engine::GenerateParams params, int64_t room) {
  auto sink = std::make_shared<CollectingSink>(room);
  auto handle = engine_->Submit(std::move(params), sink);
  EXPECT_TRUE(handle.ok()) << handle.status();
  if (handle.ok()) handles.push_back(*std::move(handle));
  return sink;
}

void EngineHarness::WaitForFrontend() {
  // The frontend's threads take tasks in order. Once each thread waits in one of the tasks below,
  // every earlier task is done.
  const int32_t num_threads = engine::EngineConfig().frontend_threads;
  const auto all = std::make_shared<std::barrier<>>(num_threads + 1);
  for (int32_t i = 0; i < num_threads; ++i) {
    ASSERT_TRUE(engine_->RunOnFrontend("", {}, 0, [all] { all->arrive_and_wait(); }).ok());
  }
  all->arrive_and_wait();
}

std::vector<std::shared_ptr<CollectingSink>> EngineHarness::SubmitTogether(
    const std::vector<engine::GenerateParams>& all) {
  StepGate gate(*this);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const engine::GenerateParams& params : all) {
    sinks.push_back(Submit(params));
    if (sinks.size() == 1) {
      EXPECT_TRUE(gate.WaitForStep());
    }
    WaitForFrontend();
  }
  gate.Open();
  return sinks;
}

CollectingSink::Sample EngineHarness::Generate(engine::GenerateParams params) {
  const std::shared_ptr<CollectingSink> sink = Submit(std::move(params));
  EXPECT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  return sink->sample();
}

void EngineHarness::ExpectIdleIsEmpty() {
  ASSERT_TRUE(engine_->WaitIdle(absl::Seconds(30)).ok());
  EXPECT_EQ(WhatIsKept(engine_->stats()), "");
}

std::string WhatIsKept(const engine::Stats& stats) {
  std::string kept;
  const auto want_none = [&](const char* what, int64_t count) {
    if (count != 0) absl::StrAppend(&kept, count, " ", what, "; ");
  };
  want_none("sequences running", stats.num_running);
  want_none("requests waiting", stats.num_waiting);
  want_none("blocks held", stats.blocks_held);
  want_none("blocks lost", stats.blocks_total - stats.blocks_free - stats.blocks_cached);
  want_none("roots without a block", std::max<int64_t>(stats.cache_roots - stats.blocks_cached, 0));
  want_none("requests", stats.kept.requests);
  want_none("request ids", stats.kept.ids);
  want_none("sequences", stats.kept.sequences);
  want_none("outputs", stats.kept.outputs);
  want_none("scores", stats.kept.scores);
  want_none("tenants", stats.kept.tenants);
  return kept;
}

void ExpectSame(const CollectingSink::Sample& got, const CollectingSink::Sample& want) {
  EXPECT_EQ(got.token_ids, want.token_ids);
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    const engine::PositionLogprobs &a = got.logprobs[i], &b = want.logprobs[i];
    EXPECT_EQ(std::memcmp(&a.chosen, &b.chosen, sizeof(a.chosen)), 0) << "position " << i;
    EXPECT_EQ(a.rank, b.rank) << "position " << i;
    ASSERT_EQ(a.top.size(), b.top.size());
    if (a.top.empty()) continue;
    EXPECT_EQ(std::memcmp(a.top.data(), b.top.data(), a.top.size() * sizeof(engine::TokenLogprob)),
              0)
        << "position " << i;
  }
}

void ExpectSamplesAreSingleRequests(
    CollectingSink& sink, engine::GenerateParams params,
    const std::function<CollectingSink::Sample(const engine::GenerateParams&)>& alone) {
  const int32_t n = params.sampling.n;
  const uint64_t seed = *params.sampling.seed;
  params.sampling.n = 1;
  for (int32_t k = 0; k < n; ++k) {
    SCOPED_TRACE(k);
    params.sampling.seed = seed + static_cast<uint64_t>(k);
    ExpectSame(sink.sample(k), alone(params));
    EXPECT_EQ(sink.sample(k).seed, params.sampling.seed);
  }
}

engine::TokenIds RandomIds(int64_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  engine::TokenIds ids(size);
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % 256);
  return ids;
}

engine::GenerateParams GreedyParams(engine::TokenIds prompt, int32_t max_tokens) {
  engine::GenerateParams params;
  params.prompt = std::move(prompt);
  params.sampling.temperature = 0.0f;
  params.stop.max_tokens = max_tokens;
  params.stop.ignore_eos = true;
  params.output.token_ids = true;
  params.output.top_logprobs = 5;
  params.output.logprob_text = true;
  return params;
}

}  // namespace quire::testing
