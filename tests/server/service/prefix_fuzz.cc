// Runs any bytes as the requests of PrefixService through their conversion. The result must be an
// error that names its field, or values within their ranges.

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "google/protobuf/stubs/logging.h"

#include "base/check.h"
#include "server/service/page_tokens.h"
#include "server/service/prefix_conversion.h"
#include "server/service/proto_conversion.h"
#include "server/service/rpc_status.h"

namespace quire {
namespace {

const server::PrefixTtlLimits kLimits = {.max_ttl = absl::Hours(24),
                                         .now = absl::FromUnixSeconds(1'700'000'000)};

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(status.code() == absl::StatusCode::kInvalidArgument) << status;
  QUIRE_CHECK(server::ToRpcStatus(status).details_size() == 1) << status;
}

void CheckExpiration(const engine::PrefixExpiration& expiration) {
  const auto* ttl = std::get_if<absl::Duration>(&expiration);
  const absl::Duration left =
      ttl != nullptr ? *ttl : std::get<absl::Time>(expiration) - kLimits.now;
  QUIRE_CHECK(left >= server::kMinPrefixTtl && left <= kLimits.max_ttl) << left;
}

template <typename Request>
Request Parse(const std::string& bytes) {
  Request request;
  if (!request.ParseFromString(bytes)) request.Clear();
  return request;
}

void RunCreate(const std::string& bytes) {
  const auto params = server::FromProto(Parse<v1::CreatePrefixRequest>(bytes), kLimits);
  if (!params.ok()) return CheckRefusal(params.status());
  CheckExpiration(params->expiration);
  QUIRE_CHECK(params->display_name.size() <= 128 && params->allowed_tenants.size() <= 256 &&
              params->request_id.size() <= 36);
}

void RunUpdate(const std::string& bytes) {
  const auto update = server::FromProto(Parse<v1::UpdatePrefixRequest>(bytes), kLimits);
  if (!update.ok()) return CheckRefusal(update.status());
  QUIRE_CHECK(server::CheckPrefixName("name", update->name).ok());
  if (update->expiration.has_value()) CheckExpiration(*update->expiration);
  QUIRE_CHECK(update->display_name.value_or("").size() <= 128);
}

void RunList(const std::string& bytes) {
  static const server::PageTokens tokens;
  const auto request = Parse<v1::ListPrefixesRequest>(bytes);
  const auto size = server::PageSizeOf(request);
  if (!size.ok()) return CheckRefusal(size.status());
  QUIRE_CHECK(*size >= 1 && *size <= server::kMaxPageSize);
  CheckRefusal(tokens.Read("q", request.page_token(), kLimits.now).status());
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer silencer;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  quire::RunCreate(bytes);
  quire::RunUpdate(bytes);
  quire::RunList(bytes);
  return 0;
}
