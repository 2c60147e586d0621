#pragma once

// Certificates for a test, made on the spot: no keys in the tree, and none that expires.

#include <string>

namespace quire::testing {

struct Identity {
  std::string cert;  // PEM
  std::string key;
};

// Self-signed; may sign others.
Identity MakeAuthority(const std::string& name);
// Signed by `authority`; `name` is its common name and DNS name.
Identity MakeIdentity(const std::string& name, const Identity& authority);

}  // namespace quire::testing
