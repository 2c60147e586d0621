#include "client/top_screen.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TopLook ALook() {
  TopLook look;
  look.model = "SmolLM2";
  look.info.set_backend("cpu");
  look.info.set_isa_path("avx512");
  look.stats.mutable_queue()->set_num_running(32);
  look.stats.mutable_queue()->set_num_waiting(5);
  look.stats.mutable_blocks()->set_total(1000);
  look.stats.mutable_blocks()->set_held(410);
  look.stats.mutable_blocks()->set_cached(300);
  look.stats.mutable_blocks()->set_free(290);
  look.stats.mutable_tokens()->set_generated(1000);
  look.stats.mutable_sequences()->set_steps(100);
  return look;
}

std::vector<std::string> Lines(const std::string& screen) {
  EXPECT_THAT(screen, EndsWith("\n"));
  std::vector<std::string> lines = absl::StrSplit(screen, '\n');
  lines.pop_back();
  return lines;
}

TEST(TopScreenTest, RatesAreThoseSinceTheLookBefore) {
  TopScreen screen;
  TopLook look = ALook();
  EXPECT_THAT(Lines(screen.Draw(look, 0, {}))[1], HasSubstr("    0 generated"));
  look.stats.mutable_tokens()->set_generated(1000 + 824);
  look.stats.mutable_tokens()->set_prompt_cached(16420);
  look.stats.mutable_sequences()->set_steps(100 + 100);
  const std::vector<std::string> lines = Lines(screen.Draw(look, 2, {.columns = 100, .rows = 24}));
  EXPECT_EQ(lines[0], "SmolLM2   cpu avx512   step 20.0 ms   32 running   5 waiting");
  EXPECT_EQ(lines[4], "requests  TTFT -  hit rate 100% (100%)  0 preempted  0 refused");
  EXPECT_EQ(lines[1], "tokens/s    412 generated      0 of prompts  8.21k cached  █");
  look.stats.mutable_tokens()->set_generated(1000 + 824 + 412);
  EXPECT_THAT(Lines(screen.Draw(look, 2, {.columns = 100, .rows = 24}))[1], EndsWith("  █▅"));
  look.stats.mutable_tokens()->set_generated(3);  // the server has started anew
  EXPECT_THAT(Lines(screen.Draw(look, 2, {.columns = 100, .rows = 24}))[1], EndsWith("  █▅▁"));
}

TEST(TopScreenTest, RequestsHaveWhatCameSinceTheLookBeforeAndAll) {
  TopScreen screen;
  TopLook look = ALook();
  look.stats.mutable_latency()->set_first_tokens(10);
  look.stats.mutable_latency()->set_ttft_seconds(20);
  look.stats.mutable_tokens()->set_prompt_computed(300);
  look.stats.mutable_tokens()->set_prompt_cached(100);
  const auto requests = [&] { return Lines(screen.Draw(look, 1, {}))[4]; };
  EXPECT_THAT(requests(), StartsWith("requests  TTFT - (2.0 s)  hit rate - (25%)  "));
  look.stats.mutable_latency()->set_first_tokens(12);
  look.stats.mutable_latency()->set_ttft_seconds(20.5);
  look.stats.mutable_tokens()->set_prompt_computed(310);
  look.stats.mutable_tokens()->set_prompt_cached(190);
  EXPECT_THAT(requests(), StartsWith("requests  TTFT 250 ms (1.7 s)  hit rate 90% (38%)  "));
  EXPECT_THAT(requests(), StartsWith("requests  TTFT - (1.7 s)  hit rate - (38%)  "));
  look = ALook();  // the server has started anew
  look.stats.mutable_sequences()->set_steps(1);
  EXPECT_THAT(requests(), StartsWith("requests  TTFT -  hit rate -  "));
}

TEST(TopScreenTest, EightyColumnsHaveAll) {
  TopLook look = ALook();
  look.model = std::string(100, 'm');
  look.stats.mutable_blocks()->set_pinned(170);
  look.cache.add_cells()->set_shared(120);
  look.stats.mutable_tokens()->set_generated(1'860'000);
  look.stats.mutable_tokens()->set_prompt_computed(1'860'000'000);
  look.stats.mutable_tokens()->set_prompt_cached(18'600'000);
  look.stats.mutable_latency()->set_first_tokens(1000);
  look.stats.mutable_latency()->set_ttft_seconds(12345);
  look.stats.mutable_sequences()->set_preemptions(123'456);
  look.stats.mutable_sequences()->set_requests_rejected(123'456);
  v1::CachePrefix& prefix = *look.cache.add_prefixes();
  prefix.set_name(std::string(60, 'p'));
  prefix.set_tenant(std::string(60, 't'));
  prefix.set_num_tokens(123'456);
  prefix.set_hits(123'456);
  prefix.set_saved_tokens(123'456'789);
  prefix.set_expires_in_seconds(86'399);
  v1::Tenant& tenant = *look.tenants.add_tenants();
  tenant.set_name(std::string(60, 't'));
  tenant.set_num_requests(12'345);
  tenant.set_requests_per_minute(123'456);
  tenant.set_requests_left(123'456);
  tenant.set_tokens_per_minute(123'456'789);
  tenant.set_tokens_left(-123'456'789);
  tenant.set_accepted_requests(123'456'789);
  tenant.set_refused_requests(123'456'789);
  tenant.set_served_tokens(123'456'789'000);
  TopScreen narrow, wide;
  const auto narrow_lines = Lines(narrow.Draw(look, 0, {}));
  const auto wide_lines = Lines(wide.Draw(look, 0, {.columns = 200, .rows = 24}));
  ASSERT_EQ(narrow_lines.size(), wide_lines.size());
  for (size_t i = 0; i < narrow_lines.size(); ++i) {
    if (i == 2) continue;  // the bar of blocks fills the screen
    EXPECT_EQ(narrow_lines[i], wide_lines[i]);
  }
  EXPECT_THAT(narrow_lines[2], EndsWith("  shared 12%"));
}

TEST(TopScreenTest, TheBarIsSharedOutAsTheBlocksAre) {
  TopScreen screen;
  TopLook look = ALook();
  EXPECT_EQ(Lines(screen.Draw(look, 0, {.columns = 83, .rows = 24}))[2],
            "blocks    ████████▒▒▒▒▒▒░░░░░░  held 41%  pinned 0%  cached 30%  free 29%  of 1.00k");
  look.stats.mutable_blocks()->set_held(1);
  look.stats.mutable_blocks()->set_cached(0);
  look.stats.mutable_blocks()->set_free(999);
  EXPECT_THAT(Lines(screen.Draw(look, 0, {.columns = 72, .rows = 24}))[2],
              StartsWith("blocks    █░░░"));
}

TEST(TopScreenTest, PrefixesHaveTheirUsersAndEnd) {
  TopScreen screen;
  TopLook look = ALook();
  look.stats.mutable_blocks()->set_pinned(170);
  v1::CachePrefix& prefix = *look.cache.add_prefixes();
  prefix.set_name("prefixes/x");
  prefix.set_display_name("support\x1b[2J\nprompt");
  prefix.set_tenant("acme");
  prefix.set_num_tokens(2048);
  prefix.set_hits(912);
  prefix.set_saved_tokens(1'860'000);
  prefix.set_expires_in_seconds(42 * 60 + 5);
  for (const char* tenant : {"acme", ""}) {
    v1::CacheUser& user = *prefix.add_users();
    user.set_tenant(tenant);
    user.set_num_sequences(9);
  }
  const std::vector<std::string> lines = Lines(screen.Draw(look, 0, {.columns = 100, .rows = 24}));
  EXPECT_THAT(lines[2], HasSubstr("  held 24%  pinned 17%  cached 30%  free 29%  of 1.00k"));
  EXPECT_EQ(lines[7],
            "support?[2J?prompt   acme           2.05k    912  1.86M  acme 9, (all ca 42m");
}

TEST(TopScreenTest, NoScreenIsLargerThanTheTerminal) {
  for (const int columns : {1, 20, 80, 300}) {
    for (const int rows : {0, 1, 5, 24}) {
      TopScreen screen;
      TopLook look = ALook();
      for (int i = 0; i < 50; ++i) {
        look.cache.add_prefixes()->set_display_name(std::string(100, 'y'));
      }
      for (int i = 0; i < 50; ++i) look.tenants.add_tenants()->set_name(std::string(100, 'x'));
      for (int i = 0; i < 100; ++i) {
        look.stats.mutable_tokens()->set_generated(1000u + 10u * static_cast<uint32_t>(i));
        const std::vector<std::string> lines =
            Lines(screen.Draw(look, 1, {.columns = columns, .rows = rows}));
        ASSERT_LE(lines.size(), std::max(1, rows));
        for (const std::string& line : lines) {
          int width = 0;
          for (const char c : line) width += (c & 0xc0) != 0x80 ? 1 : 0;
          ASSERT_LE(width, columns) << line;
        }
      }
    }
  }
}

TEST(TopScreenTest, TenantsComeByTheTokensThatTheyWereServed) {
  TopScreen screen;
  TopLook look = ALook();
  look.tenants.add_tenants()->set_served_tokens(5);
  v1::Tenant& most = *look.tenants.add_tenants();
  most.set_name("é\x1b[2Jacme");
  most.set_served_tokens(1'860'000);
  most.set_tokens_per_minute(100000);
  most.set_tokens_left(-3);
  const std::vector<std::string> lines = Lines(screen.Draw(look, 0, {.columns = 100, .rows = 24}));
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[7],
            "é?[2Jacme                0            -      -3/100k        0       0   1.86M");
  EXPECT_THAT(lines[8], StartsWith("(all callers)   "));
}

}  // namespace
}  // namespace quire::client
