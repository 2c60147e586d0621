#pragma once

// Parses messages within a bound of memory. A few bytes on the wire may stand for a large object:
// two bytes for an empty message of hundreds.

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace google::protobuf {
class Descriptor;
class Message;
namespace io {
class ZeroCopyInputStream;
}  // namespace io
}  // namespace google::protobuf

namespace quire::server {

// Returns the bytes of memory that parsing `wire` as a message of `type` takes at most, by the tags
// and lengths on the wire. Arrays count three times: while an array grows, the old one, which may
// be half as long, is in memory too. Stops at the first byte that is not protobuf, where a parser
// would stop too. Allocates nothing in proportion to the message.
size_t ParsedSize(const google::protobuf::Descriptor& type,
                  google::protobuf::io::ZeroCopyInputStream& wire);

// Parses `bytes` into `message`. Returns InvalidArgument when the bytes are not a message of that
// type, when a string in it is not UTF-8, or when the message would take more than
// `max_parsed_bytes` of memory. The caller must be known before.
absl::Status ParseMessage(std::string_view bytes, size_t max_parsed_bytes,
                          google::protobuf::Message& message);

}  // namespace quire::server
