#include "engine/admission/admission_queue.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

// A timeout that only a failing test reaches.
constexpr absl::Duration kLong = absl::Seconds(10);

std::shared_ptr<Request> NewRequest(std::string id) {
  auto request = std::make_shared<Request>();
  request->params.request_id = std::move(id);
  return request;
}

absl::Status ReserveAndPush(AdmissionQueue& queue, std::shared_ptr<Request> request) {
  absl::StatusOr<AdmissionTicket> ticket = queue.Reserve();
  if (ticket.ok()) queue.Push(std::move(request), *std::move(ticket));
  return ticket.status();
}

// Moves the queued requests to `admitted`. Returns the living requests that Notice has named.
std::vector<std::shared_ptr<const Request>> Drain(AdmissionQueue& queue,
                                                  std::vector<AdmittedRequest>& admitted) {
  std::vector<std::shared_ptr<const Request>> noticed;
  queue.Drain(admitted, noticed);
  return noticed;
}

TEST(AdmissionQueueTest, HandsRequestsOverInOrder) {
  AdmissionQueue queue(8);
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(ReserveAndPush(queue, NewRequest(id)).ok());
  EXPECT_TRUE(queue.WaitForWork(kLong));
  std::vector<AdmittedRequest> admitted;
  Drain(queue, admitted);
  ASSERT_EQ(admitted.size(), 3u);
  EXPECT_EQ(admitted[0].request->params.request_id, "a");
  EXPECT_EQ(admitted[2].request->params.request_id, "c");
  EXPECT_FALSE(queue.WaitForWork(absl::ZeroDuration())) << "nothing is left";
}

TEST(AdmissionQueueTest, CountsWhatWaitsInTheFrontendAndTheSchedulerToo) {
  AdmissionQueue queue(2);
  absl::StatusOr<AdmissionTicket> in_frontend = queue.Reserve();
  ASSERT_TRUE(in_frontend.ok());
  ASSERT_TRUE(ReserveAndPush(queue, NewRequest("queued")).ok());
  EXPECT_EQ(queue.num_waiting(), 2);
  const absl::Status full = ReserveAndPush(queue, NewRequest("refused"));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("2 requests"));

  std::vector<AdmittedRequest> in_scheduler;
  Drain(queue, in_scheduler);
  ASSERT_EQ(in_scheduler.size(), 1u);
  EXPECT_FALSE(queue.Reserve().ok()) << "it has not run yet";
  in_scheduler[0].ticket.Release();
  in_scheduler[0].ticket.Release();
  EXPECT_EQ(queue.num_waiting(), 1);
  EXPECT_TRUE(queue.Reserve().ok());

  queue.Push(NewRequest("late"), *std::move(in_frontend));
  in_scheduler.clear();
  Drain(queue, in_scheduler);
  ASSERT_EQ(in_scheduler.size(), 1u) << "a ticket's request is never refused";
  in_scheduler.clear();
  EXPECT_EQ(queue.num_waiting(), 0) << "a request that ends gives its place back";
}

TEST(AdmissionQueueTest, ATenantWaitsWithinItsLimit) {
  AdmissionQueue queue(8);
  const TenantLimits limits{.max_waiting = 2};
  std::vector<AdmissionTicket> tickets;
  for (int i = 0; i < 2; ++i) tickets.push_back(*queue.Reserve("a", limits));
  const absl::Status refused = queue.Reserve("a", limits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 requests of this tenant"));
  EXPECT_TRUE(queue.Reserve("b", limits).ok());
  tickets.pop_back();
  EXPECT_TRUE(queue.Reserve("a", limits).ok());
}

TEST(AdmissionQueueTest, HoweverManyTenantsFillItTheNextFindsAPlace) {
  AdmissionQueue queue(64);
  std::vector<AdmissionTicket> tickets;
  const auto fill = [&](std::string_view tenant, int32_t share) {
    const TenantLimits limits{.share = share, .leaves_room = true};
    int count = 0;
    for (auto ticket = queue.Reserve(tenant, limits); ticket.ok();
         ticket = queue.Reserve(tenant, limits)) {
      tickets.push_back(*std::move(ticket));
      ++count;
    }
    return count;
  };
  EXPECT_EQ(fill("a", 1), 32);  // "a" takes as many places as it leaves free
  EXPECT_EQ(fill("b", 1), 16);
  EXPECT_EQ(fill("c", 3), 12);  // "c" takes three places for each that it leaves free
  EXPECT_EQ(fill("d", 1), 2);
  EXPECT_EQ(fill("a", 1), 0);
  EXPECT_EQ(fill("e", 1), 1);
  tickets.clear();
  EXPECT_EQ(fill("a", 1), 32);
}

TEST(AdmissionQueueTest, TicketsMoveWithoutCountingTwice) {
  AdmissionQueue queue(4);
  AdmissionTicket a = *queue.Reserve();
  AdmissionTicket b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: moved from
  EXPECT_TRUE(b);
  EXPECT_EQ(queue.num_waiting(), 1);
  AdmissionTicket c = *queue.Reserve();
  EXPECT_EQ(queue.num_waiting(), 2);
  c = std::move(b);
  EXPECT_EQ(queue.num_waiting(), 1);
}

TEST(AdmissionQueueTest, DrainingRefusesNewTicketsOnly) {
  AdmissionQueue queue(4);
  AdmissionTicket ticket = *queue.Reserve();
  queue.StartDrain();
  EXPECT_TRUE(queue.draining());
  EXPECT_EQ(queue.Reserve().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReserveAndPush(queue, NewRequest("late")).code(), absl::StatusCode::kUnavailable);
  queue.Push(NewRequest("early"), std::move(ticket));
  std::vector<AdmittedRequest> admitted;
  Drain(queue, admitted);
  EXPECT_EQ(admitted.size(), 1u);
}

TEST(AdmissionQueueTest, AWakeIsKeptForTheNextWait) {
  AdmissionQueue queue(4);
  queue.Wake();
  queue.Wake();
  EXPECT_TRUE(queue.WaitForWork(kLong));
  EXPECT_FALSE(queue.WaitForWork(absl::ZeroDuration())) << "several are one";
  EXPECT_FALSE(queue.WaitForWork(absl::Milliseconds(1)));
  EXPECT_FALSE(queue.WaitForWork(-absl::InfiniteDuration()));
  EXPECT_TRUE(ReserveAndPush(queue, NewRequest("a")).ok());
  EXPECT_TRUE(queue.WaitForWork(absl::InfiniteDuration()));
  EXPECT_TRUE(queue.WaitForWork(absl::InfiniteDuration())) << "until it is drained";
}

TEST(AdmissionQueueTest, ANoticeWakesAndIsDroppedWithItsRequest) {
  AdmissionQueue queue(4);
  const std::shared_ptr<Request> alive = NewRequest("alive");
  queue.Notice(NewRequest("gone"));
  queue.Notice(alive);
  EXPECT_TRUE(queue.WaitForWork(kLong));
  std::vector<AdmittedRequest> admitted;
  EXPECT_THAT(Drain(queue, admitted), ::testing::ElementsAre(alive));
  EXPECT_TRUE(admitted.empty());
  EXPECT_FALSE(queue.WaitForWork(absl::ZeroDuration()));
}

// A step thread that nobody wakes would find work only when a wait of kWait ends. All rounds
// together must take less than half of kWait.
TEST(AdmissionQueueTest, WakesASleepingStepThread) {
  constexpr absl::Duration kWait = absl::Seconds(4);
  AdmissionQueue queue(4);
  std::atomic<bool> stopping = false;
  std::counting_semaphore<> looked{0};
  std::thread step_thread([&] {
    while (!stopping) {
      queue.WaitForWork(kWait);
      std::vector<AdmittedRequest> admitted;
      Drain(queue, admitted);
      looked.release();
    }
  });
  absl::Duration waited;
  for (int round = 0; round < 10 && waited < kWait / 2; ++round) {
    absl::SleepFor(absl::Milliseconds(2));  // gives the step thread time to fall asleep
    const absl::Time begin = absl::Now();
    if (round % 2 == 0) {
      EXPECT_TRUE(ReserveAndPush(queue, NewRequest("a")).ok());
    } else {
      queue.Wake();
    }
    looked.acquire();
    waited += absl::Now() - begin;
  }
  EXPECT_LT(waited, kWait / 2);
  stopping = true;
  queue.Wake();
  step_thread.join();
}

// Many producers push requests, and one step thread takes them late. No request is lost, and at
// most max_queue requests wait at any time.
TEST(AdmissionQueueTest, ManyProducersLoseNothing) {
  constexpr int kProducers = 4;
  constexpr int kEach = 500;
  constexpr int kMaxQueue = 16;
  AdmissionQueue queue(kMaxQueue);
  std::atomic<int> num_accepted = 0;
  std::atomic<int> num_refused = 0;
  std::atomic<int> num_done = 0;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        absl::StatusOr<AdmissionTicket> ticket = queue.Reserve();
        if (!ticket.ok()) {
          ++num_refused;
          continue;
        }
        queue.Push(NewRequest(std::to_string(p * kEach + i)), *std::move(ticket));
        ++num_accepted;
      }
      ++num_done;
      queue.Wake();
    });
  }
  int num_seen = 0;
  int64_t most_waiting = 0;
  std::vector<AdmittedRequest> in_scheduler;
  for (bool last = false; !last;) {
    last = num_done == kProducers;  // read before Drain, so that the last Drain sees every request
    if (!last) {
      EXPECT_TRUE(queue.WaitForWork(kLong));
    }
    Drain(queue, in_scheduler);
    most_waiting = std::max(most_waiting, queue.num_waiting());
    if (in_scheduler.size() >= kMaxQueue / 2 || last) {
      num_seen += static_cast<int>(in_scheduler.size());
      in_scheduler.clear();
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(num_seen, num_accepted.load());
  EXPECT_EQ(num_accepted + num_refused, kProducers * kEach);
  EXPECT_LE(most_waiting, kMaxQueue);
  EXPECT_EQ(queue.num_waiting(), 0);
}

}  // namespace
}  // namespace quire::engine
