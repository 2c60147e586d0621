#include "files/state_directory.h"

#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <unistd.h>
#include <utility>

#include <sys/file.h>
#include <sys/stat.h>

#include "absl/strings/str_format.h"

namespace quire::files {
namespace {

constexpr char kLockFile[] = "lock";

// Returns false if another process has locked it.
bool TryLock(const base::UniqueFd& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

absl::Status CheckIsPrivate(const std::string& path, const struct stat& status) {
  if (!S_ISDIR(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrFormat("%s: want a directory", path));
  }
  if (status.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: want a directory of the server's user %d, got one of user %d: chown "
                        "it, or name another directory",
                        path, ::geteuid(), status.st_uid));
  }
  if ((status.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: want mode 0700, since prompts are stored in it, got %04o: chmod 700 it", path,
        status.st_mode & 07777));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ErrnoStatus(const std::string& path, const char* action) {
  const int error = errno;
  const std::string text = absl::StrFormat("%s: cannot %s: %s", path, action, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (error == ENOENT) return absl::NotFoundError(text);
  return absl::FailedPreconditionError(text);
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(path, "create");
  base::UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return ErrnoStatus(path, "open");
  struct stat status = {};
  if (::fstat(directory.get(), &status) != 0) return ErrnoStatus(path, "read");
  if (absl::Status checked = CheckIsPrivate(path, status); !checked.ok()) return checked;

  base::UniqueFd lock(::openat(directory.get(), kLockFile,
                               O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!lock) return ErrnoStatus(path + "/" + kLockFile, "open");
  // The file may be removed while it is locked, so the directory is locked too. Servers of earlier
  // versions know the file alone.
  if (!TryLock(directory) || !TryLock(lock)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: another server uses it: stop that one, or give each server a "
                        "directory of its own",
                        path));
  }
  return std::unique_ptr<StateDirectory>(
      new StateDirectory(path, std::move(directory), std::move(lock)));
}

absl::StatusOr<base::UniqueFd> StateDirectory::OpenFile(const std::string& name,
                                                        bool create) const {
  // Without O_NONBLOCK, a pipe in the place of the file would wait for its other end.
  base::UniqueFd file(::openat(
      directory_.get(), name.c_str(),
      O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0), 0600));
  if (!file) return ErrnoStatus(name, create ? "create" : "open");
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoStatus(name, "read");
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrFormat("%s: want a regular file", name));
  }
  return file;
}

absl::Status StateDirectory::CheckHas(const std::string& name, const base::UniqueFd& file) const {
  struct stat named = {}, opened = {};
  if (::fstatat(directory_.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::fstat(file.get(), &opened) != 0) {
    return ErrnoStatus(name, "find");
  }
  if (named.st_dev == opened.st_dev && named.st_ino == opened.st_ino) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: another file has taken its name while it was in use", name));
}

absl::Status StateDirectory::Rename(const std::string& from, const std::string& to) const {
  if (::renameat(directory_.get(), from.c_str(), directory_.get(), to.c_str()) != 0) {
    return ErrnoStatus(from, "rename");
  }
  if (::fsync(directory_.get()) != 0) return ErrnoStatus(to, "sync the name of");
  return absl::OkStatus();
}

absl::Status StateDirectory::Link(const std::string& name, const std::string& also) const {
  if (absl::Status removed = Remove(also); !removed.ok() && !absl::IsNotFound(removed)) {
    return removed;
  }
  if (::linkat(directory_.get(), name.c_str(), directory_.get(), also.c_str(), 0) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(also, "link");
}

absl::Status StateDirectory::Remove(const std::string& name) const {
  if (::unlinkat(directory_.get(), name.c_str(), 0) == 0) return absl::OkStatus();
  return ErrnoStatus(name, "remove");
}

absl::StatusOr<std::vector<std::string>> StateDirectory::List() const {
  // The descriptor's own position in the directory is that of every copy, so another one is opened.
  base::UniqueFd copy(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return ErrnoStatus("its files", "list");
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::fdopendir(copy.get()), ::closedir);
  if (opened == nullptr) return ErrnoStatus("its files", "list");
  copy.Release();
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(opened.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return ErrnoStatus("its files", "list");
  return names;
}

absl::Status StateDirectory::WithPath(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrFormat("%s/%s", path_, status.message()));
}

}  // namespace quire::files
