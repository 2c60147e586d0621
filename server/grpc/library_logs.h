#pragma once

namespace quire::server {

// Sends the log messages of gRPC and protobuf through our log from now on. Otherwise these
// libraries write to stderr themselves, and wait until stderr is read.
void TakeLibraryLogs();

}  // namespace quire::server
