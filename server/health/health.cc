#include "server/health/health.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace quire::server {
namespace {

constexpr int64_t kUnansweredCalls = 3;  // after this many in a row the listener is dead
constexpr int64_t kFailedSteps = 3;      // after this many in a row the backend is lost
// An unready server gets no requests, and without requests it runs no steps. But only a step can
// show that steps succeed again. So the server counts as ready again this long after the last
// failed step.
constexpr absl::Duration kAnotherChance = absl::Seconds(30);

}  // namespace

void Health::NoteCall(const absl::Status& status) {
  base::MutexLock lock(mu_);
  unanswered_calls_ = status.ok() ? 0 : unanswered_calls_ + 1;
  last_call_ = status;
}

bool Health::IsTooLong(absl::Duration busy) const {
  return watchdog_timeout_ > absl::ZeroDuration() && busy > watchdog_timeout_;
}

std::vector<std::string> Health::Hung() const {
  std::vector<std::string> reasons;
  const auto check = [&](const char* who, absl::Duration busy, const std::string& with) {
    if (!IsTooLong(busy)) return;
    reasons.push_back(absl::StrFormat("%s: busy for %d s%s; --watchdog_timeout is %s", who,
                                      absl::ToInt64Seconds(busy), with,
                                      absl::FormatDuration(watchdog_timeout_)));
  };
  if (const engine::Engine* engine = engine_) {
    const engine::Liveness engine_now = engine->liveness();
    check("step thread", engine_now.step_busy,
          absl::StrFormat(" with %d tokens of %d sequences", engine_now.step_tokens,
                          engine_now.step_sequences));
    check("frontend thread", engine_now.frontend_busy, " with one text");
  }
  check("egress thread", egress_.busy_for(), " with one message");
  check("health watch", watch_.busy_for(), "");
  base::MutexLock lock(mu_);
  if (unanswered_calls_ >= kUnansweredCalls) {
    reasons.push_back(
        absl::StrCat("listener: ", unanswered_calls_,
                     " calls in a row got no answer, the last: ", last_call_.message()));
  }
  return reasons;
}

std::vector<std::string> Health::Failing() const {
  const engine::Engine* engine = engine_;
  if (engine == nullptr) return {};
  const engine::Liveness now = engine->liveness();
  if (now.device_lost) return {"device: it is lost, and the server ends; see the server's log"};
  if (now.failed_steps < kFailedSteps || now.since_failure > kAnotherChance) return {};
  return {absl::StrFormat("steps: the last %d failed, the latest %d s ago; see the server's log",
                          now.failed_steps, absl::ToInt64Seconds(now.since_failure))};
}

bool Health::StepHangs() const {
  const engine::Engine* engine = engine_;
  return engine != nullptr && IsTooLong(engine->liveness().step_busy);
}

std::string Health::WhyNotLive() const { return absl::StrJoin(Hung(), "\n"); }

std::string Health::WhyNotReady() const {
  std::vector<std::string> reasons = Hung();
  const engine::Engine* engine = engine_;
  if (engine == nullptr) reasons.push_back("the model is being loaded");
  if (engine != nullptr && engine->stats().draining) reasons.push_back("draining");
  for (std::string& reason : Failing()) reasons.push_back(std::move(reason));
  return absl::StrJoin(reasons, "\n");
}

}  // namespace quire::server
