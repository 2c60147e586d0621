#include "engine/admission/running_requests.h"

#include <future>
#include <memory>
#include <optional>
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

std::shared_ptr<Request> Named(std::string name, std::string owner = "") {
  auto request = NewRequest(std::move(name), std::move(owner));
  request->params.id_is_name = true;
  return request;
}

constexpr absl::Time kNow = absl::UnixEpoch();

// A request that was inserted, and how its wait ended, if it waited.
struct Waiter {
  explicit Waiter(RunningRequests& running, std::string id = "a") : request(NewRequest(id)) {
    EXPECT_TRUE(running.Insert(request).ok());
    waits = running.Wait(*request, kNow, [this](const absl::Status& status) {
      EXPECT_FALSE(std::exchange(end, status).has_value()) << "a second end";
    });
  }

  const std::shared_ptr<Request> request;
  bool waits = false;
  std::optional<absl::Status> end;
};

TEST(RunningRequestsTest, AKeyRunsOnceAtATime) {
  RunningRequests running;
  const Waiter first(running), second(running), third(running);
  EXPECT_FALSE(first.waits);
  EXPECT_TRUE(second.waits && third.waits);
  EXPECT_EQ(running.size(), 3);
  EXPECT_TRUE(running.Erase(*first.request));
  EXPECT_FALSE(running.Erase(*first.request));
  EXPECT_EQ(second.end, absl::OkStatus());
  EXPECT_FALSE(third.end.has_value()) << "the second runs now";
  EXPECT_TRUE(running.Erase(*third.request)) << "which does not take the running one out";
  EXPECT_TRUE(running.Erase(*second.request));
  EXPECT_EQ(running.size(), 0);
  EXPECT_FALSE(Waiter(running).waits) << "the id is free again";
}

TEST(RunningRequestsTest, PatienceEndsBesideARequestThatGoesOn) {
  RunningRequests running;
  const Waiter first(running), second(running);
  const absl::Time last = kNow + RunningRequests::kPatience;
  EXPECT_EQ(running.RunTimers(last - absl::Nanoseconds(1)), last);
  EXPECT_FALSE(second.end.has_value());
  EXPECT_EQ(running.RunTimers(last), absl::InfiniteFuture());
  ASSERT_TRUE(second.end.has_value());
  EXPECT_EQ(second.end->code(), absl::StatusCode::kAlreadyExists);
}

TEST(RunningRequestsTest, ARequestThatEndsIsWaitedForUntilTheDeadline) {
  for (const bool past_deadline : {false, true}) {
    RunningRequests running;
    const Waiter first(running), second(running), third(running);
    if (past_deadline) {
      first.request->deadline = kNow;
    } else {
      first.request->cancelled = true;
    }
    third.request->cancelled = true;
    second.request->deadline = kNow + absl::Hours(1);
    EXPECT_EQ(running.RunTimers(kNow + absl::Minutes(1)), kNow + absl::Hours(1));
    EXPECT_FALSE(second.end.has_value());
    EXPECT_EQ(third.end, CancelledStatus());
    running.RunTimers(kNow + absl::Hours(1));
    EXPECT_EQ(second.end, PastDeadlineStatus());
    running.Erase(*second.request);
    const Waiter fourth(running);
    EXPECT_TRUE(fourth.waits);
    running.Erase(*first.request);
    EXPECT_FALSE(fourth.end.has_value()) << "the third was inserted before";
    running.Erase(*third.request);
    EXPECT_EQ(fourth.end, absl::OkStatus());
  }
}

TEST(RunningRequestsTest, WhoIsCancelledWaitsNoLonger) {
  RunningRequests running;
  const Waiter first(running);
  const Waiter stopped(running), aborted(running), last(running);
  running.StopWaiting(*stopped.request);
  EXPECT_EQ(stopped.end, CancelledStatus());
  EXPECT_FALSE(aborted.end.has_value());
  running.StopWaiting(*first.request);  // it does not wait
  EXPECT_EQ(running.Abort("a", "")->size(), 4u);
  EXPECT_EQ(aborted.end, CancelledStatus());
  EXPECT_EQ(last.end, CancelledStatus());
  const Waiter at_the_end(running);
  running.CancelAll();
  EXPECT_EQ(at_the_end.end, CancelledStatus());
}

TEST(RunningRequestsTest, ANameKeepsNobodyOut) {
  RunningRequests running;
  std::vector<std::shared_ptr<Request>> named;
  for (int i = 0; i < 3; ++i) {
    named.push_back(Named("a", "alice"));
    EXPECT_TRUE(running.Insert(named.back()).ok());
    EXPECT_FALSE(running.Wait(*named.back(), kNow, nullptr));
  }
  EXPECT_EQ(named[0]->id, "a");
  EXPECT_EQ(named[1]->id, "a~1");
  EXPECT_EQ(named[2]->id, "a~2");
  const auto key = NewRequest("a", "alice");
  EXPECT_TRUE(running.Insert(key).ok());
  EXPECT_EQ(key->id, "a");
  EXPECT_FALSE(running.Wait(*key, kNow, nullptr)) << "a name is no key";
  const auto late = Named("a", "alice");
  EXPECT_TRUE(running.Insert(late).ok());
  EXPECT_FALSE(running.Wait(*late, kNow, nullptr)) << "and does not wait for one";
  const auto of_bob = Named("a", "bob");
  EXPECT_TRUE(running.Insert(of_bob).ok());
  EXPECT_EQ(of_bob->id, "a");

  EXPECT_TRUE(running.Erase(*named[0]));
  EXPECT_EQ(running.size(), 5);
  EXPECT_THAT(*running.Abort("a~2", "alice"), ::testing::ElementsAre(named[2]));
  EXPECT_FALSE(named[1]->cancelled);
  EXPECT_FALSE(running.Abort("a~2", "bob").ok());
  EXPECT_FALSE(running.Abort("a~9", "alice").ok());
  EXPECT_THAT(*running.Abort("a", "alice"), ::testing::ElementsAre(named[1], named[2], key, late));
  EXPECT_FALSE(of_bob->cancelled);
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

TEST(RunningRequestsTest, AKeyIsKnownAmongItsOwners) {
  RunningRequests running;
  const auto of_alice = NewRequest("a", "alice");
  const auto of_bob = NewRequest("a", "bob");
  const auto longer = NewRequest("ab", "alice");
  for (const auto& request : {of_alice, of_bob, longer}) EXPECT_TRUE(running.Insert(request).ok());
  EXPECT_TRUE(running.Abort("a", "bob").ok());
  EXPECT_TRUE(of_bob->cancelled);
  EXPECT_FALSE(of_alice->cancelled);
  running.Erase(*of_bob);
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
        const auto shared = i % 2 == 0 ? NewRequest("shared") : Named("shared");
        EXPECT_TRUE(running.Insert(own).ok());
        EXPECT_TRUE(running.Insert(shared).ok());
        auto ended = std::make_shared<std::promise<void>>();  // throws when it is set twice
        const bool waits =
            running.Wait(*shared, kNow, [ended](const absl::Status&) { ended->set_value(); });
        EXPECT_TRUE(running.Abort(own->params.request_id, "").ok());
        EXPECT_TRUE(own->cancelled);
        running.CancelAll();
        // The thread that cancels first makes the call, which may be another thread.
        if (waits) ended->get_future().wait();
        running.Erase(*shared);
        running.Erase(*own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(running.size(), 0);
}

}  // namespace
}  // namespace quire::engine
