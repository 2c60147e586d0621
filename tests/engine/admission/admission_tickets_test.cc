#include "engine/admission/admission_tickets.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

TEST(AdmissionTicketsTest, ATicketIsAPlaceUntilItIsReleased) {
  AdmissionTickets tickets(2);
  AdmissionTicket first = *tickets.Reserve();
  AdmissionTicket second = *tickets.Reserve();
  EXPECT_EQ(tickets.num_waiting(), 2);
  const absl::Status full = tickets.Reserve().status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("2 requests"));
  first.Release();
  first.Release();
  EXPECT_EQ(tickets.num_waiting(), 1);
  EXPECT_TRUE(tickets.Reserve().ok());
}

TEST(AdmissionTicketsTest, ATenantWaitsWithinItsLimit) {
  AdmissionTickets tickets(8);
  const TenantLimits limits{.max_waiting = 2};
  std::vector<AdmissionTicket> taken;
  for (int i = 0; i < 2; ++i) taken.push_back(*tickets.Reserve("a", limits));
  const absl::Status refused = tickets.Reserve("a", limits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 requests of this tenant"));
  EXPECT_TRUE(tickets.Reserve("b", limits).ok());
  taken.pop_back();
  EXPECT_TRUE(tickets.Reserve("a", limits).ok());
}

TEST(AdmissionTicketsTest, HoweverManyTenantsFillItTheNextFindsAPlace) {
  AdmissionTickets tickets(64);
  std::vector<AdmissionTicket> taken;
  const auto fill = [&](std::string_view tenant, int32_t share) {
    const TenantLimits limits{.share = share, .leaves_room = true};
    int count = 0;
    for (auto ticket = tickets.Reserve(tenant, limits); ticket.ok();
         ticket = tickets.Reserve(tenant, limits)) {
      taken.push_back(*std::move(ticket));
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
  taken.clear();
  EXPECT_EQ(fill("a", 1), 32);
}

TEST(AdmissionTicketsTest, TicketsMoveWithoutCountingTwice) {
  AdmissionTickets tickets(4);
  AdmissionTicket a = *tickets.Reserve();
  AdmissionTicket b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: moved from
  EXPECT_TRUE(b);
  EXPECT_EQ(tickets.num_waiting(), 1);
  AdmissionTicket c = *tickets.Reserve();
  EXPECT_EQ(tickets.num_waiting(), 2);
  c = std::move(b);
  EXPECT_EQ(tickets.num_waiting(), 1);
}

TEST(AdmissionTicketsTest, DrainingRefusesNewTicketsOnly) {
  AdmissionTickets tickets(4);
  const AdmissionTicket ticket = *tickets.Reserve();
  tickets.StartDrain();
  EXPECT_TRUE(tickets.draining());
  EXPECT_EQ(tickets.Reserve().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tickets.num_waiting(), 1);
}

}  // namespace
}  // namespace quire::engine
