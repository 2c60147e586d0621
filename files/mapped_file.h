#pragma once

// A memory-mapped file. Nothing is copied, and pages that are not touched are not read.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace quire::files {

// A read-only mapping, which ends with the object. The file must not shrink while it is mapped,
// because a read past the new end raises SIGBUS. To replace a model, rename a new file over the old
// one; this mapping then stays intact.
class MappedFile {
 public:
  // Maps a file; follows symbolic links. Returns NotFound when there is no such file,
  // PermissionDenied when the file may not be read, and InvalidArgument when the file is empty or
  // not a regular file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Drops the pages that are completely inside `part` from memory. A dropped page is read again
  // when it is touched.
  void DropPages(std::span<const std::byte> part) const;

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  const std::string path_;
  const std::span<const std::byte> bytes_;
};

}  // namespace quire::files
