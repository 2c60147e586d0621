#pragma once

// The PEM files of --tls_cert, --tls_key and --tls_client_ca, checked before anything listens: gRPC
// itself would only refuse each handshake.

#include <string>

#include "absl/status/statusor.h"

#include "server/server_config.h"

namespace quire::server {

struct TlsFiles {
  std::string cert_chain;  // empty: no TLS
  std::string private_key;
  std::string client_ca;  // empty: clients need no certificate

  bool enabled() const { return !cert_chain.empty(); }
};

// InvalidArgument naming the flag and the file: unreadable, not PEM, or a key of another
// certificate.
absl::StatusOr<TlsFiles> LoadTlsFiles(const ServerConfig& config);

}  // namespace quire::server
