#include "engine/sharing/context_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire::engine {

std::string Context::etag() const { return absl::StrCat(absl::Hex(pin_id), "-", version); }

absl::Status CheckLength(const char* field, std::string_view text, size_t most) {
  if (text.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want at most %d bytes, got %d", field, most, text.size()));
}

absl::Status CheckEtag(const Context& context, std::string_view etag) {
  if (etag.empty() || etag == context.etag()) return absl::OkStatus();
  return absl::AbortedError(absl::StrFormat(
      "etag: want \"%s\", got \"%s\": it was changed meanwhile", context.etag(), etag));
}

absl::Status CheckMayList(const ContextCaller& caller, std::string_view tenant) {
  if (tenant == caller.tenant || caller.is_operator) return absl::OkStatus();
  return absl::PermissionDeniedError("tenant: want your own, unless you are an operator");
}

absl::Status OtherRequest() {
  return absl::InvalidArgumentError(
      "request_id: it came with other fields within the last hour: want the same ones, or a new "
      "id");
}

}  // namespace quire::engine
