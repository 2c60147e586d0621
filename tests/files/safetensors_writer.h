#pragma once

// Writes a safetensors file from a JSON header and data. The header and the data need not be valid.

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/files/gguf_writer.h"

namespace quire::testing {

inline std::string Safetensors(std::string_view header, std::string_view data) {
  return Raw<uint64_t>(header.size()) + std::string(header) + std::string(data);
}

}  // namespace quire::testing
