#pragma once

// Makes certificates while a test runs, so that the repository holds no keys and no certificate
// expires.

#include <string>

namespace quire::testing {

struct Identity {
  std::string cert;  // PEM
  std::string key;
};

// Makes a self-signed certificate that may sign other certificates.
Identity MakeAuthority(const std::string& name);
// Makes a certificate signed by `authority`, with `name` as common name and DNS name.
Identity MakeIdentity(const std::string& name, const Identity& authority);
// Makes a certificate signed by `authority` with these alternative names, as OpenSSL writes them:
// "DNS:alice,URI:spiffe://a/b". If they are empty, the common name `name` is all that it has.
Identity MakeIdentity(const std::string& name, const std::string& alternative_names,
                      const Identity& authority);

}  // namespace quire::testing
