#include "engine/admission/step_channel.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"

namespace quire::engine {

CommandPlace::~CommandPlace() {
  if (channel_ != nullptr) channel_->num_commands_.fetch_sub(1, std::memory_order_relaxed);
}

void StepChannel::Admit(AdmittedRequest admitted) { Add(std::move(admitted)); }

void StepChannel::Send(UnpinCommand command) { Add(std::move(command)); }

void StepChannel::Send(ForkPinCommand command) { Add(std::move(command)); }

void StepChannel::Send(FlushCommand command) { SendIfRoom(std::move(command)); }

void StepChannel::Send(MapCommand command) { SendIfRoom(std::move(command)); }

template <typename Command>
void StepChannel::SendIfRoom(Command command) {
  if (num_commands_.fetch_add(1, std::memory_order_relaxed) >= max_commands_) {
    num_commands_.fetch_sub(1, std::memory_order_relaxed);
    std::move(command.done)(absl::ResourceExhaustedError(absl::StrFormat(
        "%d commands to the engine are not complete yet: try later", max_commands_)));
    return;
  }
  Add(Command{.done = std::move(command.done), .place = CommandPlace(this)});
}

void StepChannel::Add(StepCommand command) {
  base::MutexLock lock(mu_);
  commands_.push_back(std::move(command));
  work_.NotifyOne();
}

void StepChannel::Notice(std::weak_ptr<const Request> request) {
  base::MutexLock lock(mu_);
  noticed_.push_back(std::move(request));
  work_.NotifyOne();
}

void StepChannel::Wake() {
  base::MutexLock lock(mu_);
  woken_ = true;
  work_.NotifyOne();
}

bool StepChannel::WaitForWork(absl::Duration timeout) {
  // 24 hours are long enough to count as forever and short enough not to overflow a clock.
  const absl::Duration at_most = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24));
  const absl::Time deadline = base::SteadyNow() + at_most;
  base::MutexLock lock(mu_);
  while (!woken_ && commands_.empty() && noticed_.empty()) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    work_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  woken_ = false;
  return true;
}

void StepChannel::Drain(std::vector<StepCommand>& commands,
                        std::vector<std::shared_ptr<const Request>>& noticed) {
  base::MutexLock lock(mu_);
  for (const std::weak_ptr<const Request>& request : noticed_) {
    if (auto alive = request.lock()) noticed.push_back(std::move(alive));
  }
  noticed_.clear();
  std::ranges::move(commands_, std::back_inserter(commands));
  commands_.clear();
}

}  // namespace quire::engine
