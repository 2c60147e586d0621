// The functions of SessionRegistry for the content of sessions: what makes them again elsewhere.

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/sharing/prefix_record.h"
#include "engine/sharing/session_registry.h"

namespace quire::engine {

absl::StatusOr<SessionContent> SessionRegistry::FirstContent(
    const SessionParams& params, std::shared_ptr<const PrefixContent> prefix) const {
  SessionContent content;
  if (prefix != nullptr) {
    const bool owns_prefix = prefix->tenant == params.caller.tenant;
    content = SessionContent(std::move(prefix), owns_prefix);
  }
  if (!params.content.has_value()) return content;
  ASSIGN_OR_RETURN(content, seam_.Restore(std::move(content), *params.content));
  const std::string here = ContentDigest(config_.model_digest, content.ToIds());
  const std::string& given = params.content->content_sha256;
  if (given == here) return content;
  return absl::FailedPreconditionError(absl::StrFormat(
      "content.content_sha256: with the model and the prefix of this server, want %s, got %s: the "
      "content is another one",
      absl::BytesToHexString(here),
      given.size() == here.size() ? absl::BytesToHexString(given)
                                  : absl::StrFormat("%d bytes", given.size())));
}

absl::StatusOr<SessionInfo> SessionRegistry::GetWithContent(const ContextCaller& caller,
                                                            std::string_view name) {
  SessionInfo info;
  std::shared_ptr<const SessionContent> content;
  {
    Removed removed(*this);
    base::MutexLock lock(mu_);
    RemoveExpired(removed);
    const RecordPtr record = Find(caller, name, /*for_operators=*/true);
    if (record == nullptr) return NoSuchSession();
    info = InfoOf(*record);
    content = record->content;
  }
  if (info.tenant != caller.tenant) {
    return absl::PermissionDeniedError(
        "content: want false for a session of another tenant, who alone may read it");
  }
  const auto& prefix = content->prefix();
  if (prefix != nullptr && !content->owns_prefix() &&
      std::holds_alternative<ChatMessages>(prefix->given)) {
    return absl::PermissionDeniedError(
        "content: want false on a prefix of messages of another tenant, which the chat template "
        "may write again behind it");
  }
  if (!content->begins_with_prefix()) {
    return absl::FailedPreconditionError(
        "content: want false, since the session does not begin with all tokens of its prefix any "
        "more");
  }
  info.content = content->Copy();
  info.content->content_sha256 = ContentDigest(config_.model_digest, content->ToIds());
  return info;
}

}  // namespace quire::engine
