#include "server/health/health_watch.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

#include "base/heartbeat.h"
#include "base/logging.h"

namespace quire::server {
namespace {

using base::Log;
using base::LogLevel;

constexpr std::chrono::seconds kInterval(2);

// Logs a change between well and unwell, and stores the new state in `was_well`. The state is well
// if `reasons` is empty.
void Tell(const std::vector<std::string>& reasons, const char* worse, const char* cure,
          const char* better, bool& was_well) {
  const bool is_well = reasons.empty();
  if (std::exchange(was_well, is_well) == is_well) return;
  if (is_well) {
    Log(LogLevel::kWarning, "health", better);
  } else {
    Log(LogLevel::kError, "health", worse,
        {{"reason", absl::StrJoin(reasons, "; ")}, {"cure", cure}});
  }
}

}  // namespace

HealthWatch::HealthWatch(Health& health, std::function<absl::Status()> call,
                         std::function<void(bool)> set_serving, std::function<void()> on_hang)
    : health_(health),
      call_(std::move(call)),
      set_serving_(std::move(set_serving)),
      on_hang_(std::move(on_hang)),
      thread_([this] { Run(); }) {}

void HealthWatch::Stop() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyOne();
  if (thread_.joinable()) thread_.join();
}

void HealthWatch::Run() {
  do {
    const base::Busy busy(health_.watch());
    health_.NoteCall(call_());
    Judge();
  } while (Wait());
}

void HealthWatch::Judge() {
  const bool was_serving = alive_ && working_;
  Tell(health_.Hung(), "the server hangs: /livez is red",
       "restart it; raise --watchdog_timeout if steps of this model may take so long",
       "the server goes on: /livez is green", alive_);
  Tell(health_.Failing(), "every step fails: /readyz is red",
       "see the errors above; restart the server if its device is lost",
       "steps may succeed again: /readyz is green", working_);
  const bool serving = alive_ && working_;
  if (serving != was_serving) set_serving_(serving);
  if (on_hang_ && health_.StepHangs()) on_hang_();
}

bool HealthWatch::Wait() {
  const auto until = std::chrono::steady_clock::now() + kInterval;
  base::MutexLock lock(mu_);
  while (!stopping_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return true;
    changed_.WaitFor(mu_, left);
  }
  return false;
}

}  // namespace quire::server
