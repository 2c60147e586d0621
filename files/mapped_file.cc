#include "files/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

#include "absl/strings/str_format.h"

#include "base/math.h"
#include "base/unique_fd.h"

namespace quire::files {
namespace {

absl::Status SystemError(const std::string& path, const char* call) {
  const int error = errno;
  const std::string text = absl::StrFormat("%s: %s: %s", path, call, std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // With O_NONBLOCK, open() of a fifo does not wait for a writer. A fifo is refused below.
  const base::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "open");
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemError(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: want a regular file", path));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: the file is empty", path));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return SystemError(path, "mmap");
  return std::unique_ptr<MappedFile>(
      new MappedFile(path, {static_cast<const std::byte*>(address), size}));
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::DropPages(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  // Rounds inwards, because a page that is shared with a neighbouring tensor may still be needed.
  const uintptr_t first = base::RoundUp(begin, page);
  const uintptr_t last = (begin + part.size()) / page * page;
  if (first >= last) return;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace quire::files
