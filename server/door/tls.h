#pragma once

// TLS for the door, with OpenSSL.

#include <memory>
#include <string>

#include <openssl/types.h>

#include "absl/status/statusor.h"

#include "server/config/tls_files.h"

namespace quire::server::door {

// Returns a context for TLS 1.2 and newer, with ALPN h2 or http/1.1. If `files` has a client CA,
// every client must present a certificate. Returns InvalidArgument when OpenSSL does not accept the
// files. `files` must be enabled().
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsFiles& files);

// Returns the name in the client's verified certificate: its first alternative name that is a DNS
// name, URI, e-mail or IP address, or else its common name. The name is written with its kind, as
// TypedName has it. Returns "" without a certificate or a name.
std::string CertificateName(const SSL* ssl);

// Returns true unless `context` asks clients for certificates and does not accept the one that the
// client of `ssl` has shown to another context.
bool AcceptsClient(SSL_CTX* context, const SSL* ssl);

}  // namespace quire::server::door
