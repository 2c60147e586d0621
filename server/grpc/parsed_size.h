#pragma once

// Tells what a message would cost before it is parsed. A few bytes on the wire may stand for a
// large object: two bytes for an empty message of hundreds.

#include <cstddef>

namespace google::protobuf {
class Descriptor;
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

}  // namespace quire::server
