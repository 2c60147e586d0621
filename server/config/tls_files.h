#pragma once

// Reads and checks the PEM files of --tls_cert, --tls_key and --tls_client_ca, before the server
// listens and when they change.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config/server_config.h"

namespace quire::server {

struct TlsFiles {
  std::string cert_chain;  // empty: no TLS
  std::string private_key;
  std::string client_ca;                          // empty: clients need no certificate
  absl::Time not_after = absl::InfiniteFuture();  // when the first certificate of the chain expires

  bool enabled() const { return !cert_chain.empty(); }
};

// Reads the files. Returns InvalidArgument, with the flag and the file, when a file cannot be read,
// is not PEM, or has the key of another certificate. Warns of a certificate that has expired or
// will expire within 14 days.
absl::StatusOr<TlsFiles> LoadTlsFiles(const ServerConfig& config);

}  // namespace quire::server
