#include "engine/sharing/field_checks.h"

#include "absl/strings/str_format.h"

namespace quire::engine {

absl::Status CheckLength(const char* field, std::string_view text, size_t most) {
  if (text.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want at most %d bytes, got %d", field, most, text.size()));
}

}  // namespace quire::engine
