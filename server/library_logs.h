#pragma once

namespace quire::server {

// gRPC and protobuf write to stderr themselves, and wait for its reader; from now on what they have
// to say goes through our log.
void TakeLibraryLogs();

}  // namespace quire::server
