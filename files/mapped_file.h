#pragma once

// A file read through the page cache: nothing is copied, and untouched pages are not read.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace quire::files {

// Read-only; unmapped with the object. The file must not shrink meanwhile: a read past its new end
// is a SIGBUS. Replace a model by renaming a new file over it, which leaves this mapping intact.
class MappedFile {
 public:
  // NotFound when there is no such file, PermissionDenied when it cannot be read, InvalidArgument
  // when it is empty or not a regular file. Follows symbolic links.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Drops the whole pages inside `part` from memory; they are read again when touched.
  void DropPages(std::span<const std::byte> part) const;

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  const std::string path_;
  const std::span<const std::byte> bytes_;
};

}  // namespace quire::files
