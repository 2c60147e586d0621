#include "client/bench_workload.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/check.h"
#include "base/flags/flag_value.h"
#include "base/strings.h"

namespace quire::client {

uint32_t LengthMix::max() const {
  uint32_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.high);
  return longest;
}

absl::StatusOr<LengthMix> ParseLengthMix(std::string_view text) {
  LengthMix mix;
  for (const absl::string_view entry : absl::StrSplit(base::ToAbsl(text), ',')) {
    const std::vector<std::string> ends = absl::StrSplit(entry, "..");
    LengthMix::Range range;
    const bool parsed = (ends.size() == 1 || ends.size() == 2) &&
                        base::ParseValue(ends.front(), &range.low).ok() &&
                        base::ParseValue(ends.back(), &range.high).ok();
    if (!parsed || range.low < 1 || range.low > range.high) {
      return absl::InvalidArgumentError(
          absl::StrFormat("want lengths such as 128, 64..512 or 16,100..200, got \"%s\"", text));
    }
    mix.ranges.push_back(range);
  }
  return mix;
}

Workload::Workload(WorkloadConfig config) : config_(std::move(config)), random_(config_.seed) {
  QUIRE_CHECK(!config_.prompts.empty() || config_.vocab_size > config_.excluded_ids.size());
  for (uint32_t i = 0; config_.shared_prefix_tokens > 0 && i < config_.num_shared_prefixes; ++i) {
    AppendTokens(config_.shared_prefix_tokens, shared_prefixes_.emplace_back());
  }
}

PlannedRequest Workload::Next() {
  PlannedRequest request;
  if (config_.rate > 0) {
    // The gaps of a Poisson process have an exponential distribution.
    last_arrival_ += absl::Seconds(-std::log1p(-Uniform()) / config_.rate);
    request.arrival = last_arrival_;
  }
  if (!config_.prompts.empty()) {
    request.text = config_.prompts[Below(config_.prompts.size())];
  } else {
    if (!shared_prefixes_.empty() && Uniform() < config_.shared_prefix_fraction) {
      request.token_ids = shared_prefixes_[Below(shared_prefixes_.size())];
    }
    AppendTokens(DrawLength(config_.prompt_tokens), request.token_ids);
  }
  request.max_tokens = DrawLength(config_.output_tokens);
  if (Uniform() < config_.cancel_rate) {
    request.cancel_after_tokens = static_cast<uint32_t>(Below(request.max_tokens));
  }
  return request;
}

uint64_t Workload::Below(uint64_t bound) {
  // The bias of a 64-bit remainder is below bound / 2^64.
  return random_() % bound;
}

double Workload::Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

uint32_t Workload::DrawLength(const LengthMix& mix) {
  const LengthMix::Range& range = mix.ranges[Below(mix.ranges.size())];
  return range.low + static_cast<uint32_t>(Below(uint64_t{range.high} - range.low + 1));
}

void Workload::AppendTokens(uint32_t count, std::vector<int32_t>& ids) {
  const auto excluded = [this](int32_t id) {
    return std::find(config_.excluded_ids.begin(), config_.excluded_ids.end(), id) !=
           config_.excluded_ids.end();
  };
  ids.reserve(ids.size() + count);
  while (count > 0) {
    const int32_t id = static_cast<int32_t>(Below(config_.vocab_size));
    if (excluded(id)) continue;
    ids.push_back(id);
    --count;
  }
}

}  // namespace quire::client
