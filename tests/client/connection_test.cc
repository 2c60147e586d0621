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
