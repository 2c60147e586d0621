#include "server/service/prefix_conversion.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "server/service/proto_conversion.h"
#include "server/service/proto_time.h"

namespace quire::server {
namespace {

using google::protobuf::Duration;
using google::protobuf::Timestamp;

constexpr int kMaxAllowedTenants = engine::kMostAllowedTenants;
constexpr size_t kMaxTenantName = 256;

absl::Status CheckLength(std::string_view field, std::string_view value, size_t min, size_t max) {
  if (value.size() >= min && value.size() <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want %d..%d bytes, got %d", field, min, max, value.size()));
}

bool IsFinite(absl::Duration duration) {
  return absl::AbsDuration(duration) != absl::InfiniteDuration();
}

absl::StatusOr<engine::PrefixExpiration> TtlOf(std::string_view field, const Duration& in,
                                               const PrefixTtlLimits& limits) {
  const absl::Duration ttl = ToAbsl(in);
  if (ttl >= kMinPrefixTtl && ttl <= limits.max_ttl) return engine::PrefixExpiration(ttl);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want %s to %s (--max_prefix_ttl), got %s", field,
                      absl::FormatDuration(kMinPrefixTtl), absl::FormatDuration(limits.max_ttl),
                      IsFinite(ttl) ? absl::FormatDuration(ttl) : "no valid duration"));
}

absl::StatusOr<engine::PrefixExpiration> EndOf(std::string_view field, const Timestamp& in,
                                               const PrefixTtlLimits& limits) {
  const absl::Time end = ToAbsl(in);
  const absl::Duration left = end - limits.now;
  if (left >= kMinPrefixTtl && left <= limits.max_ttl) return engine::PrefixExpiration(end);
  const std::string got =
      IsFinite(left)
          ? absl::StrCat("one ", absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))),
                         " from now")
          : "no valid time";
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: want a time %s to %s (--max_prefix_ttl) from now, got %s", field,
      absl::FormatDuration(kMinPrefixTtl), absl::FormatDuration(limits.max_ttl), got));
}

absl::StatusOr<std::vector<std::string>> AllowedOf(
    std::string_view field, const google::protobuf::RepeatedPtrField<std::string>& in) {
  if (in.size() > kMaxAllowedTenants) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want at most %d names, got %d", field, kMaxAllowedTenants, in.size()));
  }
  for (int i = 0; i < in.size(); ++i) {
    RETURN_IF_ERROR(
        CheckLength(base::ToStd(absl::StrFormat("%s[%d]", field, i)), in[i], 1, kMaxTenantName));
  }
  return std::vector<std::string>(in.begin(), in.end());
}

absl::Status RefreshWantsTtl(std::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want a ttl with it: an expire_time is not moved by use", field));
}

// Sets the member of `out` that the path of an update mask names.
absl::Status Take(std::string_view path, const v1::Prefix& in, const PrefixTtlLimits& limits,
                  engine::PrefixUpdate& out) {
  if (path == "display_name") {
    RETURN_IF_ERROR(
        CheckLength("prefix.display_name", in.display_name(), 0, engine::kMostDisplayNameBytes));
    out.display_name = in.display_name();
  } else if (path == "refresh_on_hit") {
    out.refresh_on_hit = in.refresh_on_hit();
  } else if (path == "allowed_tenants") {
    ASSIGN_OR_RETURN(out.allowed_tenants,
                     AllowedOf("prefix.allowed_tenants", in.allowed_tenants()));
  } else if (path == "ttl") {
    ASSIGN_OR_RETURN(out.expiration, TtlOf("prefix.ttl", in.ttl(), limits));
  } else if (path == "expire_time") {
    ASSIGN_OR_RETURN(out.expiration, EndOf("prefix.expire_time", in.expire_time(), limits));
  } else {
    return absl::InvalidArgumentError(absl::StrFormat(
        "update_mask: want paths of display_name, ttl, expire_time, refresh_on_hit, "
        "allowed_tenants, or \"*\" alone, got \"%s\"",
        path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<engine::PrefixParams> FromProto(v1::CreatePrefixRequest request,
                                               const PrefixTtlLimits& limits) {
  engine::PrefixParams params;
  params.model = request.model();
  if (request.has_text() && request.text().empty()) {
    return absl::InvalidArgumentError("text: want at least one byte, got an empty text");
  }
  ASSIGN_OR_RETURN(params.content, TakeContent(request));
  RETURN_IF_ERROR(
      CheckLength("display_name", request.display_name(), 0, engine::kMostDisplayNameBytes));
  params.display_name = request.display_name();
  if (request.has_ttl()) {
    ASSIGN_OR_RETURN(params.expiration, TtlOf("ttl", request.ttl(), limits));
  } else if (request.has_expire_time()) {
    ASSIGN_OR_RETURN(params.expiration, EndOf("expire_time", request.expire_time(), limits));
    if (request.refresh_on_hit()) return RefreshWantsTtl("refresh_on_hit");
  } else {
    params.expiration = std::min(absl::Duration(absl::Hours(1)), limits.max_ttl);
  }
  params.refresh_on_hit = request.refresh_on_hit();
  ASSIGN_OR_RETURN(params.allowed_tenants, AllowedOf("allowed_tenants", request.allowed_tenants()));
  RETURN_IF_ERROR(CheckLength("salt", request.salt(), 0, engine::kMostSaltBytes));
  params.salt = request.salt();
  if (request.has_request_id()) {
    RETURN_IF_ERROR(
        CheckLength("request_id", request.request_id(), 1, engine::kMostRequestIdBytes));
    params.request_id = request.request_id();
  }
  return params;
}

absl::StatusOr<engine::PrefixUpdate> FromProto(const v1::UpdatePrefixRequest& request,
                                               const PrefixTtlLimits& limits) {
  const v1::Prefix& in = request.prefix();
  RETURN_IF_ERROR(CheckPrefixName("prefix.name", in.name()));
  const auto& paths = request.update_mask().paths();
  if (paths.empty()) return absl::InvalidArgumentError("update_mask: want at least one path");
  const auto names = [&](std::string_view path) { return std::ranges::count(paths, path) > 0; };
  engine::PrefixUpdate update{.name = in.name(), .etag = in.etag()};
  if (paths.size() == 1 && names("*")) {
    const char* const expiration = in.has_ttl() ? "ttl" : "expire_time";
    for (const char* const path :
         {"display_name", "refresh_on_hit", "allowed_tenants", expiration}) {
      RETURN_IF_ERROR(Take(path, in, limits, update));
    }
  } else {
    if (names("ttl") && names("expire_time")) {
      return absl::InvalidArgumentError("update_mask: want one of ttl and expire_time, got both");
    }
    for (const std::string& path : paths) RETURN_IF_ERROR(Take(path, in, limits, update));
  }
  if (update.refresh_on_hit.value_or(false) && update.expiration.has_value() &&
      std::holds_alternative<absl::Time>(*update.expiration)) {
    return RefreshWantsTtl("prefix.refresh_on_hit");
  }
  return update;
}

v1::Prefix ToProto(const engine::PrefixInfo& info) {
  v1::Prefix out;
  out.set_name(info.name);
  out.set_display_name(info.display_name);
  switch (info.state) {
    case engine::PrefixState::kComputing:
      out.set_state(v1::Prefix::STATE_COMPUTING);
      break;
    case engine::PrefixState::kReady:
      out.set_state(v1::Prefix::STATE_READY);
      break;
    case engine::PrefixState::kCold:
      out.set_state(v1::Prefix::STATE_COLD);
      break;
    case engine::PrefixState::kFailed:
      out.set_state(v1::Prefix::STATE_FAILED);
      out.set_error(base::LossyUtf8(base::ToStd(info.error.message())));
      break;
  }
  out.set_tenant(base::LossyUtf8(info.tenant));
  out.set_num_tokens(ToWireCount(info.num_tokens));
  out.set_num_blocks(ToWireCount(info.num_blocks));
  out.set_kv_bytes(static_cast<uint64_t>(std::max<int64_t>(info.kv_bytes, 0)));
  out.set_content_sha256(info.content_sha256);
  ToProto(info.create_time, *out.mutable_create_time());
  ToProto(info.update_time, *out.mutable_update_time());
  ToProto(info.expire_time, *out.mutable_expire_time());
  if (info.ttl > absl::ZeroDuration()) ToProto(info.ttl, *out.mutable_ttl());
  out.set_refresh_on_hit(info.refresh_on_hit);
  for (const std::string& tenant : info.allowed_tenants) out.add_allowed_tenants(tenant);
  out.set_etag(info.etag);
  if (info.use.has_value()) {
    out.set_hits(info.use->hits);
    out.set_saved_tokens(info.use->saved_tokens);
    if (info.use->last_hit_time > absl::InfinitePast()) {
      ToProto(info.use->last_hit_time, *out.mutable_last_hit_time());
    }
    out.set_charged_blocks(info.use->charged_blocks);
  }
  return out;
}

}  // namespace quire::server
