// Tests what every call has in common, on a transport that only notes what it is asked for.

#include "server/call/call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "base/clock.h"

namespace quire::server {
namespace {

class NotingTransport final : public Transport {
 public:
  std::optional<std::string_view> Metadata(std::string_view key) const override {
    if (key == "x-request-id" && !sent_id.empty()) return sent_id;
    return std::nullopt;
  }
  std::string PeerName() const override { return "peer"; }
  absl::Time Deadline() const override { return deadline; }
  void AddMetadata(std::string_view, std::string_view value) override { ids += value; }
  void Read() override { ++num_reads; }
  void Write(const google::protobuf::MessageLite&) override {}
  void End(const absl::Status& status, const google::protobuf::MessageLite*) override {
    ended = status;
  }
  void Cancel() override { cancelled = true; }

  std::string sent_id;
  absl::Time deadline = absl::InfiniteFuture();
  std::string ids;
  int num_reads = 0;
  std::optional<absl::Status> ended;
  std::atomic<bool> cancelled = false;
};

class PlainCall final : public Call {
 public:
  using Call::Call;
  // Answers every message at once.
  void OnMessage(std::string_view) override { End(Identify()); }

  using Call::Authenticate;
  using Call::CancelStatus;
  using Call::SendId;
  using Call::TakeId;
};

class CallTest : public ::testing::Test {
 protected:
  explicit CallTest(absl::Duration linger = absl::Seconds(30))
      : parts_{.egress = egress_,
               .counters = counters_,
               .access_log = log_,
               .peers = peers_,
               .identities = *identities_,
               .linger = linger} {
    peers_.Add("peer", {.address = "203.0.113.7:1"});
  }

  PlainCall* NewCall() { return new PlainCall(parts_, Rpc::kGetQuota, transport_); }
  uint64_t NumEnded(absl::StatusCode code) const {
    return counters_.Get(static_cast<size_t>(Rpc::kGetQuota), static_cast<size_t>(code));
  }

  Egress egress_;
  RpcCounters counters_;
  AccessLog log_{AccessLogMode::kOff};
  door::PeerDirectory peers_;
  const std::unique_ptr<IdentityStore> identities_ = *IdentityStore::Create("", {});
  const CallParts parts_;
  NotingTransport transport_;
};

class LingerTest : public CallTest {
 protected:
  LingerTest() : CallTest(absl::Milliseconds(20)) {}
};

TEST_F(CallTest, IsCountedOnceAndSendsItsIdOnce) {
  transport_.sent_id = "mine";
  PlainCall* const call = NewCall();
  call->Start();
  EXPECT_EQ(transport_.num_reads, 1);
  call->OnMessage("");
  EXPECT_EQ(transport_.ended, absl::OkStatus());
  EXPECT_EQ(transport_.ids, "mine");
  EXPECT_EQ(NumEnded(absl::StatusCode::kOk), 1u);
  call->OnDone();
}

TEST_F(CallTest, WithoutAMessageIsNoRequest) {
  PlainCall* const call = NewCall();
  call->OnNoMessage(/*is_cancelled=*/false);
  EXPECT_TRUE(absl::IsCancelled(*transport_.ended));
  EXPECT_EQ(transport_.ids, "");
  for (size_t code = 0; code < kStatusCodeNames.size(); ++code) {
    EXPECT_EQ(NumEnded(static_cast<absl::StatusCode>(code)), 0u);
  }
  call->OnDone();
}

TEST_F(CallTest, OfAClientThatHasGoneIsUnavailable) {
  peers_.Remove("peer");
  PlainCall* const call = NewCall();
  call->OnMessage("");
  EXPECT_TRUE(absl::IsUnavailable(*transport_.ended));
  EXPECT_NE(transport_.ids, "");
  call->OnDone();
}

TEST_F(CallTest, AFieldsIdComesBeforeTheMetadatas) {
  const std::unique_ptr<PlainCall> call(NewCall());
  transport_.sent_id = "no id";
  EXPECT_TRUE(absl::IsInvalidArgument(call->TakeId("")));
  EXPECT_TRUE(call->TakeId("of-the-field").ok());
  call->SendId();
  call->SendId();
  EXPECT_EQ(transport_.ids, "of-the-field");
}

TEST_F(CallTest, ACancelledCallWasCancelledOrLate) {
  const std::unique_ptr<PlainCall> call(NewCall());
  EXPECT_TRUE(absl::IsCancelled(call->CancelStatus()));
  transport_.deadline = absl::Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(call->CancelStatus()));
}

TEST_F(LingerTest, AnAnswerThatNobodyReadsIsGivenUp) {
  PlainCall* const call = NewCall();
  call->OnMessage("");
  const absl::Time end = base::SteadyNow() + absl::Seconds(10);
  while (!transport_.cancelled && base::SteadyNow() < end) std::this_thread::yield();
  EXPECT_TRUE(transport_.cancelled);
  call->OnDone();
}

TEST_F(LingerTest, ACallThatIsDoneIsNotCancelled) {
  PlainCall* const call = NewCall();
  call->OnMessage("");
  call->OnDone();
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_FALSE(transport_.cancelled);
}

TEST(RpcTest, PathsAreFoundAgainAndOthersAreNone) {
  for (size_t rpc = 0; rpc < kRpcs.size(); ++rpc) {
    EXPECT_EQ(FindRpc(PathOf(static_cast<Rpc>(rpc))), static_cast<Rpc>(rpc));
  }
  EXPECT_EQ(PathOf(Rpc::kTokenize), "/quire.v1.TokenService/Tokenize");
  for (const char* path :
       {"", "/", "/quire.v1.", "/quire.v1.TokenService", "/quire.v1.TokenService/",
        "/quire.v1.TokenService/Generate", "/quire.v1.TokenService/Tokenize/",
        "quire.v1.TokenService/Tokenize", "/quire.v2.TokenService/Tokenize"}) {
    EXPECT_EQ(FindRpc(path), std::nullopt) << path;
  }
}

}  // namespace
}  // namespace quire::server
