#pragma once

// A place in a kernel, for error messages. As the default of a last parameter it is the caller's
// line.

#include <cstring>

namespace quire::kernels::cuda::emulator {

struct Where {
  const char* file;
  int line;

  // Built-ins instead of std::source_location, which clang 14 does not have.
  constexpr Where(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

inline bool SameLine(Where a, Where b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace quire::kernels::cuda::emulator
