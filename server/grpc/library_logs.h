#pragma once

namespace quire::server {

// Sends the log messages of gRPC and protobuf through our log from now on. Otherwise they write to
// stderr themselves and wait for its reader.
void TakeLibraryLogs();

}  // namespace quire::server
