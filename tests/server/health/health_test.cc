// Tests the answers that probes get, the HealthWatch, and the server's calls to itself.

#include "server/health/health.h"

#include <atomic>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/health/health_watch.h"
#include "server/health/listener_probe.h"
#include "tests/server/certificates.h"
#include "tests/server/test_server.h"

namespace quire::server {
namespace {

using quire::testing::FakeEngine;
using quire::testing::GrpcClient;
using quire::testing::Identity;
using quire::testing::MakeAuthority;
using quire::testing::MakeIdentity;
using quire::testing::TestServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServerHealthTest : public ::testing::Test {
 protected:
  Egress egress_;
  FakeEngine engine_;
  Health health_{absl::Seconds(60), egress_};
};

TEST_F(ServerHealthTest, LivesBeforeTheModelIsThereAndIsReadyAfter) {
  EXPECT_EQ(health_.WhyNotLive(), "");
  EXPECT_EQ(health_.WhyNotReady(), "the model is being loaded");
  health_.SetEngine(&engine_);
  EXPECT_EQ(health_.WhyNotLive(), "");
  EXPECT_EQ(health_.WhyNotReady(), "");
  engine_.StartDrain();
  EXPECT_EQ(health_.WhyNotLive(), "");
  EXPECT_EQ(health_.WhyNotReady(), "draining");
}

TEST_F(ServerHealthTest, AThreadThatIsTooLongAtOnePieceOfWorkHangs) {
  health_.SetEngine(&engine_);
  engine_.SetLiveness({.step_busy = absl::Seconds(60), .frontend_busy = absl::Seconds(60)});
  EXPECT_EQ(health_.WhyNotLive(), "");
  engine_.SetLiveness(
      {.step_busy = absl::Milliseconds(73'900), .step_sequences = 3, .step_tokens = 256});
  EXPECT_EQ(health_.WhyNotLive(),
            "step thread: busy for 73 s with 256 tokens of 3 sequences; --watchdog_timeout is 1m");
  EXPECT_EQ(health_.WhyNotReady(), health_.WhyNotLive());
  engine_.SetLiveness({.frontend_busy = absl::Seconds(61)});
  EXPECT_EQ(health_.WhyNotLive(),
            "frontend thread: busy for 61 s with one text; --watchdog_timeout is 1m");
  Health unwatched(absl::ZeroDuration(), egress_);
  unwatched.SetEngine(&engine_);
  EXPECT_EQ(unwatched.WhyNotLive(), "");
}

TEST_F(ServerHealthTest, StepsThatAllFailMakeItUnreadyUntilAnotherChance) {
  health_.SetEngine(&engine_);
  engine_.SetLiveness({.failed_steps = 2, .since_failure = absl::Seconds(1)});
  EXPECT_EQ(health_.WhyNotReady(), "");
  engine_.SetLiveness({.failed_steps = 3, .since_failure = absl::Seconds(1)});
  EXPECT_EQ(health_.WhyNotReady(),
            "steps: the last 3 failed, the latest 1 s ago; see the server's log");
  EXPECT_EQ(health_.WhyNotLive(), "");
  engine_.SetLiveness({.failed_steps = 3, .since_failure = absl::Seconds(31)});
  EXPECT_EQ(health_.WhyNotReady(), "");
  engine_.SetLiveness({.failed_steps = 4, .since_failure = absl::Seconds(1)});
  EXPECT_NE(health_.WhyNotReady(), "");
}

TEST_F(ServerHealthTest, AListenerIsDeadAfterThreeCallsWithoutAnAnswer) {
  health_.SetEngine(&engine_);
  const absl::Status unanswered = absl::UnavailableError("read: no answer in time");
  health_.NoteCall(unanswered);
  health_.NoteCall(unanswered);
  EXPECT_EQ(health_.WhyNotLive(), "");
  health_.NoteCall(unanswered);
  EXPECT_EQ(health_.WhyNotLive(),
            "listener: 3 calls in a row got no answer, the last: read: no answer in time");
  EXPECT_EQ(health_.WhyNotReady(), health_.WhyNotLive());
  health_.NoteCall(absl::OkStatus());
  EXPECT_EQ(health_.WhyNotLive(), "");
}

TEST_F(ServerHealthTest, AnEgressThreadThatHangsIsSeen) {
  struct Stuck : Egress::Outlet {
    void Pump() override { go_on.acquire(); }
    std::binary_semaphore go_on{0};
  };
  Health impatient(absl::Nanoseconds(1), egress_);
  EXPECT_EQ(impatient.WhyNotLive(), "");
  const auto stuck = std::make_shared<Stuck>();
  egress_.Wake(stuck);
  EXPECT_TRUE(engine_.WaitFor([&] { return impatient.WhyNotLive() != ""; }));
  EXPECT_THAT(impatient.WhyNotLive(), HasSubstr("egress thread: busy for 0 s"));
  stuck->go_on.release();
  EXPECT_TRUE(engine_.WaitFor([&] { return impatient.WhyNotLive() == ""; }));
}

// A watch takes its first turn at once, and its next turn seconds later. So each watch in these
// tests lives for one turn.
class HealthWatchTest : public ServerHealthTest {
 protected:
  // Returns the values that a watch gives to `set_serving` in its first turn.
  std::vector<bool> FirstTurn(const absl::Status& call) {
    std::vector<bool> said;
    std::atomic<bool> called = false;
    HealthWatch watch(
        health_,
        [&] {
          called = true;
          return call;
        },
        [&](bool serving) { said.push_back(serving); });
    EXPECT_TRUE(engine_.WaitFor([&] { return called.load(); }));
    watch.Stop();
    return said;
  }
};

TEST_F(HealthWatchTest, TurnsHealthOffForWhatHangsOrFails) {
  health_.SetEngine(&engine_);
  EXPECT_THAT(FirstTurn(absl::OkStatus()), IsEmpty()) << "it serves already";
  engine_.SetLiveness({.step_busy = absl::Minutes(5)});
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(FirstTurn(absl::OkStatus()), ElementsAre(false));
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, HasSubstr("ERROR health: the server hangs: /livez is red reason=\"step thread: "
                              "busy for 300 s"));
  EXPECT_THAT(line, HasSubstr(" cure=\"restart it"));
  engine_.SetLiveness({.failed_steps = 3, .since_failure = absl::Seconds(1)});
  EXPECT_THAT(FirstTurn(absl::OkStatus()), ElementsAre(false));
}

TEST_F(HealthWatchTest, NotesEachCall) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(health_.WhyNotLive(), "");
    FirstTurn(absl::UnavailableError("connect: refused"));
  }
  EXPECT_THAT(health_.WhyNotLive(), HasSubstr("connect: refused"));
}

TEST(GrpcServerHealthTest, FollowsTheWatchUntilTheDrain) {
  TestServer server;
  GrpcClient client(server.grpc->address());
  using quire::testing::Health;
  EXPECT_EQ(client.CheckHealth(""), Health::kServing);
  server.grpc->SetHealthy(false);
  EXPECT_EQ(client.CheckHealth(""), Health::kNotServing);
  server.grpc->SetHealthy(true);
  EXPECT_EQ(client.CheckHealth("quire.v1.InferenceService"), Health::kServing);
  server.grpc->Drain();
  server.grpc->SetHealthy(true);
  EXPECT_EQ(client.CheckHealth(""), Health::kNotServing);
}

absl::Status CallOnce(const ListenAddress& address, ListenerTls tls,
                      absl::Duration timeout = absl::Seconds(20)) {
  const auto probe = ListenerProbe::Create(address, tls, nullptr);
  return probe.ok() ? probe->Call(timeout) : probe.status();
}

ListenAddress AddressOf(const TestServer& server) {
  return *ParseListenAddress(server.grpc->address());
}

TEST(ListenerProbeTest, IsAnsweredWithAndWithoutTls) {
  EXPECT_TRUE(CallOnce(AddressOf(TestServer()), ListenerTls::kNone).ok());
  const Identity authority = MakeAuthority("authority");
  const Identity identity = MakeIdentity("server", authority);
  TlsFiles tls{.cert_chain = identity.cert, .private_key = identity.key};
  {
    const TestServer server({}, {}, tls);
    EXPECT_EQ(CallOnce(AddressOf(server), ListenerTls::kServer), absl::OkStatus());
    EXPECT_FALSE(CallOnce(AddressOf(server), ListenerTls::kNone).ok());
  }
  tls.client_ca = authority.cert;
  const TestServer server({}, {}, tls);
  EXPECT_EQ(CallOnce(AddressOf(server), ListenerTls::kMutual), absl::OkStatus());
}

TEST(ListenerProbeTest, ReachesAListenerOnEveryAddressAndSaysFromWhichPort) {
  const TestServer server({}, {.listen = "0.0.0.0:0"});
  std::vector<uint16_t> ports;
  const auto probe = ListenerProbe::Create(AddressOf(server), ListenerTls::kNone,
                                           [&](uint16_t port) { ports.push_back(port); });
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->Call(absl::Seconds(20)), absl::OkStatus());
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_NE(ports[0], 0);
}

TEST(ListenerProbeTest, NobodyAnswers) {
  ListenAddress address{.host = "127.0.0.1"};
  auto listener = Listen(address);
  ASSERT_TRUE(listener.ok()) << listener.status();
  // The kernel completes connections to a listener even if the server is dead.
  for (const ListenerTls tls : {ListenerTls::kNone, ListenerTls::kServer}) {
    EXPECT_THAT(std::string(CallOnce(address, tls, absl::Milliseconds(50)).message()),
                HasSubstr("no answer in time"));
  }
  listener->clear();
  EXPECT_THAT(std::string(CallOnce(address, ListenerTls::kNone).message()),
              HasSubstr("connect: Connection refused"));
}

}  // namespace
}  // namespace quire::server
