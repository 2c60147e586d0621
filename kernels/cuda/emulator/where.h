#pragma once

// The place in a kernel where something happened. As the default of a last parameter it is the
// caller's own line.

namespace quire::kernels::cuda::emulator {

struct Where {
  const char* file;
  int line;

  // Built-ins instead of std::source_location, which clang 14 does not have.
  constexpr Where(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

}  // namespace quire::kernels::cuda::emulator
