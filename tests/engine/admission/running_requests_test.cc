#include "engine/admission/running_requests.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

std::shared_ptr<Request> NewRequest(std::string id, std::string owner = "") {
  auto request = std::make_shared<Request>();
  request->params.request_id = std::move(id);
  request->params.owner = std::move(owner);
  return request;
}

TEST(RunningRequestsTest, AnIdRunsOnceAtATime) {
  RunningRequests running;
  const auto first = NewRequest("a");
  EXPECT_TRUE(running.Insert(first).ok());
  const auto second = NewRequest("a");
  EXPECT_EQ(running.Insert(second).code(), absl::StatusCode::kAlreadyExists);
  running.Erase(*second);
  EXPECT_EQ(running.size(), 1) << "the refused one does not take the running one out";
  running.Erase(*first);
  running.Erase(*first);
  EXPECT_EQ(running.size(), 0);
  EXPECT_TRUE(running.Insert(second).ok()) << "the id is free again";
}

TEST(RunningRequestsTest, AbortsOnlyTheOwnersOwn) {
  RunningRequests running;
  const auto request = NewRequest("a", "alice");
  ASSERT_TRUE(running.Insert(request).ok());
  const absl::Status of_another = running.Abort("a", "bob").status();
  const absl::Status of_nobody = running.Abort("b", "bob").status();
  EXPECT_EQ(of_another.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(of_nobody.code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(request->cancelled);
  EXPECT_THAT(*running.Abort("a", "alice"), ::testing::ElementsAre(request));
  EXPECT_TRUE(request->cancelled);
  EXPECT_TRUE(running.Abort("a", "alice").ok()) << "until it has finished";
  running.Erase(*request);
  EXPECT_EQ(running.Abort("a", "alice").status().code(), absl::StatusCode::kNotFound);
}

TEST(RunningRequestsTest, WhatIsSaidOfAnothersIdIsWhatIsSaidOfNone) {
  RunningRequests running;
  ASSERT_TRUE(running.Insert(NewRequest("a", "alice")).ok());
  const absl::Status of_another = running.Abort("a", "bob").status();
  RunningRequests none;
  EXPECT_EQ(of_another, none.Abort("a", "bob").status());
}

TEST(RunningRequestsTest, AnIdIsKnownAmongItsOwners) {
  RunningRequests running;
  const auto of_alice = NewRequest("a", "alice");
  const auto of_bob = NewRequest("a", "bob");
  const auto longer = NewRequest("ab", "alice");
  for (const auto& request : {of_alice, of_bob, longer}) EXPECT_TRUE(running.Insert(request).ok());
  EXPECT_TRUE(running.Abort("a", "bob").ok());
  EXPECT_TRUE(of_bob->cancelled);
  EXPECT_FALSE(of_alice->cancelled);
  running.Erase(*of_bob);
  EXPECT_EQ(running.Insert(NewRequest("a", "alice")).code(), absl::StatusCode::kAlreadyExists);
}

TEST(RunningRequestsTest, WithoutAnOwnerAbortMeansEverybodys) {
  RunningRequests running;
  const auto of_alice = NewRequest("a", "alice");
  const auto of_bob = NewRequest("a", "bob");
  const auto longer = NewRequest("ab", "alice");
  for (const auto& request : {of_alice, of_bob, longer}) EXPECT_TRUE(running.Insert(request).ok());
  EXPECT_TRUE(running.Abort("a", std::nullopt).ok());
  EXPECT_TRUE(of_alice->cancelled && of_bob->cancelled);
  EXPECT_FALSE(longer->cancelled);
  EXPECT_EQ(running.Abort("b", std::nullopt).status().code(), absl::StatusCode::kNotFound);
}

TEST(RunningRequestsTest, CancelAllReachesEveryOne) {
  RunningRequests running;
  const auto a = NewRequest("a");
  const auto b = NewRequest("b", "owner");
  ASSERT_TRUE(running.Insert(a).ok());
  ASSERT_TRUE(running.Insert(b).ok());
  running.CancelAll();
  EXPECT_TRUE(a->cancelled);
  EXPECT_TRUE(b->cancelled);
}

TEST(RunningRequestsTest, TakeAllLeavesNone) {
  RunningRequests running;
  const auto a = NewRequest("a");
  const auto b = NewRequest("b", "owner");
  ASSERT_TRUE(running.Insert(a).ok());
  ASSERT_TRUE(running.Insert(b).ok());
  EXPECT_THAT(running.TakeAll(), ::testing::UnorderedElementsAre(a, b));
  EXPECT_TRUE(running.WaitUntilIdle(absl::ZeroDuration()));
  EXPECT_FALSE(running.Erase(*a));
  EXPECT_EQ(running.Insert(a).code(), absl::StatusCode::kUnavailable);
}

TEST(RunningRequestsTest, ServesManyThreads) {
  RunningRequests running;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&running, t] {
      for (int i = 0; i < 300; ++i) {
        const auto own = NewRequest("own" + std::to_string(t));
        const auto shared = NewRequest("shared");
        EXPECT_TRUE(running.Insert(own).ok());
        const bool inserted = running.Insert(shared).ok();
        EXPECT_TRUE(running.Abort(own->params.request_id, "").ok());
        EXPECT_TRUE(own->cancelled);
        running.CancelAll();
        if (inserted) running.Erase(*shared);
        running.Erase(*own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(running.size(), 0);
}

}  // namespace
}  // namespace quire::engine
