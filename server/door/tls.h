#pragma once

// TLS for the door, by OpenSSL.

#include <memory>
#include <string>

#include <openssl/types.h>

#include "absl/status/statusor.h"

#include "server/tls_files.h"

namespace quire::server::door {

// TLS 1.2 and newer, ALPN h2 or http/1.1; with a client CA every client must show a certificate.
// InvalidArgument when OpenSSL does not take the files. `files` must be enabled().
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsFiles& files);

// The name in the verified certificate of the client: its first alternative name (DNS, URI, e-mail
// or IP address), else its common name; "" without a certificate or a name.
std::string CertificateName(const SSL* ssl);

}  // namespace quire::server::door
