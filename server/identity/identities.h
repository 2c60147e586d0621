#pragma once

// The callers that the server knows.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "server/identity/identity_line.h"
#include "server/identity/principal.h"

namespace quire::server {

// The facts about the server that Identities needs.
struct IdentityContext {
  bool certificates = false;  // clients present certificates, which the server verifies
};

// Immutable; thread-safe. Keeps digests, not the tokens.
class Identities {
 public:
  // Makes the identities of a server without a file. If clients present certificates, each name in
  // a certificate is a principal and a tenant of its own. Otherwise all callers are one principal
  // with every role and without limits.
  static std::shared_ptr<const Identities> WithoutFile(const IdentityContext& context);
  // Reads the lines of `path` with ParseIdentityLine. Skips empty lines and lines that begin with
  // '#'. The message of an InvalidArgument may name a line, but never a token.
  static absl::StatusOr<std::shared_ptr<const Identities>> Load(const std::string& path,
                                                                const IdentityContext& context);

  // Returns the caller who sent the header `authorization` (nullopt: none). `certificate_name` is
  // the typed name in the connection's verified client certificate ("": none). A token takes
  // precedence over the certificate. Returns UNAUTHENTICATED for an unknown caller. The time of the
  // call does not reveal how much of a wrong token was right.
  absl::StatusOr<std::shared_ptr<const Principal>> Authenticate(
      std::optional<std::string_view> authorization, std::string_view certificate_name) const;

  bool has_operator() const { return has_operator_; }
  size_t size() const { return by_token_.size() + by_certificate_.size(); }

 private:
  using PrincipalPtr = std::shared_ptr<const Principal>;
  struct Token {
    TokenDigest digest;
    PrincipalPtr principal;
  };

  Identities() = default;
  absl::Status Add(const std::vector<IdentityLine>& lines);
  PrincipalPtr FindToken(std::string_view authorization) const;
  PrincipalPtr FindCertificate(std::string_view typed_name) const;
  static Principal MakePrincipal(std::string name, std::string tenant, const TenantFields& limits,
                                 bool has_others);

  PrincipalPtr everybody_;  // the principal of all callers; null if callers are told apart
  bool any_certificate_ = false;
  bool has_operator_ = false;
  std::vector<Token> by_token_;
  std::map<std::string, PrincipalPtr, std::less<>> by_certificate_;  // by typed or plain name
};

}  // namespace quire::server
