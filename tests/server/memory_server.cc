#include "tests/server/memory_server.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "base/check.h"
#include "base/mutex.h"
#include "server/service/rpc_status.h"

namespace quire::testing {
namespace {

constexpr char kPeer[] = "memory:client";
constexpr absl::Duration kPatience = absl::Seconds(60);  // for work of milliseconds

std::unique_ptr<server::IdentityStore> Identities(const server::ServerConfig& config) {
  auto identities = server::IdentityStore::Create(config.auth_token_file, {});
  QUIRE_CHECK(identities.ok()) << identities.status();
  return *std::move(identities);
}

// What is on its way between a call and its client: at most one message to the client.
class Carrier final : public server::Transport {
 public:
  explicit Carrier(const CallOptions& options)
      : options_(options), deadline_(absl::Now() + options.timeout) {}

  std::optional<std::string_view> Metadata(std::string_view key) const override {
    for (const auto& [name, value] : options_.metadata) {
      if (name == key) return value;
    }
    return std::nullopt;
  }
  std::string PeerName() const override { return kPeer; }
  absl::Time Deadline() const override { return deadline_; }
  void AddMetadata(std::string_view key, std::string_view value) override {
    base::MutexLock lock(mu_);
    metadata_.emplace(key, value);
  }
  void Read() override {
    base::MutexLock lock(mu_);
    wants_message_ = true;
    changed_.NotifyAll();
  }
  void Write(const google::protobuf::MessageLite& message) override {
    base::MutexLock lock(mu_);
    QUIRE_CHECK(!outgoing_.has_value()) << "one write at a time";
    outgoing_ = message.SerializeAsString();
    changed_.NotifyAll();
  }
  void End(const absl::Status& status, const google::protobuf::MessageLite* answer) override {
    base::MutexLock lock(mu_);
    QUIRE_CHECK(!ended_.has_value()) << "a call ends once";
    ended_ = status;
    if (answer != nullptr) last_ = answer->SerializeAsString();
    changed_.NotifyAll();
  }
  void Cancel() override {
    base::MutexLock lock(mu_);
    abandoned_ = true;
    changed_.NotifyAll();
  }

  enum class Event { kWantsMessage, kOutgoing, kEnded, kAbandoned, kNone };
  // Waits until `until` for what the client may act on.
  Event Wait(bool sends, absl::Time until) {
    base::MutexLock lock(mu_);
    while (true) {
      if (std::exchange(abandoned_, false)) return Event::kAbandoned;
      if (sends && wants_message_) return Event::kWantsMessage;
      if (!sends && outgoing_.has_value()) return Event::kOutgoing;
      if (ended_.has_value()) return Event::kEnded;
      const absl::Duration left = until - absl::Now();
      if (left <= absl::ZeroDuration()) return Event::kNone;
      changed_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
    }
  }
  bool TakeWish() {
    base::MutexLock lock(mu_);
    return std::exchange(wants_message_, false);
  }
  std::optional<std::string> TakeOutgoing() {
    base::MutexLock lock(mu_);
    return std::exchange(outgoing_, std::nullopt);
  }
  std::optional<std::string> TakeLast() {
    base::MutexLock lock(mu_);
    return std::exchange(last_, std::nullopt);
  }
  std::optional<absl::Status> ended() const {
    base::MutexLock lock(mu_);
    return ended_;
  }
  std::multimap<std::string, std::string> metadata() const {
    base::MutexLock lock(mu_);
    return metadata_;
  }

 private:
  const CallOptions options_;
  const absl::Time deadline_;

  mutable base::Mutex mu_;
  base::CondVar changed_;
  std::multimap<std::string, std::string> metadata_ ABSL_GUARDED_BY(mu_);
  bool wants_message_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::string> outgoing_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> last_ ABSL_GUARDED_BY(mu_);  // the message that came with the end
};

class CallInMemory final : public MemoryCall {
 public:
  CallInMemory(const server::CallTable::Begin& begin, const CallOptions& options)
      : carrier_(options), call_(begin(carrier_)) {
    call_->Start();
  }
  ~CallInMemory() override {
    if (call_ == nullptr) return;
    Cancel();
    Finish();
  }

  void Send(const google::protobuf::Message& message) override {
    if (!WaitForWish()) return;
    call_->OnMessage(message.SerializeAsString());
    has_begun_ = true;
  }
  void SendNoMore() override {
    if (!WaitForWish()) return;
    call_->OnNoMessage(/*is_cancelled=*/false);
  }
  bool Read(google::protobuf::Message& message) override {
    const Carrier::Event event = Wait(/*sends=*/false);
    if (cancelled_.has_value()) return false;
    std::optional<std::string> bytes;
    if (event == Carrier::Event::kOutgoing) {
      bytes = carrier_.TakeOutgoing();
      call_->OnWritten(true);
    } else {
      bytes = carrier_.TakeLast();
    }
    return bytes.has_value() && message.ParseFromString(*bytes);
  }
  void Cancel() override { Cancel(absl::CancelledError("CANCELLED")); }

  Outcome Finish() override {
    while (Wait(/*sends=*/false) == Carrier::Event::kOutgoing) DropOutgoing();
    if (carrier_.TakeWish()) call_->OnNoMessage(has_begun_ && cancelled_.has_value());
    const absl::Status status = cancelled_.value_or(*carrier_.ended());
    std::exchange(call_, nullptr)->OnDone();
    Outcome outcome;
    outcome.details = server::ToRpcStatus(status);
    outcome.status = absl::Status(status.code(), outcome.details.message());
    outcome.initial_metadata = carrier_.metadata();
    return outcome;
  }

 private:
  // Waits for what the client may act on, and cancels the call at its deadline.
  Carrier::Event Wait(bool sends) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (true) {
      const absl::Time until =
          cancelled_.has_value() ? give_up : std::min(carrier_.Deadline(), give_up);
      const Carrier::Event event = carrier_.Wait(sends, until);
      if (event == Carrier::Event::kAbandoned) {
        Cancel();
      } else if (event == Carrier::Event::kNone) {
        QUIRE_CHECK(absl::Now() < give_up) << "the call does nothing";
        Cancel(absl::DeadlineExceededError("Deadline Exceeded"));
      } else {
        return event;
      }
    }
  }
  bool WaitForWish() {
    return Wait(/*sends=*/true) == Carrier::Event::kWantsMessage && carrier_.TakeWish();
  }

  void Cancel(const absl::Status& status) {
    if (cancelled_.has_value() || carrier_.ended().has_value()) return;
    cancelled_ = status;
    if (carrier_.TakeWish()) call_->OnNoMessage(/*is_cancelled=*/has_begun_);
    if (has_begun_) call_->OnCancel();
    DropOutgoing();
  }
  void DropOutgoing() {
    if (carrier_.TakeOutgoing().has_value()) call_->OnWritten(!cancelled_.has_value());
  }

  Carrier carrier_;
  server::Call* call_;                     // destroys itself after OnDone
  bool has_begun_ = false;                 // the first message was handled
  std::optional<absl::Status> cancelled_;  // what the client then sees
};

}  // namespace

MemoryServer::MemoryServer(FakeEngineOptions options, const server::ServerConfig& config)
    : identities_(Identities(config)),
      access_log_(server::ParseAccessLogMode(config.access_log)),
      engine(std::move(options)),
      parts_{.call = {.egress = egress_,
                      .counters = counters,
                      .access_log = access_log_,
                      .peers = peers_,
                      .identities = *identities_,
                      .linger = config.engine.stalled_stream_timeout},
             .engine = engine,
             .open_calls = open_calls,
             .drain = [this] { Drain(); },
             .max_prefix_ttl = config.max_prefix_ttl,
             .max_parsed_bytes = 24 << 20,
             .max_answer_bytes = config.max_answer_mib << 20} {
  peers_.Add(kPeer, {.address = "memory"});
  for (auto* const add :
       {server::AddGenerateCalls, server::AddTokenCalls, server::AddPrefixCalls,
        server::AddSessionCalls, server::AddControlCalls, server::AddTenantCalls}) {
    add(parts_, calls_);
  }
}

std::unique_ptr<MemoryCall> MemoryClient::Open(server::Rpc rpc, const CallOptions& options) {
  const server::CallTable::Begin* const begin = server_.calls().Find(server::PathOf(rpc));
  QUIRE_CHECK(begin != nullptr) << server::PathOf(rpc);
  return std::make_unique<CallInMemory>(*begin, options);
}

std::unique_ptr<MessageReader> MemoryClient::Begin(server::Rpc rpc,
                                                   const google::protobuf::Message& request,
                                                   const CallOptions& options) {
  std::unique_ptr<MemoryCall> call = Open(rpc, options);
  call->Send(request);
  return call;
}

}  // namespace quire::testing
