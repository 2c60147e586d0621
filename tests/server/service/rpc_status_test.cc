#include "server/service/rpc_status.h"

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

template <typename Details>
Details DetailsOf(const absl::Status& status) {
  Details details;
  const google::rpc::Status converted = ToRpcStatus(status);
  for (const auto& any : converted.details()) {
    if (any.UnpackTo(&details)) return details;
  }
  ADD_FAILURE() << status << " has no " << details.GetTypeName();
  return details;
}

TEST(RpcStatusTest, AFullQuotaNamesItsLimit) {
  const auto details = DetailsOf<google::rpc::QuotaFailure>(
      absl::ResourceExhaustedError("pinned_blocks: want 12 more, got 500 of at most 511"));
  ASSERT_EQ(details.violations_size(), 1);
  EXPECT_EQ(details.violations(0).subject(), "pinned_blocks");
  EXPECT_EQ(details.violations(0).description(), "want 12 more, got 500 of at most 511");
}

TEST(RpcStatusTest, AFailedPreconditionNamesItsSubject) {
  const auto details = DetailsOf<google::rpc::PreconditionFailure>(
      absl::FailedPreconditionError("chat: this model has no chat template"));
  ASSERT_EQ(details.violations_size(), 1);
  EXPECT_EQ(details.violations(0).type(), "STATE");
  EXPECT_EQ(details.violations(0).subject(), "chat");
  EXPECT_EQ(details.violations(0).description(), "this model has no chat template");
}

TEST(RpcStatusTest, OtherErrorsHaveAReason) {
  const auto reason = [](const absl::Status& status) {
    const auto info = DetailsOf<google::rpc::ErrorInfo>(status);
    EXPECT_EQ(info.domain(), "quire");
    return info.reason();
  };
  EXPECT_EQ(reason(absl::NotFoundError("prefix: none")), "PREFIX_NOT_FOUND");
  EXPECT_EQ(reason(absl::AlreadyExistsError("request_id: runs")), "REQUEST_ID_ALREADY_EXISTS");
  EXPECT_EQ(reason(absl::PermissionDeniedError("sched.priority: want at most 0")),
            "SCHED_PRIORITY_PERMISSION_DENIED");
  EXPECT_EQ(reason(absl::AbortedError("etag: differs")), "ETAG_ABORTED");
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
  const auto details = DetailsOf<google::rpc::RetryInfo>(engine::WithRetryAfter(
      absl::ResourceExhaustedError("tokens_per_minute: used up"), absl::Milliseconds(12'345)));
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
