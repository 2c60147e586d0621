#pragma once

// Reads the head of a gRPC request, and refuses heads that two readers may understand differently.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::server::door {

struct HeaderField {
  std::string name;
  std::string value;

  bool operator==(const HeaderField&) const = default;
};

// The header fields of a request, in the order in which they were sent.
using HeaderList = std::vector<HeaderField>;

// The headers by which the door judges a request, before it lets the body in. Points into the list
// that was read.
struct RequestHead {
  std::string_view path;           // "/quire.v1.InferenceService/Generate"
  std::string_view authorization;  // empty: none was sent
  std::string_view encoding;       // grpc-encoding; empty: none was sent
};

// Returns the head that `fields` make. The door, gRPC and the handlers read the same head from a
// list that passes, because in such a list
//   the pseudo headers come first: `:method`, `:scheme` and `:path` once, `:authority` at most
//   once; each header that any of them reads as one value is there at most once; `host` is the
//   authority if there is an `:authority` too; names have the characters that gRPC allows,
//   [0-9a-z_.-]; values are printable ASCII, and those of names that end with "-bin" are base64, or
//   raw bytes behind a zero byte, which is gRPC's own form.
// Returns InvalidArgument otherwise.
absl::StatusOr<RequestHead> ReadHead(const HeaderList& fields);

}  // namespace quire::server::door
