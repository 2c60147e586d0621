#include "server/grpc/rpc_status.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "engine/request/retry_after.h"

namespace quire::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RpcStatusTest, InvalidArgumentNamesItsField) {
  const google::rpc::Status status =
      ToRpcStatus(absl::InvalidArgumentError("sampling.top_p: want (0, 1], got 1.5"));
  EXPECT_EQ(status.code(), 3);
  EXPECT_EQ(status.message(), "sampling.top_p: want (0, 1], got 1.5");
  ASSERT_EQ(status.details_size(), 1);
  google::rpc::BadRequest details;
  ASSERT_TRUE(status.details(0).UnpackTo(&details));
  ASSERT_EQ(details.field_violations_size(), 1);
  EXPECT_EQ(details.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(details.field_violations(0).description(), "want (0, 1], got 1.5");
}

TEST(RpcStatusTest, OrdinaryMessagesNameNoField) {
  EXPECT_EQ(ToRpcStatus(absl::InvalidArgumentError("no colon")).details_size(), 0);
  EXPECT_EQ(ToRpcStatus(absl::InvalidArgumentError("A sentence: with one")).details_size(), 0);
  EXPECT_EQ(ToRpcStatus(absl::InvalidArgumentError(": nothing before")).details_size(), 0);
  EXPECT_EQ(ToRpcStatus(absl::InternalError("sampling.top_p: ours")).details_size(), 0);
}

TEST(RpcStatusTest, WhatAClientSentIsCutAndEscaped) {
  const std::string message(
      ToRpcStatus(absl::InvalidArgumentError("model: \"" + std::string(20000, 'x') +
                                             "\" is not served here"))
          .message());
  EXPECT_LE(message.size(), 600u);
  EXPECT_THAT(message, StartsWith("model: \"xxx"));
  EXPECT_THAT(message, EndsWith("xxx\" is not served here"));
  EXPECT_THAT(message, HasSubstr("... (19528 bytes left out) ..."));
  EXPECT_EQ(
      ToRpcStatus(absl::NotFoundError(absl::string_view("a\nb\0c\x7f\xc3\xa9\xff", 9))).message(),
      "a\\x0ab\\x00c\\x7f\xc3\xa9\xef\xbf\xbd");
  EXPECT_LE(ToRpcStatus(absl::NotFoundError(std::string(20000, '\0'))).message().size(), 2500u);
}

TEST(RpcStatusTest, AStatusMayBringItsOwnTimeToTryAgain) {
  const google::rpc::Status out = ToRpcStatus(engine::WithRetryAfter(
      absl::ResourceExhaustedError("tokens_per_minute: used up"), absl::Milliseconds(12'345)));
  ASSERT_EQ(out.details_size(), 1);
  google::rpc::RetryInfo details;
  ASSERT_TRUE(out.details(0).UnpackTo(&details));
  EXPECT_EQ(details.retry_delay().seconds(), 12);
  EXPECT_EQ(details.retry_delay().nanos(), 345'000'000);
}

TEST(RpcStatusTest, WhatMayBeTriedAgainSaysWhen) {
  for (const absl::Status& status :
       {absl::ResourceExhaustedError("full"), absl::UnavailableError("draining")}) {
    const google::rpc::Status out = ToRpcStatus(status);
    ASSERT_EQ(out.details_size(), 1) << status;
    google::rpc::RetryInfo details;
    ASSERT_TRUE(out.details(0).UnpackTo(&details));
    EXPECT_GT(details.retry_delay().seconds(), 0);
  }
  EXPECT_EQ(ToRpcStatus(absl::NotFoundError("x")).details_size(), 0);
}

}  // namespace
}  // namespace quire::server
