#include "client/connection.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::testing::HasSubstr;

TEST(ServerTargetTest, TakesWhatPeopleType) {
  for (const auto& [given, target] : std::initializer_list<std::pair<const char*, const char*>>{
           {"127.0.0.1:8100", "127.0.0.1:8100"},
           {"localhost", "localhost:8100"},
           {"localhost:1", "localhost:1"},
           {"http://localhost", "localhost:8100"},
           {"http://localhost:1/", "localhost:1"},
           {"https://a.example:1", "a.example:1"},
           {"grpc://a.example", "a.example:8100"},
           {"::1", "[::1]:8100"},
           {"[::1]", "[::1]:8100"},
           {"[::1]:1", "[::1]:1"},
           {"unix:/run/q", "unix:/run/q"},
           {"unixes.example", "unixes.example:8100"},
           {"dns:///a.example:1", "dns:///a.example:1"},
           {"ipv4:127.0.0.1:1", "ipv4:127.0.0.1:1"}}) {
    EXPECT_EQ(ServerTarget(given).value_or("refused"), target) << given;
  }
  for (const char* given : {"", "http://", "/", "localhost/v1", "http://localhost:1/v1"}) {
    EXPECT_EQ(ServerTarget(given).status().code(), absl::StatusCode::kInvalidArgument) << given;
  }
}

// Connects to port 1, at which nobody listens. (Only root may bind port 1.)
std::unique_ptr<Connection> ToNobody() { return *Connection::Create({.server = "127.0.0.1:1"}); }

TEST(ConnectionTest, WhereNoServerAnswersTheErrorNamesTheCure) {
  const absl::Status status = ToNobody()->Stream({}, [](StreamCall&, const auto&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("start one with \"quire-server"));
}

// gRPC aborts if one of its threads destroys the channel together with the context of a stream.
TEST(ConnectionTest, IsDestroyedOnlyAfterItsStreamsAreGone) {
  std::atomic<bool> done = false, left = false;
  auto connection = ToNobody();
  connection->StartStream(
      {}, [](StreamCall&, const auto&) {},
      [&](const absl::Status&) {
        done = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        left = true;
      });
  while (!done) std::this_thread::yield();
  connection.reset();
  EXPECT_TRUE(left);
}

}  // namespace
}  // namespace quire::client
