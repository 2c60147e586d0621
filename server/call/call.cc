#include "server/call/call.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/request/request.h"

namespace quire::server {
namespace {

constexpr std::string_view kRequestIdKey = "x-request-id";
constexpr std::string_view kAuthorizationKey = "authorization";
constexpr size_t kMaxRequestIdLength = 128;

std::string NewRequestId() {
  thread_local std::mt19937_64 random(std::random_device{}());  // ids must be unique, not secret
  return absl::StrCat("req-", absl::Hex(random(), absl::kZeroPad16));
}

}  // namespace

absl::Status CheckRequestId(std::string_view id) {
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  if (!id.empty() && id.size() <= kMaxRequestIdLength && std::ranges::all_of(id, printable)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("request_id: want at most %d characters of printable ASCII without spaces, "
                      "got %d bytes",
                      kMaxRequestIdLength, id.size()));
}

absl::StatusOr<RequestId> RequestIdOrNew(std::string_view field) {
  if (field.empty()) return RequestId{.id = NewRequestId(), .is_name = true};
  RETURN_IF_ERROR(CheckRequestId(field));
  return RequestId{.id = std::string(field)};
}

void Call::OnNoMessage(bool /*is_cancelled*/) {
  transport_.End(absl::CancelledError("the call ended before its message came"), nullptr);
}

void Call::OnDone() {
  if (linger_ != nullptr) linger_->Done();
  Destroy();
}

absl::Status Call::Authenticate() {
  const std::shared_ptr<const door::Peer> peer = parts_.peers.Find(transport_.PeerName());
  if (peer == nullptr) return absl::UnavailableError("the client has gone");
  ASSIGN_OR_RETURN(caller_, parts_.identities.Get()->Authenticate(
                                transport_.Metadata(kAuthorizationKey), peer->certificate_name));
  return absl::OkStatus();
}

absl::Status Call::TakeId(std::string_view field) {
  const std::string_view metadata = transport_.Metadata(kRequestIdKey).value_or("");
  if (!field.empty() || metadata.empty()) {
    ASSIGN_OR_RETURN(id_, RequestIdOrNew(field));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckRequestId(metadata));
  id_ = {.id = std::string(metadata), .is_name = true};
  return absl::OkStatus();
}

absl::Status Call::Identify() {
  const absl::Status taken = TakeId("");
  RETURN_IF_ERROR(Authenticate());
  return taken;
}

void Call::SendId() {
  if (id_.id.empty() || std::exchange(has_sent_id_, true)) return;
  transport_.AddMetadata(kRequestIdKey, id_.id);
}

void Call::Note(const absl::Status& status, const engine::RequestSummary* summary) {
  if (!rpc_.has_value()) return;
  parts_.counters.Count(*rpc_, status.code());
  const absl::Time now = base::SteadyNow();
  const std::shared_ptr<const door::Peer> peer = parts_.peers.Find(transport_.PeerName());
  parts_.access_log.Ended(
      {.rpc = *rpc_,
       .caller = caller_.get(),
       .peer = peer == nullptr ? std::string_view() : std::string_view(peer->address),
       .request_id = id_.id,
       .code = status.code(),
       .summary = summary,
       .total = now - start_},
      now);
}

void Call::End(const absl::Status& status, const google::protobuf::MessageLite* answer,
               const engine::RequestSummary* summary) {
  SendId();
  Note(status, summary);
  linger_ =
      std::make_shared<AnswerLinger>(parts_.egress, parts_.linger, [this] { transport_.Cancel(); });
  linger_->Answered();
  transport_.End(status, answer);
}

absl::Status Call::CancelStatus() const {
  return transport_.Deadline() <= absl::Now() ? engine::PastDeadlineStatus()
                                              : engine::CancelledStatus();
}

const CallTable::Begin* CallTable::Find(std::string_view path) const {
  const auto it = calls_.find(base::ToAbsl(path));
  return it == calls_.end() ? nullptr : &it->second;
}

}  // namespace quire::server
