#include "server/call/held_bytes.h"

#include <optional>

#include "gtest/gtest.h"

namespace quire::server {
namespace {

const engine::TenantLimits kAlone;
const engine::TenantLimits kOneOfSeveral = {.has_others = true};

TEST(HeldBytesTest, AShareIsGivenBackWhenItsCallEnds) {
  HeldBytes held(100);
  std::optional<HeldBytes::Share> first(std::in_place, held, "a", kAlone);
  HeldBytes::Share second(held, "a", kAlone);
  EXPECT_TRUE(first->Take(60).ok());
  EXPECT_TRUE(second.Take(40).ok());
  EXPECT_EQ(second.Take(1).code(), absl::StatusCode::kResourceExhausted);
  first.reset();
  EXPECT_TRUE(second.Take(60).ok());
  EXPECT_FALSE(second.Take(1).ok());
}

TEST(HeldBytesTest, OneTenantLeavesRoomToOthers) {
  HeldBytes held(100);
  HeldBytes::Share greedy(held, "greedy", kOneOfSeveral);
  EXPECT_TRUE(greedy.Take(50).ok());
  EXPECT_FALSE(greedy.Take(1).ok());
  HeldBytes::Share other(held, "other", kOneOfSeveral);
  EXPECT_TRUE(other.Take(25).ok());
  EXPECT_FALSE(other.Take(25).ok());
}

}  // namespace
}  // namespace quire::server
