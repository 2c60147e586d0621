#include "base/check.h"

#include <cstdlib>

#include "base/logging.h"

namespace quire::base {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ':' << line << ": check failed: " << condition << ' ';
}

CheckFailure::~CheckFailure() {
  LogLastWords(stream_.str());
  std::abort();
}

}  // namespace quire::base
