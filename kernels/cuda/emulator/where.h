#pragma once

// A place in a kernel, for error messages. A parameter `Where where = {}` defaults to the line of
// the caller.

#include <cstring>

namespace quire::kernels::cuda::emulator {

struct Where {
  const char* file;
  int line;

  // Uses built-ins, because clang 14 does not have std::source_location.
  constexpr Where(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

inline bool SameLine(Where a, Where b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace quire::kernels::cuda::emulator
