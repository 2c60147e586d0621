#include "engine/admission/step_channel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
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

void Admit(StepChannel& channel, std::shared_ptr<Request> request) {
  channel.Admit({.request = std::move(request), .ticket = {}});
}

const std::string& IdOf(const StepCommand& command) {
  return std::get<AdmittedRequest>(command).request->params.request_id;
}

// Returns a command whose answer goes to `answer`.
FlushCommand Flush(std::optional<absl::StatusOr<int64_t>>& answer) {
  return {.done = Completion<int64_t>([&answer](absl::StatusOr<int64_t> result) {
            EXPECT_FALSE(answer.has_value()) << "answered twice";
            answer = std::move(result);
          })};
}

// Moves the queued commands to `commands`. Returns the requests that were given to Notice and still
// exist.
std::vector<std::shared_ptr<const Request>> Drain(StepChannel& channel,
                                                  std::vector<StepCommand>& commands) {
  std::vector<std::shared_ptr<const Request>> noticed;
  channel.Drain(commands, noticed);
  return noticed;
}

TEST(StepChannelTest, HandsRequestsOverInOrder) {
  StepChannel channel;
  for (const char* id : {"a", "b", "c"}) Admit(channel, NewRequest(id));
  EXPECT_TRUE(channel.WaitForWork(kLong));
  std::vector<StepCommand> commands;
  Drain(channel, commands);
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(IdOf(commands[0]), "a");
  EXPECT_EQ(IdOf(commands[2]), "c");
  EXPECT_FALSE(channel.WaitForWork(absl::ZeroDuration())) << "nothing is left";
}

TEST(StepChannelTest, KeepsTheOrderOfRequestsAndCommands) {
  StepChannel channel;
  std::optional<absl::StatusOr<int64_t>> answer;
  Admit(channel, NewRequest("before"));
  channel.Send(Flush(answer));
  Admit(channel, NewRequest("after"));
  std::vector<StepCommand> commands;
  Drain(channel, commands);
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(IdOf(commands[0]), "before");
  std::move(std::get<FlushCommand>(commands[1]).done)(5);
  EXPECT_EQ(IdOf(commands[2]), "after");
  EXPECT_THAT(answer, ::testing::Optional(absl::StatusOr<int64_t>(5)));
}

TEST(StepChannelTest, AFullChannelRefusesCommandsAlone) {
  StepChannel channel(/*max_commands=*/2);
  std::optional<absl::StatusOr<int64_t>> answers[4];
  for (auto& answer : {&answers[0], &answers[1], &answers[2]}) channel.Send(Flush(*answer));
  EXPECT_FALSE(answers[0].has_value());
  EXPECT_FALSE(answers[1].has_value());
  ASSERT_TRUE(answers[2].has_value());
  EXPECT_EQ(answers[2]->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(answers[2]->status().message()), HasSubstr("2 commands"));

  const std::shared_ptr<Request> cancelled = NewRequest("cancelled");
  channel.Notice(cancelled);
  Admit(channel, NewRequest("request"));
  std::vector<StepCommand> commands;
  EXPECT_THAT(Drain(channel, commands), ::testing::ElementsAre(cancelled));
  ASSERT_EQ(commands.size(), 3u);

  answers[2].reset();
  channel.Send(Flush(answers[2]));
  EXPECT_TRUE(answers[2].has_value()) << "a command has its place until it is complete";
  commands.clear();
  channel.Send(Flush(answers[3]));
  EXPECT_FALSE(answers[3].has_value());
  Drain(channel, commands);
  EXPECT_EQ(commands.size(), 1u);
}

TEST(StepChannelTest, ACommandThatIsDroppedIsAnswered) {
  std::optional<absl::StatusOr<int64_t>> queued;
  std::optional<absl::StatusOr<int64_t>> taken;
  {
    StepChannel channel;
    std::vector<StepCommand> commands;
    channel.Send(Flush(taken));
    Drain(channel, commands);
    channel.Send(Flush(queued));
  }
  for (const auto& answer : {queued, taken}) {
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(StepChannelTest, AWakeIsKeptForTheNextWait) {
  StepChannel channel;
  channel.Wake();
  channel.Wake();
  EXPECT_TRUE(channel.WaitForWork(kLong));
  EXPECT_FALSE(channel.WaitForWork(absl::ZeroDuration())) << "several are one";
  EXPECT_FALSE(channel.WaitForWork(absl::Milliseconds(1)));
  EXPECT_FALSE(channel.WaitForWork(-absl::InfiniteDuration()));
  Admit(channel, NewRequest("a"));
  EXPECT_TRUE(channel.WaitForWork(absl::InfiniteDuration()));
  EXPECT_TRUE(channel.WaitForWork(absl::InfiniteDuration())) << "until it is drained";
}

TEST(StepChannelTest, ANoticeWakesAndIsDroppedWithItsRequest) {
  StepChannel channel;
  const std::shared_ptr<Request> alive = NewRequest("alive");
  channel.Notice(NewRequest("gone"));
  channel.Notice(alive);
  EXPECT_TRUE(channel.WaitForWork(kLong));
  std::vector<StepCommand> commands;
  EXPECT_THAT(Drain(channel, commands), ::testing::ElementsAre(alive));
  EXPECT_TRUE(commands.empty());
  EXPECT_FALSE(channel.WaitForWork(absl::ZeroDuration()));
}

// Without a wake-up, a sleeping step thread finds new work only after kWait. All rounds together
// must take less than half of kWait.
TEST(StepChannelTest, WakesASleepingStepThread) {
  constexpr absl::Duration kWait = absl::Seconds(4);
  StepChannel channel;
  std::atomic<bool> stopping = false;
  std::counting_semaphore<> looked{0};
  std::thread step_thread([&] {
    while (!stopping) {
      channel.WaitForWork(kWait);
      std::vector<StepCommand> commands;
      Drain(channel, commands);
      looked.release();
    }
  });
  absl::Duration waited;
  for (int round = 0; round < 10 && waited < kWait / 2; ++round) {
    absl::SleepFor(absl::Milliseconds(2));  // gives the step thread time to fall asleep
    const absl::Time begin = absl::Now();
    if (round % 2 == 0) {
      Admit(channel, NewRequest("a"));
    } else {
      channel.Wake();
    }
    looked.acquire();
    waited += absl::Now() - begin;
  }
  EXPECT_LT(waited, kWait / 2);
  stopping = true;
  channel.Wake();
  step_thread.join();
}

// Many producers push requests. The step thread starts them in batches, so requests wait for it. No
// request is lost, and at most max_queue requests wait at any time.
TEST(StepChannelTest, ManyProducersLoseNothing) {
  constexpr int kProducers = 4;
  constexpr int kEach = 500;
  constexpr int kMaxQueue = 16;
  AdmissionTickets tickets(kMaxQueue);
  StepChannel channel;
  std::atomic<int> num_accepted = 0;
  std::atomic<int> num_refused = 0;
  std::atomic<int> num_done = 0;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        absl::StatusOr<AdmissionTicket> ticket = tickets.Reserve();
        if (!ticket.ok()) {
          ++num_refused;
          continue;
        }
        channel.Admit(
            {.request = NewRequest(std::to_string(p * kEach + i)), .ticket = *std::move(ticket)});
        ++num_accepted;
      }
      ++num_done;
      channel.Wake();
    });
  }
  int num_seen = 0;
  int64_t most_waiting = 0;
  std::vector<StepCommand> in_scheduler;
  for (bool last = false; !last;) {
    last = num_done == kProducers;  // read before Drain, so that the last Drain sees every request
    if (!last) {
      EXPECT_TRUE(channel.WaitForWork(kLong));
    }
    Drain(channel, in_scheduler);
    most_waiting = std::max(most_waiting, tickets.num_waiting());
    if (in_scheduler.size() >= kMaxQueue / 2 || last) {
      num_seen += static_cast<int>(in_scheduler.size());
      in_scheduler.clear();
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(num_seen, num_accepted.load());
  EXPECT_EQ(num_accepted + num_refused, kProducers * kEach);
  EXPECT_LE(most_waiting, kMaxQueue);
  EXPECT_EQ(tickets.num_waiting(), 0);
}

}  // namespace
}  // namespace quire::engine
