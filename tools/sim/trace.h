#pragma once

// Traces: the requests of a load in the order of their arrival, read from a file or generated.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::tools {

// One request. Its prompt is named by blocks: two prompts that begin with the same ids begin with
// the same tokens.
struct TraceRequest {
  double arrival_seconds = 0.0;  // since the start of the trace; never falls
  int64_t prompt_tokens = 0;     // at least 1
  int64_t output_tokens = 0;     // at least 1
  int32_t tenant = 0;
  // Continuations that are scored, of output_tokens tokens each; 0: an answer is generated.
  int32_t num_scored = 0;
  // The blocks of the prompt, ceil(prompt_tokens / block_tokens); the last one may not be full.
  std::vector<uint64_t> blocks;
};

// Makes the token ids of a prompt, which are 0 .. 2^31 - 1. They depend on `blocks` and
// `block_tokens` alone. They are made when they are needed, because a trace of a million prompts
// would not fit in memory.
std::vector<int32_t> MakeTokens(const TraceRequest& request, int32_t block_tokens);

class Trace {
 public:
  virtual ~Trace() = default;
  // Reads the next request. Returns false at the end. An error names file, line and cure.
  virtual absl::StatusOr<bool> Next(TraceRequest* request) = 0;
  virtual int32_t block_tokens() const = 0;  // tokens of a block of TraceRequest::blocks
};

// Reads a trace of Mooncake (https://github.com/kvcache-ai/Mooncake): a JSON object a line, with
// timestamp (milliseconds), input_length, output_length and hash_ids of blocks of 512 tokens.
absl::StatusOr<std::unique_ptr<Trace>> OpenMooncake(const std::string& path);

// Reads a trace of Azure (https://github.com/Azure/AzurePublicDataset): CSV with the columns
// TIMESTAMP, ContextTokens and GeneratedTokens. The trace does not tell what prompts share. So
// requests are joined to conversations: a prompt continues the longest context that is shorter, at
// least a quarter of it, and waits for 10 s to 15 min. With `seed`, half of such prompts are new.
absl::StatusOr<std::unique_ptr<Trace>> OpenAzure(const std::string& path, uint64_t seed);

// A forest of conversations. Each begins with one of num_systems system prompts, which follow
// Zipf's law. A turn adds a question and the last answer.
struct TreeConfig {
  int64_t num_requests = 10000;
  double rate = 4.0;            // requests a second, Poisson
  double burst = 1.0;           // the rate is multiplied by this for a fifth of the time; >= 1
  double burst_seconds = 30.0;  // the length of a burst; four times as long the rate is lower
  int32_t num_systems = 8;
  int64_t system_tokens = 512;
  int64_t question_tokens = 256;  // mean, geometric
  int64_t answer_tokens = 128;    // mean, geometric
  int64_t max_tokens = 16384;     // of a prompt; a longer conversation ends
  double continue_share = 0.6;    // of turns that are followed by another
  double think_seconds = 60.0;    // median time from an answer to the next turn; log-normal
  int32_t num_tenants = 1;
  int32_t block_tokens = 64;
  uint64_t seed = 0;
};
absl::Status Validate(const TreeConfig& config);
std::unique_ptr<Trace> MakeTree(const TreeConfig& config);

// A tenant, number 0, that asks for more than a server has, beside tenant 1, which asks little:
//   score_flood    at once, 30 requests that score 20 continuations of 1,900 tokens
//   long_answers   at once, 80 prompts of 900 tokens with answers of 1,000 tokens
//   none           tenant 1 alone
// Tenant 1 sends prompts of 128 tokens with answers of 32, 0.2 to 0.4 s after the one before came.
const std::vector<std::string>& PressureNames();
// Returns null if `name` is none of these. `num_light`: requests of tenant 1.
std::unique_ptr<Trace> MakePressure(std::string_view name, int64_t num_light, uint64_t seed);

// Reads a trace to its end.
absl::StatusOr<std::vector<TraceRequest>> ReadAll(Trace& trace);

}  // namespace quire::tools
