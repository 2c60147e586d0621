#pragma once

namespace quire::server {

// Sends the log messages of gRPC and protobuf to our log from now on. Without this, the libraries
// write to stderr themselves, and block while nobody reads stderr.
void TakeLibraryLogs();

}  // namespace quire::server
