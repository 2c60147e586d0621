// Generated conversations.

#include <cmath>
#include <queue>

#include "absl/strings/str_format.h"

#include "base/math.h"
#include "tools/sim/random.h"
#include "tools/sim/trace.h"

namespace quire::tools {
namespace {

class TreeTrace final : public Trace {
 public:
  explicit TreeTrace(const TreeConfig& config) : config_(config), random_(config.seed) {
    double sum = 0.0;
    for (int32_t i = 1; i <= config.num_systems; ++i) systems_.push_back(sum += 1.0 / i);
  }
  int32_t block_tokens() const override { return config_.block_tokens; }

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    if (num_made_ == config_.num_requests) return false;
    if (next_new_ < 0.0) next_new_ = NextArrival(0.0);
    Turn turn;
    if (!turns_.empty() && turns_.top().seconds <= next_new_) {
      turn = turns_.top();
      turns_.pop();
    } else {
      turn = NewConversation();
      next_new_ = NextArrival(next_new_);
    }
    turn.prompt_tokens += random_.Geometric(static_cast<double>(config_.question_tokens));
    turn.prompt_tokens = std::min(turn.prompt_tokens, config_.max_tokens);
    request->arrival_seconds = turn.seconds;
    request->prompt_tokens = turn.prompt_tokens;
    request->output_tokens = random_.Geometric(static_cast<double>(config_.answer_tokens));
    request->tenant = turn.tenant;
    NameBlocks(turn, request);
    ++num_made_;
    if (turn.prompt_tokens + request->output_tokens < config_.max_tokens &&
        random_.Uniform() < config_.continue_share) {
      turn.prompt_tokens += request->output_tokens;
      turn.seconds += random_.LogNormal(config_.think_seconds, 1.0);
      turns_.push(turn);
    }
    return true;
  }

 private:
  // The next turn of a conversation.
  struct Turn {
    double seconds = 0.0;
    uint64_t conversation = 0;
    uint64_t system = 0;
    int32_t tenant = 0;
    int64_t prompt_tokens = 0;
    // Later turns first, so that the queue's top is the earliest.
    bool operator<(const Turn& other) const {
      return seconds != other.seconds ? seconds > other.seconds : conversation > other.conversation;
    }
  };

  // A share of all turns are first turns, so that the rate of all requests is config_.rate.
  double NextArrival(double after) {
    const double rate = config_.rate * (1.0 - config_.continue_share);
    const double low = 5.0 / (config_.burst + 4.0);
    const double phase = std::fmod(after, 5.0 * config_.burst_seconds);
    const double factor = phase < config_.burst_seconds ? config_.burst * low : low;
    return after + random_.Exponential(1.0 / (rate * factor));
  }

  Turn NewConversation() {
    Turn turn{.seconds = next_new_, .conversation = ++num_conversations_};
    const double draw = random_.Uniform() * systems_.back();
    while (systems_[turn.system] <= draw) ++turn.system;
    turn.tenant = static_cast<int32_t>(random_.Bits() % config_.num_tenants);
    turn.prompt_tokens = config_.system_tokens;
    return turn;
  }

  // Names blocks by what they hold: a part of a system prompt, or of one conversation. The block in
  // which a prompt ends is another one in the next turn.
  void NameBlocks(const Turn& turn, TraceRequest* request) const {
    const int64_t num = base::CeilDiv(turn.prompt_tokens, int64_t{config_.block_tokens});
    const uint64_t conversation = Mix(config_.seed ^ Mix(turn.conversation));
    const uint64_t system = Mix(config_.seed ^ Mix(~turn.system));
    request->blocks.resize(num);
    for (int64_t i = 0; i < num; ++i) {
      const bool is_system = (i + 1) * config_.block_tokens <= config_.system_tokens;
      request->blocks[i] = Mix((is_system ? system : conversation) + static_cast<uint64_t>(i));
    }
    if (turn.prompt_tokens % config_.block_tokens != 0) {
      request->blocks.back() = Mix(request->blocks.back() + turn.prompt_tokens);
    }
  }

  const TreeConfig config_;
  Random random_;
  std::vector<double> systems_;  // cumulated weights
  int64_t num_made_ = 0;
  uint64_t num_conversations_ = 0;
  double next_new_ = -1.0;
  std::priority_queue<Turn> turns_;
};

}  // namespace

absl::Status Validate(const TreeConfig& config) {
  const auto want = [](bool ok, const char* text) {
    return ok ? absl::OkStatus() : absl::InvalidArgumentError(text);
  };
  for (const absl::Status& status :
       {want(config.num_requests >= 1, "--requests: want at least 1"),
        want(config.rate > 0.0 && config.rate <= 1e6, "--rate: want more than 0, at most 1e6"),
        want(config.burst >= 1.0 && config.burst <= 1e3, "--burst: want 1..1000"),
        want(config.burst_seconds > 0.0, "--burst_seconds: want more than 0"),
        want(config.num_systems >= 1 && config.num_systems <= 1 << 20,
             "--systems: want 1..1048576"),
        want(config.system_tokens >= 0 && config.question_tokens >= 1 && config.answer_tokens >= 1,
             "--system_tokens: want at least 0; --question_tokens, --answer_tokens: at least 1"),
        want(config.max_tokens > config.system_tokens && config.max_tokens <= 1 << 24,
             "--max_prompt_tokens: want more than --system_tokens, at most 2^24"),
        want(config.continue_share >= 0.0 && config.continue_share < 1.0,
             "--continue_share: want 0 or more, less than 1"),
        want(config.think_seconds > 0.0, "--think_seconds: want more than 0"),
        want(config.num_tenants >= 1 && config.num_tenants <= 1 << 16, "--tenants: want 1..65536"),
        want(config.block_tokens >= 1 && config.block_tokens <= 1 << 16,
             "--block_tokens: want 1..65536")}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::unique_ptr<Trace> MakeTree(const TreeConfig& config) {
  return std::make_unique<TreeTrace>(config);
}

}  // namespace quire::tools
