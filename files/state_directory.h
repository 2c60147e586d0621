#pragma once

// A directory in which a server keeps what outlives it.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"

namespace quire::files {

// The directory belongs to one process at a time, by a lock that ends with the process, however it
// ends. Only its owner may enter it (mode 0700), since prompts are stored in it as they are. Its
// files have mode 0600, and a link in the place of a file is refused. Errors name a file without
// the directory, since clients may see them. Thread-safe.
class StateDirectory {
 public:
  // Opens `path`, or creates it; its parent must exist. Returns FailedPrecondition, with the cure,
  // if it belongs to another user, may be entered by others, or is used by another process.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path);

  const std::string& path() const { return path_; }

  // Opens a file of the directory for reading and writing, or with `create` creates it. Returns
  // NotFound if there is none, and otherwise the error of the system; `create` wants that nothing
  // has the name.
  absl::StatusOr<base::UniqueFd> OpenFile(const std::string& name, bool create) const;
  // Returns an error unless the open file still has this name.
  absl::Status CheckHas(const std::string& name, const base::UniqueFd& file) const;
  // Replaces `to` by `from`, also on the disk: both the file and its name are there when this
  // returns. `from` was synced before.
  absl::Status Rename(const std::string& from, const std::string& to) const;
  // Gives a file a second name, and takes that from the file that had it.
  absl::Status Link(const std::string& name, const std::string& also) const;
  // Removes a file. It may be there again after a loss of power.
  absl::Status Remove(const std::string& name) const;
  // Returns the names of what is in the directory, in no order.
  absl::StatusOr<std::vector<std::string>> List() const;
  // Returns an error of a file with its whole path, for whoever starts the server.
  absl::Status WithPath(const absl::Status& status) const;

 private:
  StateDirectory(std::string path, base::UniqueFd directory, base::UniqueFd lock)
      : path_(std::move(path)), directory_(std::move(directory)), lock_(std::move(lock)) {}

  const std::string path_;
  const base::UniqueFd directory_;
  const base::UniqueFd lock_;
};

// Returns the status of a call on a file or directory that set errno. ResourceExhausted if there is
// no space.
absl::Status ErrnoStatus(const std::string& path, const char* action);

}  // namespace quire::files
