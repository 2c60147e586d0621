#include "engine/sharing/context_table.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

struct Record : Context {};
using Table = ContextTable<Record>;
using Ptr = Table::Ptr;

int Pick(int low, int high) { return *rc::gen::resize(100, rc::gen::inRange(low, high + 1)); }

Ptr NewRecord(const std::string& tenant, const std::string& request_id = "") {
  auto record = std::make_shared<Record>();
  record->tenant = tenant;
  record->request_id = request_id;
  return record;
}

// The table as a list that is searched.
struct Naive {
  std::vector<Ptr> all;  // in the order of creation
  absl::Time now;

  Ptr FindRequest(const std::string& tenant, const std::string& id) const {
    Ptr found;  // the last one, if an hour has passed since the first
    for (const Ptr& record : all) {
      if (record->tenant == tenant && record->request_id == id) found = record;
    }
    return found != nullptr && now < found->request_end ? found : nullptr;
  }
  absl::Time NextTimer() const {
    absl::Time next = absl::InfiniteFuture();
    for (const Ptr& record : all) next = std::min(next, record->timer);
    return next;
  }
};

TEST(ContextTableTest, IsAListThatIsSearched) {
  int num_found = 0, num_forgotten = 0, num_due = 0, num_called = 0, num_pages = 0;
  EXPECT_TRUE(rc::check([&] {
    testing::FakeClock clock;
    int num_earlier = 0;
    Table table(clock,
                {.collection = "things", .most = 1000, .first_pin = 7, .on_earlier_timer = [&] {
                   ++num_earlier;
                 }});
    Naive naive{.all = {}, .now = clock.Now()};
    const auto tenant = [] { return std::string(1, static_cast<char>('a' + Pick(0, 1))); };
    const auto id = [] { return std::string(1, static_cast<char>('r' + Pick(0, 1))); };
    const auto any = [&] { return naive.all[Pick(0, static_cast<int>(naive.all.size()) - 1)]; };
    const auto erase = [&](const Ptr& record) {
      table.Remove(record);
      std::erase(naive.all, record);
      RC_ASSERT(table.Find(record->name) == nullptr);
      RC_ASSERT(table.FindPin(record->pin_id) == nullptr);
    };
    for (int i = Pick(0, 60); i > 0; --i) {
      const int operation = Pick(0, 9);
      if (naive.all.empty() || operation < 3) {
        const std::string owner = tenant(), request = Pick(0, 1) == 0 ? id() : "";
        const Ptr known = request.empty() ? nullptr : naive.FindRequest(owner, request);
        RC_ASSERT(table.FindRequest(owner, request) == known);
        num_found += known != nullptr ? 1 : 0;
        if (known != nullptr) continue;
        const Ptr added = NewRecord(owner, request);
        const absl::Time before = clock.Date();
        table.AddNew(added);
        const uint64_t last = naive.all.empty() ? 6 : naive.all.back()->pin_id;
        RC_ASSERT(added->pin_id > last);
        RC_ASSERT(added->create_wall >= before && added->create_wall <= clock.Date());
        naive.all.push_back(added);
      } else if (operation < 4) {
        erase(any());
      } else if (operation < 7) {
        const absl::Time time =
            Pick(0, 4) == 0 ? absl::InfiniteFuture() : naive.now + absl::Minutes(Pick(0, 60));
        const Ptr record = any();
        const bool is_earliest =
            time != absl::InfiniteFuture() && std::ranges::all_of(naive.all, [&](const Ptr& other) {
              return other == record || time < other->timer;
            });
        const int before = num_earlier;
        table.SetTimer(*record, time);
        if (is_earliest) RC_ASSERT(num_earlier == before + 1);
        num_called += num_earlier - before;
        RC_ASSERT(table.next_timer() == naive.NextTimer());
      } else if (operation < 8) {
        clock.Advance(absl::Minutes(Pick(0, 40)));
        naive.now = clock.Now();
        while (const Ptr due = table.TakeDue(naive.now)) {
          ++num_due;
          RC_ASSERT(due->timer == absl::InfiniteFuture());
          if (Pick(0, 1) == 0) erase(due);
        }
        RC_ASSERT(naive.NextTimer() > naive.now);
      } else {
        const std::string owner = tenant();
        const int at_most = Pick(1, 4);
        std::vector<Ptr> listed, expected;
        uint64_t after = 0;
        do {
          const Table::Page page = table.List(
              after, at_most, [&](const Record& record) { return record.tenant == owner; });
          RC_ASSERT(std::ssize(page.records) <= at_most);
          RC_ASSERT(page.next == 0 || std::ssize(page.records) == at_most);
          listed.insert(listed.end(), page.records.begin(), page.records.end());
          after = page.next;
          ++num_pages;
        } while (after != 0);
        for (const Ptr& record : naive.all) {
          if (record->tenant == owner) expected.push_back(record);
        }
        RC_ASSERT(listed == expected);
        RC_ASSERT(table.num_of(owner) == std::ssize(expected));
      }
      for (const Ptr& record : naive.all) {
        RC_ASSERT(table.Find(record->name) == record);
        RC_ASSERT(table.FindPin(record->pin_id) == record);
        if (record->request_id.empty()) continue;
        const Ptr known = naive.FindRequest(record->tenant, record->request_id);
        RC_ASSERT(table.FindRequest(record->tenant, record->request_id) == known);
        num_forgotten += known == nullptr ? 1 : 0;
      }
      RC_ASSERT(table.records().size() == naive.all.size());
      RC_ASSERT(table.next_timer() == naive.NextTimer());
    }
  }));
  EXPECT_GT(num_found, 10);
  EXPECT_GT(num_forgotten, 10);
  EXPECT_GT(num_due, 10);
  EXPECT_GT(num_called, 10);
  EXPECT_GT(num_pages, 100);
}

TEST(ContextTableTest, ARequestIdFindsNoMoreThanIsThere) {
  testing::FakeClock clock;
  Table table(clock, {.collection = "things", .most = 10});
  const Ptr first = NewRecord("a", "r");
  table.AddNew(first);
  clock.Advance(kRequestIdKept);
  EXPECT_EQ(table.FindRequest("a", "r"), nullptr);
  const Ptr second = NewRecord("a", "r");
  table.AddNew(second);
  table.Remove(first);
  EXPECT_EQ(table.FindRequest("a", "r"), second) << "the end of an earlier one takes nothing";
  table.Remove(second);
  EXPECT_EQ(table.FindRequest("a", "r"), nullptr);
}

TEST(ContextTableTest, WhatIsKnownFromAnEarlierRunKeepsItsTime) {
  testing::FakeClock clock;
  Table table(clock, {.collection = "things", .most = 10});
  for (const auto left : {absl::Minutes(-1), absl::ZeroDuration(), absl::Minutes(1)}) {
    const Ptr record = NewRecord("a", "r");
    record->pin_id = 3;
    record->name = "things/x";
    table.Add(record, left);
    EXPECT_EQ(table.FindRequest("a", "r"), left > absl::ZeroDuration() ? record : nullptr) << left;
    clock.Advance(absl::Minutes(1));
    EXPECT_EQ(table.FindRequest("a", "r"), nullptr);
    EXPECT_EQ(table.Find("things/x"), record);
    table.Remove(record);
  }
  table.set_next_pin(4);
  const Ptr next = NewRecord("a");
  table.AddNew(next);
  EXPECT_EQ(next->pin_id, 4u);
}

// The clock goes on while timers are taken.
TEST(ContextTableTest, ATimerThatIsSetAnewIsNotDueAgain) {
  testing::FakeClock clock;
  Table table(clock, {.collection = "things", .most = 2});
  const Ptr record = NewRecord("a");
  table.AddNew(record);
  table.SetTimer(*record, clock.Now());
  const absl::Time now = clock.Now();
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(table.TakeDue(now), record);
  table.SetTimer(*record, now + absl::Seconds(1));
  EXPECT_EQ(table.TakeDue(now), nullptr);
}

TEST(ContextTableTest, RoomIsCountedAtItsEdge) {
  testing::FakeClock clock;
  Table table(clock, {.collection = "things", .most = 2});
  EXPECT_TRUE(table.CheckRoom("things", "a", {}, 2).ok());
  EXPECT_EQ(table.CheckRoom("things", "a", {}, 3).code(), absl::StatusCode::kResourceExhausted);
  const Ptr record = NewRecord("b");
  table.AddNew(record);
  EXPECT_EQ(table.CheckRoom("things", "a", {}, 2).code(), absl::StatusCode::kResourceExhausted);
  table.Remove(record);
  EXPECT_TRUE(table.CheckRoom("things", "a", {}, 2).ok());
}

TEST(ContextTableTest, AnEtagStandsForOneVersionOfOneContext) {
  Record record;
  record.pin_id = 31;
  record.version = 2;
  EXPECT_EQ(record.etag(), "1f-2");
  EXPECT_TRUE(CheckEtag(record, "").ok());
  EXPECT_TRUE(CheckEtag(record, "1f-2").ok());
  for (const char* other : {"1f-1", "1f-3", "1e-2", "1f-22", "-"}) {
    EXPECT_EQ(CheckEtag(record, other).code(), absl::StatusCode::kAborted) << other;
  }
}

TEST(ContextTableTest, OnlyOperatorsListWhatAnotherTenantHas) {
  EXPECT_TRUE(CheckMayList({.tenant = "a"}, "a").ok());
  EXPECT_TRUE(CheckMayList({.tenant = "a", .is_operator = true}, "b").ok());
  EXPECT_EQ(CheckMayList({.tenant = "a"}, "b").code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace quire::engine
