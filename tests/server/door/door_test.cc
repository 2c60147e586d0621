// Tests the door over real sockets on loopback, with an echo server in place of gRPC.

#include "server/door/door.h"

#include <algorithm>
#include <functional>
#include <poll.h>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "base/mutex.h"
#include "tests/server/door/http2_bytes.h"

namespace quire::server::door {
namespace {

using base::UniqueFd;
using quire::testing::Data;
using quire::testing::Frame;
using quire::testing::FramesOf;
using quire::testing::Headers;
using quire::testing::Message;

constexpr std::chrono::seconds kPatience(20);

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    if (condition()) return true;
    ::poll(nullptr, 0, 2);
  }
  return condition();
}

// Serves connections in place of gRPC. Sends the received frames back until the other side ends the
// connection.
class Echoes {
 public:
  ~Echoes() {
    for (std::thread& thread : threads_) thread.join();
  }
  void Add(UniqueFd fd) {
    ++num_;
    threads_.emplace_back([fd = std::move(fd)] {
      char buffer[4096];
      size_t preface_left = kPreface.size();
      while (true) {
        pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
        ::poll(&wait, 1, -1);
        const ssize_t size = ::recv(fd.get(), buffer, sizeof(buffer), 0);
        if (size == 0 || (size < 0 && errno != EAGAIN)) return;
        if (size <= 0) continue;
        std::string_view frames(buffer, static_cast<size_t>(size));
        const size_t skipped = std::min(preface_left, frames.size());
        preface_left -= skipped;
        frames.remove_prefix(skipped);
        ::send(fd.get(), frames.data(), frames.size(), MSG_NOSIGNAL);
      }
    });
  }
  int num() const { return num_; }

 private:
  std::atomic<int> num_ = 0;
  // Needs no lock: the greeter's thread adds these threads, and they are joined after the greeter's
  // thread has ended.
  std::vector<std::thread> threads_;
};

class Client {
 public:
  // Connects from 127.0.0.`host`.
  explicit Client(uint16_t port, uint8_t host = 1)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in source{};
    source.sin_family = AF_INET;
    source.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&source), sizeof(source));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }

  void Send(std::string_view bytes) { ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  // Receives until there are `size` bytes, or until the connection ends. Headers count and are
  // returned as literals.
  std::string Receive(size_t size) {
    while (got_.size() < size) {
      char buffer[4096];
      pollfd wait{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, std::chrono::milliseconds(kPatience).count()) <= 0) break;
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      got_ += headers_.Read({buffer, static_cast<size_t>(n)});
    }
    const std::string got = got_.substr(0, size);
    got_.erase(0, size);
    return got;
  }
  bool EchoesHello() {
    const std::string settings = Frame(FrameType::kSettings, 0, 0);
    Send(std::string(kPreface) + settings);
    return Receive(settings.size()) == settings;
  }
  // Ends the connection at once, with a reset.
  void Reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd_.Reset();
  }
  bool IsClosed() {
    char byte;
    pollfd wait{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&wait, 1, std::chrono::milliseconds(kPatience).count()) > 0 &&
           ::recv(fd_.get(), &byte, 1, 0) <= 0;
  }

 private:
  UniqueFd fd_;
  quire::testing::LiteralHeaders headers_;
  std::string got_;  // received, and not yet returned
};

class DoorTest : public ::testing::Test {
 protected:
  ~DoorTest() override { door_.reset(); }

  void Open(DoorOptions options = {}) {
    auto opened = Door::Open(
        {.host = "127.0.0.1"}, {}, options,
        [this](const RequestHead&, const Peer& peer) -> std::optional<Refusal> {
          base::MutexLock lock(mu_);
          callers_.insert(peer.address);
          return std::nullopt;
        },
        [this](UniqueFd fd) {
          base::MutexLock lock(mu_);
          if (!holds_) return echoes_.Add(std::move(fd));
          held_.push_back(std::move(fd));
        },
        peers_, counters_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    door_ = *std::move(opened);
  }
  uint16_t port() const { return door_->address().port; }
  uint64_t turned(Turned why) const { return counters_.turned.Get(static_cast<size_t>(why)); }
  uint64_t cut(Cut why) const { return counters_.cut.Get(static_cast<size_t>(why)); }
  // From now on, keeps the connections that the door hands over, and neither reads from them nor
  // echoes.
  void HoldConnections() {
    base::MutexLock lock(mu_);
    holds_ = true;
  }
  size_t num_held() {
    base::MutexLock lock(mu_);
    return held_.size();
  }
  size_t num_callers() {
    base::MutexLock lock(mu_);
    return callers_.size();
  }

  base::Mutex mu_;
  std::set<std::string> callers_ ABSL_GUARDED_BY(mu_);
  bool holds_ ABSL_GUARDED_BY(mu_) = false;  // connections go into `held_`, not into `echoes_`
  std::vector<UniqueFd> held_ ABSL_GUARDED_BY(mu_);
  DoorCounters counters_;
  PeerDirectory peers_;
  Echoes echoes_;
  std::unique_ptr<Door> door_;
};

TEST_F(DoorTest, CarriesBytesBothWays) {
  Open();
  Client client(port());
  EXPECT_TRUE(client.EchoesHello());
  std::string big;
  for (size_t at = 0; at < 100'000; at += 10'000) big += Data(1, std::string(10'000, 'm'));
  client.Send(Headers(1) + Data(1, Message(100'000).substr(0, 5)) + big);
  EXPECT_EQ(client.Receive(Headers(1).size() + Data(1, "12345").size() + big.size()),
            Headers(1) + Data(1, Message(100'000).substr(0, 5)) + big);
  EXPECT_EQ(num_callers(), 1u);
  EXPECT_EQ(counters_.open.load(), 1);
}

TEST_F(DoorTest, WhoSaysNothingIsClosed) {
  Open({.handshake_time = std::chrono::milliseconds(100)});
  Client silent(port());
  Client slow(port());
  slow.Send(kPreface.substr(0, 10));
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(slow.IsClosed());
  EXPECT_EQ(turned(Turned::kHello), 2u);
  EXPECT_EQ(echoes_.num(), 0);
  EXPECT_TRUE(Eventually([&] { return counters_.open.load() == 0; }));
}

TEST_F(DoorTest, AnotherProtocolIsToldSo) {
  Open();
  Client browser(port());
  browser.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(browser.Receive(1000).starts_with("HTTP/1.1 426 "));
  Client other(port());
  other.Send("SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_TRUE(other.IsClosed());
  EXPECT_EQ(turned(Turned::kHello), 2u);
}

TEST_F(DoorTest, AHelloMayComeInPieces) {
  Open();
  Client client(port());
  const std::string settings = Frame(FrameType::kSettings, 0, 0);
  const std::string hello = std::string(kPreface) + settings;
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>(0, 10), std::pair<size_t, size_t>(10, kPreface.size() + 2),
        std::pair<size_t, size_t>(kPreface.size() + 2, hello.size())}) {
    client.Send(std::string_view(hello).substr(begin, end - begin));
    ::poll(nullptr, 0, 20);  // most likely the door reads the piece alone
  }
  EXPECT_EQ(client.Receive(settings.size()), settings);
  EXPECT_EQ(turned(Turned::kHello), 0u);
}

TEST_F(DoorTest, WhoGoesOrBeginsOtherwiseIsTurnedAwayAtOnce) {
  Open({.handshake_time = std::chrono::hours(1)});
  Client(port()).Reset();
  EXPECT_TRUE(Eventually([&] { return turned(Turned::kHello) == 1; }));
  Client pings_first(port());
  pings_first.Send(std::string(kPreface) + Frame(FrameType::kPing, 0, 0, "12345678"));
  EXPECT_TRUE(pings_first.IsClosed());
  EXPECT_EQ(turned(Turned::kHello), 2u);
  EXPECT_TRUE(Eventually([&] { return counters_.open.load() == 0; }));
}

TEST_F(DoorTest, OneAddressHasItsLimitAndEvictsNobody) {
  Open({.max_connections = 4, .max_per_address = 2});
  Client first(port()), second(port());
  EXPECT_TRUE(first.EchoesHello());
  EXPECT_TRUE(second.EchoesHello());
  Client third(port());
  EXPECT_TRUE(third.IsClosed());
  EXPECT_EQ(turned(Turned::kAddress), 1u);
  EXPECT_EQ(cut(Cut::kIdle), 0u);
  EXPECT_EQ(counters_.open.load(), 2);
}

TEST_F(DoorTest, WhoHasGoneKeepsItsPlaceUntilGrpcHasClosedItsEnd) {
  HoldConnections();
  Open({.max_connections = 8, .max_per_address = 2});
  const auto num_ended = [this] {
    base::MutexLock lock(mu_);
    return std::ranges::count_if(held_, [](const UniqueFd& fd) {
      char buffer[4096];
      ssize_t size = 1;
      while (size > 0) size = ::recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      return size == 0;
    });
  };
  Client first(port()), second(port());
  for (Client* client : {&first, &second}) {
    client->Send(std::string(kPreface) + Frame(FrameType::kSettings, 0, 0));
  }
  ASSERT_TRUE(Eventually([this] { return num_held() == 2; }));
  for (Client* client : {&first, &second}) client->Reset();
  ASSERT_TRUE(Eventually([&] { return num_ended() == 2; }));
  {
    base::MutexLock lock(mu_);
    for (const UniqueFd& fd : held_) ::shutdown(fd.get(), SHUT_RDWR);
  }
  ::poll(nullptr, 0, 50);  // gives the relay time to see the shutdown
  EXPECT_TRUE(Client(port()).IsClosed());
  EXPECT_EQ(turned(Turned::kAddress), 1u);
  EXPECT_EQ(counters_.open.load(), 2);
  {
    base::MutexLock lock(mu_);
    held_.clear();
    holds_ = false;
  }
  EXPECT_TRUE(Eventually([this] { return counters_.open.load() == 0; }));
  EXPECT_TRUE(Client(port()).EchoesHello());
}

TEST_F(DoorTest, AFullServerEndsTheIdlest) {
  Open({.max_connections = 2, .max_per_address = 10});
  Client a(port()), b(port());
  EXPECT_TRUE(a.EchoesHello());
  EXPECT_TRUE(b.EchoesHello());
  b.Send(Headers(1));
  EXPECT_EQ(b.Receive(Headers(1).size()), Headers(1));
  Client c(port());
  EXPECT_TRUE(c.EchoesHello());
  const auto last_words = FramesOf(a.Receive(1000));
  ASSERT_EQ(last_words.size(), 1u);
  EXPECT_EQ(last_words[0].head.type, FrameType::kGoaway);
  EXPECT_EQ(cut(Cut::kIdle), 1u);
  c.Send(Headers(1));
  EXPECT_EQ(c.Receive(Headers(1).size()), Headers(1));
  Client d(port());  // no connection is idle now
  EXPECT_TRUE(d.IsClosed());
  EXPECT_EQ(turned(Turned::kFull), 1u);
}

TEST_F(DoorTest, AFullServerWaitsUntilGrpcHasLetGoOfWhatItEnded) {
  HoldConnections();
  Open({.max_connections = 2, .max_per_address = 10});
  const std::string hello = std::string(kPreface) + Frame(FrameType::kSettings, 0, 0);
  Client idle(port());
  idle.Send(hello);
  ASSERT_TRUE(Eventually([&] { return counters_.idle.load() == 1; }));
  Client busy(port());
  busy.Send(hello + Headers(1));
  ASSERT_TRUE(Eventually([&] { return num_held() == 2 && counters_.streams.load() == 1; }));
  Client next(port());
  next.Send(hello);
  ASSERT_TRUE(Eventually([&] { return cut(Cut::kIdle) == 1; }));
  ::poll(nullptr, 0, 100);  // `next` tries several times to get a place
  {
    base::MutexLock lock(mu_);
    held_.erase(held_.begin());
  }
  EXPECT_TRUE(Eventually([&] { return num_held() == 2; }));
  EXPECT_EQ(cut(Cut::kIdle), 1u);
  EXPECT_EQ(turned(Turned::kFull), 0u);
}

TEST_F(DoorTest, AFullServerDoesNotWaitForEverUntilGrpcLetsGo) {
  HoldConnections();
  Open({.max_connections = 1, .max_per_address = 10});
  const std::string hello = std::string(kPreface) + Frame(FrameType::kSettings, 0, 0);
  Client idle(port());
  idle.Send(hello);
  ASSERT_TRUE(Eventually([&] { return counters_.idle.load() == 1; }));
  Client next(port());
  next.Send(hello);
  EXPECT_TRUE(next.IsClosed());
  EXPECT_EQ(turned(Turned::kFull), 1u);
  EXPECT_EQ(cut(Cut::kIdle), 1u);
}

TEST_F(DoorTest, AFullServerEndsOneOfTheAddressThatHasMost) {
  Open({.max_connections = 4, .max_per_address = 10});
  Client lone(port(), 2);
  EXPECT_TRUE(lone.EchoesHello());
  std::vector<Client> many;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(many.emplace_back(port()).EchoesHello());
  Client silent(port(), 3);  // gets a place when one of `many` is ended
  EXPECT_EQ(FramesOf(many[0].Receive(1000)).size(), 1u);  // GOAWAY
  Client next(port(), 4);  // `silent` has sent nothing, so it is turned away to make room
  EXPECT_TRUE(next.EchoesHello());
  EXPECT_EQ(cut(Cut::kIdle), 1u);
  lone.Send(Headers(1));
  EXPECT_EQ(lone.Receive(Headers(1).size()), Headers(1));
}

TEST_F(DoorTest, AFullServerEndsASilentNewcomerFirst) {
  Open({.max_connections = 2, .max_per_address = 10});
  Client idle(port()), silent(port());
  EXPECT_TRUE(idle.EchoesHello());
  ASSERT_TRUE(Eventually([&] { return counters_.open.load() == 2; }));
  Client c(port());
  EXPECT_TRUE(c.EchoesHello());
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_EQ(cut(Cut::kIdle), 0u);
}

TEST_F(DoorTest, AConnectionHasNoMoreStreamsThanAreFree) {
  DoorOptions options;
  options.http2.total_streams = 9;
  Open(options);
  const auto num_refused = [this] {
    return counters_.refused.Get(static_cast<size_t>(Refused::kStreams));
  };
  Client other(port());
  EXPECT_TRUE(other.EchoesHello());
  {
    Client greedy(port());
    EXPECT_TRUE(greedy.EchoesHello());
    for (uint32_t id = 1; id <= 11; id += 2) greedy.Send(Headers(id));
    EXPECT_TRUE(Eventually([&] { return num_refused() == 1; }));
    EXPECT_EQ(counters_.streams.load(), 5);
    for (uint32_t id = 1; id <= 5; id += 2) other.Send(Headers(id));
    EXPECT_TRUE(Eventually([&] { return num_refused() == 2; }));
    EXPECT_EQ(counters_.streams.load(), 7);
  }
  EXPECT_TRUE(Eventually([&] { return counters_.streams.load() == 2; }));
  for (uint32_t id = 7; id <= 9; id += 2) other.Send(Headers(id));
  EXPECT_TRUE(Eventually([&] { return counters_.streams.load() == 4; }));
  EXPECT_EQ(num_refused(), 2u);
}

TEST_F(DoorTest, AcceptsAgainAfterDescriptorsRanOut) {
  Open({.max_connections = 1000, .max_per_address = 1000});
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const UniqueFd next(::dup(0));  // has the lowest free number
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next.get()) + 40;
  {
    // The clients' sockets belong to this process too, and take half of the descriptors.
    std::vector<Client> clients;
    ::setrlimit(RLIMIT_NOFILE, &few);
    clients.reserve(60);
    for (int i = 0; i < 60; ++i) clients.emplace_back(port());
    EXPECT_TRUE(Eventually([&] { return turned(Turned::kDescriptors) > 0; }));
  }
  ASSERT_TRUE(Eventually([&] { return counters_.open.load() == 0; }));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(Client(port()).EchoesHello());
}

TEST(DescriptorLimitTest, IsRaisedAsFarAsItMay) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = before.rlim_max - 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  RaiseDescriptorLimit();
  rlimit after{};
  ::getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(DoorTest, HandsNothingOverAfterItStopsAccepting) {
  Open();
  Client before(port());
  EXPECT_TRUE(before.EchoesHello());
  Client half(port());
  ASSERT_TRUE(Eventually([&] { return counters_.open.load() == 2; }));
  door_->StopAccepting();
  EXPECT_TRUE(half.IsClosed());
  EXPECT_EQ(echoes_.num(), 1);
  const std::string call = Headers(1);
  before.Send(call);
  EXPECT_EQ(before.Receive(call.size()), call);  // earlier connections go on
}

TEST_F(DoorTest, AHostileClientIsCutInWordsAndOthersGoOn) {
  Open();
  Client good(port()), bad(port());
  EXPECT_TRUE(good.EchoesHello());
  EXPECT_TRUE(bad.EchoesHello());
  bad.Send(Headers(2));
  const auto frames = FramesOf(bad.Receive(1000));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].head.type, FrameType::kGoaway);
  EXPECT_EQ(cut(Cut::kProtocol), 1u);
  good.Send(Headers(1));
  EXPECT_EQ(good.Receive(Headers(1).size()), Headers(1));
}

TEST_F(DoorTest, TheLargestOfAllConnectionsIsRefused) {
  DoorOptions options;
  options.http2.total_bytes = 100'000;
  Open(options);
  Client large(port()), small(port());
  EXPECT_TRUE(large.EchoesHello());
  EXPECT_TRUE(small.EchoesHello());
  const auto part = [](size_t size) {
    return Headers(1) + Data(1, Message(1 << 20).substr(0, size));
  };
  large.Send(part(80'000));
  large.Receive(part(80'000).size());
  small.Send(part(30'000));
  EXPECT_TRUE(Eventually(
      [&] { return counters_.refused.Get(static_cast<size_t>(Refused::kUnfinished)) == 1; }));
  EXPECT_LT(counters_.unfinished_bytes.load(), 50'000);
  EXPECT_GT(counters_.unfinished_bytes.load(), 29'000);
}

}  // namespace
}  // namespace quire::server::door
