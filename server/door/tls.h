#pragma once

// TLS for the door, by OpenSSL.

#include <memory>
#include <string>

#include <openssl/types.h>

#include "absl/status/statusor.h"

#include "server/config/tls_files.h"

namespace quire::server::door {

// The context has TLS 1.2 and newer, and ALPN h2 or http/1.1. With a client CA every client must
// present a certificate. InvalidArgument when OpenSSL does not take the files. `files` must be
// enabled().
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsFiles& files);

// Returns the name in the client's verified certificate: its first alternative name (DNS, URI,
// e-mail or IP address), or else its common name; "" without a certificate or a name.
std::string CertificateName(const SSL* ssl);

}  // namespace quire::server::door
