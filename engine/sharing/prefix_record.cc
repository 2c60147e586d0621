#include "engine/sharing/prefix_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/sha256.h"

namespace quire::engine {
namespace {

constexpr size_t kMostAllowed = 256;

std::string BytesOf(const base::Sha256Digest& digest) { return {digest.begin(), digest.end()}; }

}  // namespace

bool PrefixRecord::MayBeUsedBy(const PrefixCaller& caller) const {
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

std::string PrefixRecord::etag() const { return absl::StrCat(absl::Hex(pin), "-", version); }

absl::Status CheckAllowedTenants(const std::vector<std::string>& tenants) {
  if (tenants.size() <= kMostAllowed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("allowed_tenants: want at most %d, got %d", kMostAllowed, tenants.size()));
}

int64_t NumBytesToEncode(const PromptContent& given) {
  // Messages are rendered with two next messages, and alone.
  return NumBytes(given) * (std::holds_alternative<ChatMessages>(given) ? 3 : 1);
}

std::string DigestOf(const PromptContent& given) {
  base::Sha256 sum;
  sum.AddInt(static_cast<int64_t>(given.index()));
  if (const auto* text = std::get_if<std::string>(&given)) {
    sum.AddSized(*text);
  } else if (const auto* ids = std::get_if<TokenIds>(&given)) {
    sum.Add(std::as_bytes(std::span(*ids)));
  } else {
    for (const text::ChatMessage& message : std::get<ChatMessages>(given)) {
      sum.AddSized(message.role);
      sum.AddSized(message.content);
    }
  }
  return BytesOf(sum.Finish());
}

std::string ContentDigest(std::string_view model_digest, const TokenIds& ids) {
  base::Sha256 sum;
  sum.Add(std::as_bytes(std::span(model_digest)));
  sum.Add(std::as_bytes(std::span(ids)));
  return BytesOf(sum.Finish());
}

}  // namespace quire::engine
