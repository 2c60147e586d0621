#pragma once

// QUIRE_CHECK(condition) << "context"; aborts with file, line and context when one of our own
// invariants is broken. It is also on in release builds: a server that went on with a broken block
// table would answer one client with another's text.

#include <sstream>

namespace quire::base {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace quire::base

#define QUIRE_CHECK(condition)        \
  switch (0)                          \
  case 0:                             \
  default:                            \
    if (static_cast<bool>(condition)) \
      [[likely]];                     \
    else                              \
      ::quire::base::CheckFailure(__FILE__, __LINE__, #condition).stream()
