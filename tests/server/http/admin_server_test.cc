// Tests the admin server: its answers, and that a client gets an answer while other clients hold as
// many connections as they can.

#include "server/http/admin_server.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/unique_fd.h"

namespace quire::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::chrono::seconds kPatience(20);  // a limit for steps that take milliseconds

// The client's end of a connection. Connect must be called first.
class Visitor {
 public:
  Visitor() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  void Connect(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(std::string_view bytes) {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Reads to the end of the connection.
  std::string ReadAll() {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::recv(socket_.get(), buffer, sizeof(buffer), 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  // Returns true if the server has neither answered nor closed the connection.
  bool IsHeld() {
    char byte = 0;
    return ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  }

 private:
  base::UniqueFd socket_;
};

class AdminServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = AdminServer::Start({.host = "127.0.0.1"},
                                     {.why_not_live = [this] { return live_ ? "" : "it\nhangs"; },
                                      .why_not_ready = [this] { return ready_ ? "" : "it loads"; },
                                      .metrics = [this] { return metrics_(); },
                                      .cache = [] { return "{}"; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = ParseListenAddress(server_->address())->port;
  }
  std::string Ask(std::string_view bytes) {
    Visitor visitor;
    visitor.Connect(port_);
    visitor.Send(bytes);
    return visitor.ReadAll();
  }
  std::string Get(std::string_view path) {
    return Ask("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n\r\n");
  }

  std::atomic<bool> live_ = true;
  std::atomic<bool> ready_ = true;
  std::function<std::string()> metrics_ = [] { return "a_metric 1\n"; };
  std::unique_ptr<AdminServer> server_;
  uint16_t port_ = 0;
};

TEST_F(AdminServerTest, ProbesSayWhyNot) {
  for (auto [path, well] : {std::pair("/livez", &live_), std::pair("/readyz", &ready_)}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(Get(path), EndsWith("\r\n\r\nok\n"));
    *well = false;
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  }
  EXPECT_THAT(Get("/livez"), EndsWith("\r\n\r\nit\nhangs\n"));
  EXPECT_THAT(Get("/readyz?verbose"), EndsWith("\r\n\r\nit loads\n"));
}

TEST_F(AdminServerTest, MetricsComeAsPrometheusReadsThem) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\na_metric 1\n"));
  metrics_ = [] { return ""; };
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(AdminServerTest, ThePageRunsOnlyItsOwnScript) {
  const std::string page = Get("/debug/cache");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  for (const char* unsafe : {"innerHTML", "document.write", "eval(", "http://", "https://",
                             "unsafe-inline", " src=", "onclick"}) {
    EXPECT_THAT(page, Not(HasSubstr(unsafe)));
  }
}

TEST_F(AdminServerTest, TheCachesDataIsForHostsOfLoopback) {
  const auto get = [&](const std::string& host) {
    return Ask("GET /debug/cache.json HTTP/1.1\r\nhOsT:  " + host + "\r\n\r\n");
  };
  for (const char* host : {"localhost", "127.0.0.1:8101", "[::1]:8101", "[::1]", "localhost:1"}) {
    EXPECT_THAT(get(host), EndsWith("\r\n\r\n{}")) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example:8101", "127.0.0.1.x", ":"}) {
    EXPECT_THAT(get(host), StartsWith("HTTP/1.1 403 ")) << host;
  }
}

TEST_F(AdminServerTest, ElsewhereTheCachesDataIsForOperators) {
  auto server =
      AdminServer::Start({.host = "0.0.0.0"},
                         {.why_not_live = [] { return ""; },
                          .why_not_ready = [] { return ""; },
                          .metrics = [] { return ""; },
                          .cache = [] { return "{}"; },
                          .is_operator = [](const auto& given) { return given == "Bearer ops"; }});
  ASSERT_TRUE(server.ok()) << server.status();
  port_ = ParseListenAddress((*server)->address())->port;
  const auto get = [&](const std::string& field) {
    return Ask("GET /debug/cache.json HTTP/1.1\r\nHost: localhost\r\n" + field + "\r\n");
  };
  EXPECT_THAT(get(""), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(get("Authorization: Bearer x\r\n"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(get("authorization: Bearer ops\r\n"), EndsWith("\r\n\r\n{}"));
}

TEST_F(AdminServerTest, AnswersWhatItDoesNotTakeToo) {
  EXPECT_THAT(Get("/elsewhere"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /livez HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("GET /livez\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("GET /" + std::string(9000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask("HEAD /livez HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST_F(AdminServerTest, ATakenPortIsAnError) {
  const auto address = ParseListenAddress(server_->address());
  const auto second = AdminServer::Start(*address, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
  EXPECT_EQ(CheckCanListen(*address).code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdminServerTest, AProbePassesMoreIdleConnectionsThanThereIsRoomFor) {
  std::vector<Visitor> idle(600);
  for (Visitor& visitor : idle) {
    visitor.Connect(port_);
    visitor.Send("GET /livez HTTP/1.1\r\n");  // an unfinished request
  }
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(idle.back().IsHeld()) << "the probe did not wait for anybody's end";
  EXPECT_EQ(idle.front().ReadAll(), "") << "the oldest made room";
}

TEST_F(AdminServerTest, ARequestThatIsNeverWholeIsDropped) {
  Visitor idle;
  idle.Connect(port_);
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_FALSE(idle.IsHeld()) << "the server's patience ended, not the test's";
}

TEST_F(AdminServerTest, ASlowScrapeDelaysNoProbe) {
  std::promise<void> probed;
  std::atomic<int> num_made = 0;
  metrics_ = [&, done = probed.get_future().share()] {
    done.wait_for(kPatience);
    return "made " + std::to_string(++num_made) + "\n";
  };
  std::vector<Visitor> scrapes(5);
  for (Visitor& scrape : scrapes) {
    scrape.Connect(port_);
    scrape.Send("GET /metrics HTTP/1.1\r\n\r\n");
  }
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 "));
  for (Visitor& scrape : scrapes) EXPECT_TRUE(scrape.IsHeld());
  probed.set_value();
  for (Visitor& scrape : scrapes) EXPECT_THAT(scrape.ReadAll(), HasSubstr("\r\n\r\nmade "));
  EXPECT_LE(num_made, 2) << "those that wait share one text";
}

TEST_F(AdminServerTest, AReaderThatReadsSlowlyGetsItAllAndDelaysNoProbe) {
  const std::string text(size_t{8} << 20, 'x');  // more than the sockets hold
  metrics_ = [&] { return text; };
  Visitor slow;
  slow.Connect(port_);
  slow.Send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(slow.ReadAll(), EndsWith(text));
}

// Lowers the limit on descriptors and opens descriptors until the limit is reached.
class AllDescriptors {
 public:
  AllDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = NumberOfTheLast() + 1;
    ::setrlimit(RLIMIT_NOFILE, &few);
    while (true) {
      base::UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!one) break;
      taken_.push_back(std::move(one));
    }
  }
  ~AllDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  // Returns the largest open descriptor number. The limit is set just above that number. With a
  // lower limit, closing a descriptor beyond the limit would not make room for a new one.
  static rlim_t NumberOfTheLast() {
    rlim_t last = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      last = std::max<rlim_t>(last, std::stoul(entry.path().filename().string()));
    }
    return last;
  }

  rlimit before_{};
  std::vector<base::UniqueFd> taken_;
};

TEST_F(AdminServerTest, ProbesAreAnsweredWhereNoDescriptorIsLeft) {
  std::vector<Visitor> visitors(4);
  const AllDescriptors taken;
  for (Visitor& visitor : visitors) {
    visitor.Connect(port_);
    visitor.Send("GET /livez HTTP/1.1\r\n\r\n");
    EXPECT_THAT(visitor.ReadAll(), StartsWith("HTTP/1.1 200 "));
  }
}

}  // namespace
}  // namespace quire::server
