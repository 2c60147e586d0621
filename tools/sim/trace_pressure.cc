// MakePressure: one tenant that asks for too much, beside one that asks little.

#include <deque>
#include <utility>

#include "tools/sim/random.h"
#include "tools/sim/trace.h"

namespace quire::tools {
namespace {

constexpr int32_t kBlockTokens = 64;
constexpr int32_t kHeavy = 0;
constexpr int32_t kLight = 1;

class PressureTrace final : public Trace {
 public:
  void Add(TraceRequest request) {
    const int64_t num_blocks = (request.prompt_tokens + kBlockTokens - 1) / kBlockTokens;
    for (int64_t i = 0; i < num_blocks; ++i) request.blocks.push_back(next_block_++);
    requests_.push_back(std::move(request));
  }

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    if (requests_.empty()) return false;
    *request = std::move(requests_.front());
    requests_.pop_front();
    return true;
  }
  int32_t block_tokens() const override { return kBlockTokens; }

 private:
  std::deque<TraceRequest> requests_;
  uint64_t next_block_ = 0;
};

}  // namespace

const std::vector<std::string>& PressureNames() {
  static const auto* const names =
      new std::vector<std::string>{"score_flood", "long_answers", "none"};
  return *names;
}

std::unique_ptr<Trace> MakePressure(std::string_view name, int64_t num_light, uint64_t seed) {
  auto trace = std::make_unique<PressureTrace>();
  if (name == "score_flood") {
    for (int i = 0; i < 30; ++i) {
      trace->Add({.prompt_tokens = 16, .output_tokens = 1900, .tenant = kHeavy, .num_scored = 20});
    }
  } else if (name == "long_answers") {
    for (int i = 0; i < 80; ++i) {
      trace->Add({.prompt_tokens = 900, .output_tokens = 1000, .tenant = kHeavy});
    }
  } else if (name != "none") {
    return nullptr;
  }
  Random random(seed);
  double arrival = 0.0;
  for (int64_t i = 0; i < num_light; ++i) {
    arrival += 0.2 + 0.2 * random.Uniform();
    trace->Add(
        {.arrival_seconds = arrival, .prompt_tokens = 128, .output_tokens = 32, .tenant = kLight});
  }
  return trace;
}

}  // namespace quire::tools
