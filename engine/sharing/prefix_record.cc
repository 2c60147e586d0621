#include "engine/sharing/prefix_record.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "base/sha256.h"

namespace quire::engine {
namespace {

// Digests without a version, of 32 bytes, are of the first one.
constexpr char kDigestVersion[] = "2";

std::string BytesOf(const base::Sha256Digest& digest) { return {digest.begin(), digest.end()}; }

bool AnyLiteral(const ChatMessages& messages) {
  return std::ranges::any_of(messages, &text::ChatMessage::literal);
}

// The digest of the first version. Conversations with literal contents came later, and have a kind
// of their own.
std::string ContentOnly(const PromptContent& given) {
  base::Sha256 sum;
  const auto* const messages = std::get_if<ChatMessages>(&given);
  const bool literal = messages != nullptr && AnyLiteral(*messages);
  sum.AddInt(static_cast<int64_t>(literal ? std::variant_size_v<PromptContent> : given.index()));
  if (const auto* text = std::get_if<std::string>(&given)) {
    sum.AddSized(*text);
  } else if (const auto* ids = std::get_if<TokenIds>(&given)) {
    sum.Add(std::as_bytes(std::span(*ids)));
  } else {
    for (const text::ChatMessage& message : *messages) {
      sum.AddSized(message.role);
      sum.AddSized(message.content);
      if (literal) sum.AddInt(message.literal ? 1 : 0);
    }
  }
  return BytesOf(sum.Finish());
}

}  // namespace

bool PrefixRecord::MayBeUsedBy(const ContextCaller& caller) const {
  if (IsOwnedBy(caller)) return true;
  return std::ranges::any_of(allowed_tenants, [&](const std::string& allowed) {
    return allowed == "*" || allowed == caller.tenant;
  });
}

absl::Time PrefixRecord::End() const {
  if (!refresh_on_hit || content == nullptr || state != PrefixState::kReady) return expires;
  const int64_t hit = content->use.last_hit_ns.load(std::memory_order_relaxed);
  return hit == PrefixContent::kNoHit ? expires : std::max(expires, absl::FromUnixNanos(hit) + ttl);
}

absl::Status CheckAllowedTenants(const std::vector<std::string>& tenants) {
  if (tenants.size() <= kMostAllowedTenants) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("allowed_tenants: want at most %d, got %d",
                                                    kMostAllowedTenants, tenants.size()));
}

int64_t NumBytesToEncode(const PromptContent& given) {
  // Messages are rendered with two next messages, and alone.
  return NumBytes(given) * (std::holds_alternative<ChatMessages>(given) ? 3 : 1);
}

std::string RequestDigest(const PrefixParams& params) {
  // A new member must be named here. The caller's tenant and the request_id find the digest, and
  // the model is the served one.
  const auto& [caller, model, content, display_name, expiration, refresh_on_hit, allowed_tenants,
               salt, request_id] = params;
  base::Sha256 sum;
  sum.AddSized(ContentOnly(content));
  sum.AddSized(display_name);
  sum.AddInt(static_cast<int64_t>(expiration.index()));
  const auto* ttl = std::get_if<absl::Duration>(&expiration);
  sum.AddInt(ttl != nullptr ? absl::ToInt64Nanoseconds(*ttl)
                            : absl::ToUnixNanos(std::get<absl::Time>(expiration)));
  sum.AddInt(refresh_on_hit ? 1 : 0);
  sum.AddInt(std::ssize(allowed_tenants));
  for (const std::string& tenant : allowed_tenants) sum.AddSized(tenant);
  sum.AddSized(salt);
  return kDigestVersion + BytesOf(sum.Finish());
}

bool IsDigestOf(std::string_view digest, const PrefixParams& params) {
  return digest == RequestDigest(params) || digest == ContentOnly(params.content);
}

std::string ContentDigest(std::string_view model_digest, const TokenIds& ids) {
  base::Sha256 sum;
  sum.Add(std::as_bytes(std::span(model_digest)));
  sum.Add(std::as_bytes(std::span(ids)));
  return BytesOf(sum.Finish());
}

}  // namespace quire::engine
