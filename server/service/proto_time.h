#pragma once

// Converts between the times of Protobuf and of Abseil.

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace quire::server {

// Returns a duration of the same length. A Duration that is not valid becomes
// -absl::InfiniteDuration(), which no field allows; a longer one than Protobuf allows becomes
// absl::InfiniteDuration().
absl::Duration ToAbsl(const google::protobuf::Duration& in);
// Returns the same time. A Timestamp that is not valid becomes absl::InfinitePast() or
// absl::InfiniteFuture().
absl::Time ToAbsl(const google::protobuf::Timestamp& in);

void ToProto(absl::Time in, google::protobuf::Timestamp& out);
void ToProto(absl::Duration in, google::protobuf::Duration& out);

}  // namespace quire::server
