#include "server/service/proto_time.h"

#include <cstdint>

namespace quire::server {
namespace {

constexpr int64_t kNanos = 1'000'000'000;
// The range of google.protobuf.Duration, which fits into absl::Duration.
constexpr int64_t kMaxDurationSeconds = 315'576'000'000;

}  // namespace

absl::Duration ToAbsl(const google::protobuf::Duration& in) {
  const bool same_sign = in.seconds() < 0 ? in.nanos() <= 0 : in.seconds() == 0 || in.nanos() >= 0;
  const bool is_valid = same_sign && in.nanos() > -kNanos && in.nanos() < kNanos;
  if (!is_valid || in.seconds() < -kMaxDurationSeconds) return -absl::InfiniteDuration();
  if (in.seconds() > kMaxDurationSeconds) return absl::InfiniteDuration();
  return absl::Seconds(in.seconds()) + absl::Nanoseconds(in.nanos());
}

absl::Time ToAbsl(const google::protobuf::Timestamp& in) {
  if (in.nanos() < 0 || in.nanos() >= kNanos || in.seconds() < -kMaxDurationSeconds) {
    return absl::InfinitePast();
  }
  if (in.seconds() > kMaxDurationSeconds) return absl::InfiniteFuture();
  return absl::FromUnixSeconds(in.seconds()) + absl::Nanoseconds(in.nanos());
}

void ToProto(absl::Time in, google::protobuf::Timestamp& out) {
  const int64_t seconds = absl::ToUnixSeconds(in);
  out.set_seconds(seconds);
  out.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(in - absl::FromUnixSeconds(seconds))));
}

void ToProto(absl::Duration in, google::protobuf::Duration& out) {
  absl::Duration rest;
  out.set_seconds(absl::IDivDuration(in, absl::Seconds(1), &rest));
  out.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

}  // namespace quire::server
