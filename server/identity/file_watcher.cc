#include "server/identity/file_watcher.h"

#include <chrono>
#include <utility>

#include <sys/stat.h>

#include "absl/time/time.h"

namespace quire::server {

FileWatcher::FileWatcher(std::vector<std::string> paths, std::function<void()> on_change,
                         absl::Duration period)
    : paths_(std::move(paths)), on_change_(std::move(on_change)), period_(period), seen_(Look()) {
  if (!paths_.empty()) thread_ = std::thread([this] { Run(); });
}

FileWatcher::~FileWatcher() {
  {
    base::MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void FileWatcher::Trigger() {
  base::MutexLock lock(mu_);
  triggered_ = true;
  changed_.NotifyAll();
}

FileWatcher::Stamp FileWatcher::StampOf(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size,
          absl::ToUnixNanos(absl::TimeFromTimespec(status.st_mtim)),
          absl::ToUnixNanos(absl::TimeFromTimespec(status.st_ctim))};
}

std::vector<FileWatcher::Stamp> FileWatcher::Look() const {
  std::vector<Stamp> stamps;
  for (const std::string& path : paths_) stamps.push_back(StampOf(path));
  return stamps;
}

bool FileWatcher::Rest(bool& triggered) {
  // The steady clock, because the time of day may be set back.
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(period_);
  base::MutexLock lock(mu_);
  while (!ended_ && !triggered_) {
    const std::chrono::nanoseconds left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) break;
    changed_.WaitFor(mu_, left);
  }
  triggered = std::exchange(triggered_, false);
  return !ended_;
}

void FileWatcher::Run() {
  bool is_new = false;  // a change was seen that is not reported yet
  for (bool triggered = false; Rest(triggered);) {
    std::vector<Stamp> now = Look();
    const bool rests = now == seen_;
    is_new = is_new || !rests;
    seen_ = std::move(now);
    if (!triggered && (!is_new || !rests)) continue;
    is_new = false;
    on_change_();
  }
}

}  // namespace quire::server
