#include "server/identity/identities.h"

#include <algorithm>
#include <utility>

#include <openssl/crypto.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/small_file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "server/identity/certificate_name.h"

namespace quire::server {
namespace {

constexpr std::string_view kScheme = "bearer ";

absl::Status Invalid(std::string_view text) {
  return absl::InvalidArgumentError(base::ToAbsl(text));
}

// Returns true if two lines with the same name have the same tenant and roles. They must, because
// tenant and roles belong to the name and not to a line.
bool SamePrincipal(const IdentityLine& a, const IdentityLine& b) {
  return a.tenant == b.tenant && a.is_operator == b.is_operator && a.any_tenant == b.any_tenant;
}

}  // namespace

std::shared_ptr<const Identities> Identities::WithoutFile(const IdentityContext& context) {
  std::shared_ptr<Identities> identities(new Identities);
  if (context.certificates) {
    identities->any_certificate_ = true;
    return identities;
  }
  identities->everybody_ = std::make_shared<Principal>(
      Principal{.is_operator = true, .any_tenant = true, .max_priority = kTopPriority});
  identities->has_operator_ = true;
  return identities;
}

absl::StatusOr<std::shared_ptr<const Identities>> Identities::Load(const std::string& path,
                                                                   const IdentityContext& context) {
  const auto wrong = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat("--auth_token_file: ", status.message()));
  };
  const absl::StatusOr<std::string> text = base::ReadSmallFile(path);
  if (!text.ok()) return wrong(text.status());
  std::vector<IdentityLine> lines;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(*text, '\n')) {
    ++number;
    const std::string_view line = base::ToStd(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line.front() == '#') continue;
    absl::StatusOr<IdentityLine> parsed = ParseIdentityLine(line);
    if (parsed.ok() && !parsed->certificate.empty() && !context.certificates) {
      parsed = Invalid("cert: want --tls_client_ca, or no client shows a certificate");
    }
    if (!parsed.ok()) {
      return wrong(Invalid(absl::StrFormat("%s:%d: %s", path, number, parsed.status().message())));
    }
    lines.push_back(*std::move(parsed));
  }
  if (lines.empty()) return wrong(Invalid(absl::StrFormat("%s: holds no token", path)));
  std::shared_ptr<Identities> identities(new Identities);
  if (const absl::Status added = identities->Add(lines); !added.ok()) {
    return wrong(Invalid(absl::StrFormat("%s: %s", path, added.message())));
  }
  return identities;
}

absl::Status Identities::Add(const std::vector<IdentityLine>& lines) {
  std::map<std::string, TenantFields> tenants;
  std::map<std::string, const IdentityLine*> by_name;
  for (const IdentityLine& line : lines) {
    if (!tenants[line.tenant].TryMerge(line.limits)) {
      return Invalid(absl::StrFormat("tenant %s: want its limits once, or alike on all its lines",
                                     line.tenant));
    }
    const auto [it, is_new] = by_name.emplace(line.name, &line);
    if (!is_new && !SamePrincipal(*it->second, line)) {
      return Invalid(
          absl::StrFormat("name %s: want the same tenant and roles on all its lines", line.name));
    }
  }
  const bool has_others =
      tenants.size() > 1 || std::ranges::any_of(lines, &IdentityLine::any_tenant);
  for (const IdentityLine& line : lines) {
    Principal principal =
        MakePrincipal(line.name, line.tenant, tenants.at(line.tenant), has_others);
    principal.is_operator = line.is_operator;
    principal.any_tenant = line.any_tenant;
    has_operator_ = has_operator_ || line.is_operator;
    auto shared = std::make_shared<const Principal>(std::move(principal));
    const bool known =
        line.token ? std::ranges::any_of(
                         by_token_, [&](const Token& token) { return token.digest == *line.token; })
                   : by_certificate_.contains(line.certificate);
    if (known) return Invalid(absl::StrFormat("name %s: a line of it stands twice", line.name));
    if (line.token) {
      by_token_.push_back({.digest = *line.token, .principal = std::move(shared)});
    } else {
      by_certificate_.emplace(line.certificate, std::move(shared));
    }
  }
  return absl::OkStatus();
}

// Makes a principal. If there are other tenants (`has_others`), the principal's tenant must leave
// them places of running sequences, room in the queue and a part of what else is shared. If
// limits.max_running is set, it replaces the first rule. If limits.max_waiting is set, it replaces
// the second.
Principal Identities::MakePrincipal(std::string name, std::string tenant,
                                    const TenantFields& limits, bool has_others) {
  return {.name = std::move(name),
          .tenant = std::move(tenant),
          .max_priority = limits.max_priority.value_or(0),
          .limits = {.max_waiting = limits.max_waiting.value_or(0),
                     .max_running = limits.max_running.value_or(0),
                     .max_blocks = limits.max_blocks.value_or(0),
                     .share = limits.share.value_or(1),
                     .requests_per_minute = limits.requests_per_minute.value_or(0),
                     .tokens_per_minute = limits.tokens_per_minute.value_or(0),
                     .leaves_room = has_others && !limits.max_waiting.has_value(),
                     .has_others = has_others,
                     .leaves_places = has_others && !limits.max_running.has_value()}};
}

Identities::PrincipalPtr Identities::FindToken(std::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(base::ToAbsl(authorization), base::ToAbsl(kScheme))) {
    return nullptr;
  }
  const TokenDigest digest = DigestOf(authorization.substr(kScheme.size()));
  PrincipalPtr match;
  // Compares all tokens. If the loop stopped at a match, its time would reveal the matching token's
  // position.
  for (const Token& token : by_token_) {
    if (CRYPTO_memcmp(digest.data(), token.digest.data(), digest.size()) == 0) {
      match = token.principal;
    }
  }
  return match;
}

Identities::PrincipalPtr Identities::FindCertificate(std::string_view typed_name) const {
  auto it = by_certificate_.find(typed_name);
  if (it == by_certificate_.end()) {
    if (const auto plain = PlainName(typed_name)) it = by_certificate_.find(*plain);
  }
  return it == by_certificate_.end() ? nullptr : it->second;
}

absl::StatusOr<std::shared_ptr<const Principal>> Identities::Authenticate(
    std::optional<std::string_view> authorization, std::string_view certificate_name) const {
  if (everybody_ != nullptr) return everybody_;
  if (any_certificate_) {
    if (certificate_name.empty()) {
      return absl::UnauthenticatedError(
          "want a client certificate with a name: a subject alternative name or a common name");
    }
    const std::string name(PlainName(certificate_name).value_or(certificate_name));
    return std::make_shared<const Principal>(MakePrincipal(name, name, {}, /*has_others=*/true));
  }
  if (authorization.has_value()) {
    if (PrincipalPtr match = FindToken(*authorization)) return match;
  } else if (PrincipalPtr match = FindCertificate(certificate_name)) {
    return match;
  }
  return absl::UnauthenticatedError(
      by_certificate_.empty()
          ? "want metadata \"authorization: Bearer TOKEN\" with a token that this server knows"
          : "want a client certificate or metadata \"authorization: Bearer TOKEN\" that this "
            "server knows");
}

}  // namespace quire::server
