#pragma once

// Sees that files were changed or replaced.

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/mutex.h"

namespace quire::server {

// Looks at the files themselves, through links (a mounted secret changes by one), each period. By
// asking, not by inotify: that sees neither through links nor what happens on a network file
// system. Thread-safe.
class FileWatcher {
 public:
  // Calls `on_change` on a thread of its own when a file of `paths` is another than before, or has
  // other contents or none, and none has changed for a period since: half a file is not read. No
  // thread without paths.
  FileWatcher(std::vector<std::string> paths, std::function<void()> on_change,
              absl::Duration period = absl::Seconds(1));
  ~FileWatcher();
  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

  // Has `on_change` called soon, whatever changed.
  void Trigger();

 private:
  // Device, file, size, and times of contents and of the file's own record; zeros without a file.
  using Stamp = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t>;

  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> Look() const;
  void Run();
  // Waits a period; false when it is to end.
  bool Rest(bool& triggered);

  // Constant after construction.
  const std::vector<std::string> paths_;
  const std::function<void()> on_change_;
  const absl::Duration period_;

  base::Mutex mu_;
  base::CondVar changed_;
  bool triggered_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<Stamp> seen_;  // the thread's own, after construction
  std::thread thread_;       // last: it uses the others
};

}  // namespace quire::server
