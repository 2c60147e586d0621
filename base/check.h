#pragma once

//   QUIRE_CHECK(condition) << "context";
//
// Aborts with file, line and context when `condition`, an invariant of our own code, is false. The
// check is also on in release builds, because a server that continued with a broken block table
// could send one client's text to another client.

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
