#pragma once

// Notices when files are changed or replaced.

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

// Checks the files once each period with stat(2). stat(2) follows links, and a mounted secret
// changes when a link is replaced. inotify is not used, because it does not follow links and misses
// changes on a network file system. Thread-safe.
class FileWatcher {
 public:
  // Calls `on_change` on a separate thread after a file of `paths` was replaced, written or
  // removed. Waits until no file has changed for one period before the call, so that no
  // half-written file is read. If `paths` is empty, there is no thread.
  FileWatcher(std::vector<std::string> paths, std::function<void()> on_change,
              absl::Duration period = absl::Seconds(1));
  ~FileWatcher();
  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

  // Makes the thread call `on_change` soon, even if nothing changed.
  void Trigger();

 private:
  // Device, inode, size, modification time and status-change time of a file. All are zero if the
  // file does not exist.
  using Stamp = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t>;

  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> Look() const;
  void Run();
  // Waits for one period or for Trigger. Sets `triggered` to true if Trigger ended the wait.
  // Returns false when the thread must end.
  bool Rest(bool& triggered);

  // Constant after construction.
  const std::vector<std::string> paths_;
  const std::function<void()> on_change_;
  const absl::Duration period_;

  base::Mutex mu_;
  base::CondVar changed_;
  bool triggered_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<Stamp> seen_;  // after construction, used by the thread only
  std::thread thread_;       // declared last, because it uses the other members
};

}  // namespace quire::server
