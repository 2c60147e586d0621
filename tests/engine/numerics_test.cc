// Tests that answers have exactly the bits of the numerics family that GetServerInfo names, on
// every ISA path of the machine. testdata/numerics_cpu-2.txt has the bits of the family cpu-2, as
// tokens, log-probabilities and hashes. A change that fails this test changes answers. If the
// change is intended, CpuBackend gets the next family name, and the text that the test writes
// becomes the file of that family.
//
// ctest runs the test twice on x86-64. The second run uses the variants of libm for processors
// without FMA.

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

#include "engine/engine.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "engine/model/rope_table.h"
#include "files/model_files.h"
#include "kernels/alibi_slopes.h"
#include "kernels/backend_registry.h"
#include "kernels/sampling/gumbel.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/bit_hash.h"
#include "tests/testing/collecting_sink.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using testing::BitHash;

std::string TableLines() {
  BitHash noise;
  for (uint32_t i = 0; i < 1 << 20; ++i)
    noise.Add(kernels::sampling::GumbelFromBits(i * 2654435761));
  std::string lines = noise.Line("noise");

  BitHash slopes;
  for (int32_t num_heads = 1; num_heads <= 128; ++num_heads) {
    for (const float slope : kernels::AlibiSlopes(num_heads)) slopes.Add(slope);
  }
  lines += slopes.Line("slopes");

  const RopeConfig plain = {.theta = 10000.0, .rope_dim = 32};
  const auto add = [&lines](const std::string& name, RopeConfig rope, int64_t num_positions) {
    BitHash hash;
    for (const double frequency : RopeFrequencies(rope, num_positions)) hash.Add(frequency);
    for (const float x : MakeRopeTable(rope, num_positions)) hash.Add(x);
    lines += hash.Line("rope " + name);
  };
  add("plain", plain, 1 << 16);
  RopeConfig rope = plain;
  rope.original_max_position_embeddings = 1024;
  rope.factor = 8.0;
  rope.scaling = RopeScaling::kLinear;
  add("linear", rope, 8192);
  rope.scaling = RopeScaling::kDynamic;
  add("dynamic", rope, 8192);
  rope.scaling = RopeScaling::kLlama3;
  add("llama3", rope, 8192);
  rope.scaling = RopeScaling::kYarn;
  rope.attention_factor = YarnAttentionFactor(rope.factor, 0.9);
  add("yarn", rope, 8192);
  return lines;
}

// Returns a hash of the logits of a Llama with RoPE and K-quants.
std::string LogitsLine(kernels::Backend& backend) {
  const auto files =
      files::OpenModelFiles(testing::TestSourcePath("engine/model/testdata/llama_q4_k_m.gguf"));
  EXPECT_TRUE(files.ok()) << files.status();
  const auto config = ReadModelConfig(*files);
  EXPECT_TRUE(config.ok()) << config.status();
  testing::ModelRunner runner(*CreateModel(*config, *files, backend, testing::ModelRunner::kLimits),
                              backend);
  std::vector<int32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 32);
  BitHash hash;
  for (const float logit : runner.Prefill(ids)) hash.Add(logit);
  return hash.Line("logits of llama_q4_k_m.gguf");
}

// Returns two lines about an answer of models/quire-stories. The first line has the tokens with
// their log-probabilities. The second has a hash of the log-probabilities of the likeliest tokens.
std::string AnswerLine(const std::string& name, Engine& engine, const SamplingParams& sampling) {
  GenerateParams params;
  params.prompt = "Once upon a time there was a small dragon who";
  params.sampling = sampling;
  params.stop.max_tokens = 10;
  params.stop.ignore_eos = true;
  params.output.token_ids = true;
  params.output.top_logprobs = 3;
  const auto sink = std::make_shared<testing::CollectingSink>();
  const auto handle = engine.Submit(std::move(params), sink);
  EXPECT_TRUE(handle.ok()) << handle.status();
  EXPECT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  std::string line = name + ":";
  BitHash others;
  const auto sample = sink->sample();
  for (const PositionLogprobs& position : sample.logprobs) {
    absl::StrAppendFormat(&line, " %d(%a)", position.chosen.token_id, position.chosen.logprob);
    for (const TokenLogprob& top : position.top) others.Add(top.logprob);
  }
  return line + others.Line("\n" + name + ", the likeliest:");
}

TEST(NumericsTest, EveryIsaPathHasTheBitsOfTheFamily) {
  const std::string tables = TableLines();
  int paths = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    const auto backend = kernels::CreateBackend({.name = "cpu", .cpu_isa = isa, .num_threads = 2});
    if (!backend.ok()) continue;  // this machine has no such ISA
    SCOPED_TRACE(isa);
    ++paths;
    const auto engine =
        Engine::Create({.model_path = testing::TestSourcePath("../models/quire-stories"),
                        .cpu_isa = isa,
                        .threads = 2,
                        .kv_cache_mib = 16,
                        .max_num_seqs = 2});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const std::string family = (*engine)->server_info().numerics;
    EXPECT_EQ(family, (*backend)->info().numerics);
    std::string got = tables + LogitsLine(**backend);
    SamplingParams sampling;
    sampling.temperature = 0.0f;
    got += AnswerLine("greedy", **engine, sampling);
    sampling.temperature = 1.0f;
    sampling.seed = 7;
    got += AnswerLine("plain", **engine, sampling);
    sampling.temperature = 0.9f;
    sampling.top_k = 60;
    sampling.typical_p = 0.98f;
    sampling.top_p = 0.95f;
    sampling.min_p = 0.01f;
    sampling.repetition_penalty = 1.1f;
    sampling.seed = 42;
    got += AnswerLine("cut", **engine, sampling);
    const std::string file = "numerics_" + family + ".txt";
    const std::string want = testing::ReadFile(testing::TestSourcePath("engine/testdata/" + file));
    if (got != want) std::ofstream(::testing::TempDir() + file) << got;
    EXPECT_EQ(got, want) << "written to " << ::testing::TempDir() << file;
  }
  EXPECT_GE(paths, 1) << "the portable path is on every machine";
}

}  // namespace
}  // namespace quire::engine
