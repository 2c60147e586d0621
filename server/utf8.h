#pragma once

// The wire's strings are UTF-8, whatever a vocabulary or a file name holds.

#include <string>

namespace quire::server {

// `text` with each maximal invalid part as U+FFFD.
std::string ToUtf8(std::string text);

}  // namespace quire::server
