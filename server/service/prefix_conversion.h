#pragma once

// Converts between the messages of PrefixService and the engine's types, and checks every field of
// a request. The message of an InvalidArgument begins with the field's name.

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/request/named_prefixes.h"
#include "quire/v1/prefix_service.pb.h"

namespace quire::server {

// The range of a prefix's time to live.
inline constexpr absl::Duration kMinPrefixTtl = absl::Seconds(60);
struct PrefixTtlLimits {
  absl::Duration max_ttl;  // at least kMinPrefixTtl
  absl::Time now;          // by the wall clock
};

// Converts all fields except the caller, which the RPC handler sets, and `wait`.
absl::StatusOr<engine::PrefixParams> FromProto(v1::CreatePrefixRequest request,
                                               const PrefixTtlLimits& limits);
absl::StatusOr<engine::PrefixUpdate> FromProto(const v1::UpdatePrefixRequest& request,
                                               const PrefixTtlLimits& limits);

v1::Prefix ToProto(const engine::PrefixInfo& info);

}  // namespace quire::server
