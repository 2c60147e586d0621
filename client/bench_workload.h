#pragma once

// Plans a load: the arrival times of requests, the lengths of prompts and answers, the prefixes
// that prompts share, and the requests that are cancelled while they run. The same seed gives the
// same load on every machine.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::client {

// A mix of lengths in tokens. All entries are equally likely, and so are all lengths in an entry.
struct LengthMix {
  struct Range {
    uint32_t low = 0;
    uint32_t high = 0;  // inclusive
  };
  std::vector<Range> ranges;

  uint32_t max() const;
};

// Parses "128", "64..512" or "16,100..200". Every length is at least 1.
absl::StatusOr<LengthMix> ParseLengthMix(std::string_view text);

struct WorkloadConfig {
  double rate = 0.0;  // requests a second, Poisson; 0: closed loop, arrivals are not planned
  LengthMix prompt_tokens{{{128, 128}}};  // of a prompt's own part, without the shared prefix
  LengthMix output_tokens{{{64, 64}}};
  uint32_t shared_prefix_tokens = 0;
  double shared_prefix_fraction = 1.0;  // of all requests; used when shared_prefix_tokens > 0
  uint32_t num_shared_prefixes = 1;
  double cancel_rate = 0.0;  // fraction of requests to cancel, after a random number of tokens
  uint64_t seed = 0;
  uint32_t vocab_size = 0;
  std::vector<int32_t> excluded_ids;  // never drawn into a prompt: end tokens and the like
  std::vector<std::string> prompts;   // texts to draw prompts from; empty: random token ids
};

struct PlannedRequest {
  absl::Duration arrival;          // after the start; zero in a closed loop
  std::vector<int32_t> token_ids;  // the prompt, unless `text` is set
  std::string text;
  uint32_t max_tokens = 0;
  std::optional<uint32_t> cancel_after_tokens;  // 0: as soon as the request was sent
};

class Workload {
 public:
  explicit Workload(WorkloadConfig config);
  PlannedRequest Next();

 private:
  uint64_t Below(uint64_t bound);  // uniform in [0, bound)
  double Uniform();                // uniform in [0, 1)
  uint32_t DrawLength(const LengthMix& mix);
  void AppendTokens(uint32_t count, std::vector<int32_t>& ids);

  const WorkloadConfig config_;
  // The C++ standard defines the numbers of this generator, but not the results of std's
  // distributions. So the workload uses no distribution of std.
  std::mt19937_64 random_;
  std::vector<std::vector<int32_t>> shared_prefixes_;
  absl::Duration last_arrival_;
};

}  // namespace quire::client
