#pragma once

namespace quire::server {

// Sends the log messages of gRPC and protobuf to our log from now on: each as the field `text`, of
// which 500 bytes are kept, within one LogLimit for each library. Without this, the libraries write
// to stderr themselves, and block while nobody reads stderr.
void TakeLibraryLogs();

}  // namespace quire::server
