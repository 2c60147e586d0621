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

// What Identities must know of the server: the seats for its tenants, and whether callers can prove
// who they are by a certificate.
struct IdentityContext {
  int32_t max_num_seqs = 0;
  bool certificates = false;  // clients present certificates, which were verified
};

// Immutable; thread-safe. Keeps digests, not the tokens.
class Identities {
 public:
  // Without a file, all callers are one principal with every role and without limits. Where clients
  // present certificates, each name in one is a principal and a tenant of its own instead.
  static std::shared_ptr<const Identities> WithoutFile(const IdentityContext& context);
  // Reads the lines of `path` (ParseIdentityLine). Empty lines, and those that begin with '#', are
  // skipped. InvalidArgument names the line, never the token.
  static absl::StatusOr<std::shared_ptr<const Identities>> Load(const std::string& path,
                                                                const IdentityContext& context);

  // Returns the caller who sent this `authorization` header (nullopt: none) over a connection whose
  // verified client certificate has this name ("": none). A token takes precedence over the
  // certificate. UNAUTHENTICATED for a stranger. The time that this takes does not reveal how near
  // a wrong token was.
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

  explicit Identities(const IdentityContext& context) : context_(context) {}
  absl::Status Add(const std::vector<IdentityLine>& lines);
  PrincipalPtr FindToken(std::string_view authorization) const;
  Principal MakePrincipal(std::string name, std::string tenant, const TenantFields& limits,
                          bool has_others) const;

  const IdentityContext context_;
  PrincipalPtr everybody_;  // null: callers are told apart
  bool any_certificate_ = false;
  bool has_operator_ = false;
  std::vector<Token> by_token_;
  std::map<std::string, PrincipalPtr, std::less<>> by_certificate_;
};

}  // namespace quire::server
