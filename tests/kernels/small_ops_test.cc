// Tests UpdateTable, TakeTokens, Embed, GatherRows, CopyBlocks, memory, events and the registry.

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/kernel_testing.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::I32;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;
using testing::RandomWeight;

TEST(EmbedTest, ScalesAndChecksIds) {
  const auto backend = MakeBackend("auto");
  const testing::TestWeight table = RandomWeight(WeightType::kQ5_1, 20, 64, 1);
  const auto weight = *backend->PrepareWeight({&table.view, 1});
  Owned<float> out = F32({2, 64});
  Owned<int32_t> ids = I32({2}, {19, 3});
  EmbedArgs args{.out = out.view, .token_ids = ids.view, .weight = weight.get(), .scale = 1.5f};
  ASSERT_TRUE(backend->Embed(args).ok());
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out.values[i], table.values[19 * 64 + i] * 1.5f);
    EXPECT_EQ(out.values[64 + i], table.values[3 * 64 + i] * 1.5f);
  }
  ids.values[1] = 20;
  EXPECT_THAT(std::string(backend->Embed(args).message()),
              HasSubstr("token_ids: want ids in [0, 20), got 20"));
}

TEST(TakeTokensTest, ReplacesTokensThatHaveASource) {
  const auto backend = MakeBackend("auto");
  Owned<int32_t> ids = I32({4}, {0, 1, 2, 3}), drawn = I32({2}, {70, 71});
  Owned<int32_t> sources = I32({4}, {-1, 1, 0, -1});
  const TakeTokensArgs args{.token_ids = ids.view, .drawn = drawn.view, .sources = sources.view};
  ASSERT_TRUE(backend->TakeTokens(args).ok());
  EXPECT_THAT(ids.values, ::testing::ElementsAre(0, 71, 70, 3));
  sources.values[3] = 2;
  EXPECT_THAT(std::string(backend->TakeTokens(args).message()),
              HasSubstr("sources: want -1, or tokens of 2, got 2"));
}

TEST(UpdateTableTest, WritesTheChangedEntriesAlone) {
  const auto backend = MakeBackend("auto");
  Owned<int32_t> table = I32({4}, {10, 11, 12, 13});
  Owned<int32_t> changes = I32({4, 2}, {3, 73, 1, 71, 4, 74, -1, 70});
  ASSERT_TRUE(backend->UpdateTable({.table = table.view, .changes = changes.view}).ok());
  EXPECT_THAT(table.values, ::testing::ElementsAre(10, 71, 12, 73));
}

TEST(EventTest, TheCpuHasNothingToWaitFor) {
  const auto backend = MakeBackend("auto");
  const auto event = backend->CreateEvent();
  ASSERT_TRUE(event.ok() && backend->Mark(**event).ok());
  EXPECT_TRUE(backend->Wait(**event).ok());
}

TEST(GatherRowsTest, TakesRowsInAnyOrder) {
  const auto backend = MakeBackend("auto");
  Owned<float> input = F32({4, 3}, Normal(1, 12)), out = F32({3, 3});
  Owned<int32_t> rows = I32({3}, {3, 0, 3});
  ASSERT_TRUE(backend->GatherRows({.out = out.view, .input = input.view, .rows = rows.view}).ok());
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(out.values[i], input.values[rows.values[i / 3] * 3 + i % 3]);
  }
  rows.values[2] = -1;
  const absl::Status status =
      backend->GatherRows({.out = out.view, .input = input.view, .rows = rows.view});
  EXPECT_THAT(std::string(status.message()), HasSubstr("rows: want rows in [0, 4), got -1"));
}

TEST(CopyBlocksTest, CopiesWholeBlocksAndNothingElse) {
  const auto backend = MakeBackend("auto");
  Owned<float> cache = F32({4, 256}, Normal(1, 4 * 256));
  std::vector<float> want = cache.values;
  std::copy_n(want.begin() + 256, 256, want.begin() + 3 * 256);
  const std::vector<BlockCopy> copies = {{.source = 1, .destination = 3}};
  ASSERT_TRUE(backend->CopyBlocks({.blocks = cache.view, .copies = copies}).ok());
  EXPECT_EQ(cache.values, want);
  const std::vector<BlockCopy> bad = {{.source = 4, .destination = 0}};
  EXPECT_THAT(std::string(backend->CopyBlocks({.blocks = cache.view, .copies = bad}).message()),
              HasSubstr("copies: want blocks in [0, 4), got 4"));
}

TEST(CopyBlocksTest, RefusesCopiesWhoseOrderWouldMatter) {
  const auto backend = MakeBackend("auto");
  Owned<float> cache = F32({4, 256}, Normal(1, 4 * 256));
  const std::vector<float> before = cache.values;
  const auto refusal = [&](const std::vector<BlockCopy>& copies) {
    return std::string(backend->CopyBlocks({.blocks = cache.view, .copies = copies}).message());
  };
  EXPECT_THAT(refusal({{0, 3}, {1, 2}, {1, 3}}),
              HasSubstr("copies: want each destination once, got 3 twice"));
  EXPECT_THAT(refusal({{0, 1}, {1, 2}}),
              HasSubstr("copies: want sources that are no destinations, got 1"));
  EXPECT_THAT(refusal({{1, 2}, {0, 1}}), HasSubstr("no destinations, got 1"));
  EXPECT_THAT(refusal({{2, 2}}), HasSubstr("no destinations, got 2"));
  EXPECT_EQ(cache.values, before);
  const std::vector<BlockCopy> fork = {{0, 3}, {0, 1}, {0, 2}};
  EXPECT_TRUE(backend->CopyBlocks({.blocks = cache.view, .copies = fork}).ok());
}

TEST(AllocateTest, IsZeroedAlignedAndRefusesTheAbsurd) {
  const auto backend = MakeBackend("auto");
  for (const int64_t bytes : {int64_t{0}, int64_t{5}, int64_t{5} << 20}) {
    const auto buffer = backend->Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0);
    for (int64_t i = 0; i < bytes; i += 4097) {
      ASSERT_EQ(static_cast<const char*>(buffer->data())[i], 0);
    }
  }
  EXPECT_EQ(backend->Allocate(int64_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_GT(backend->available_bytes(), 0);
}

TEST(BackendRegistryTest, SaysWhatThisBuildHas) {
  const auto message = [](const BackendOptions& options) {
    return std::string(CreateBackend(options).status().message());
  };
  EXPECT_EQ(message({.name = "gpu"}), "backend: want auto, cpu, cuda or cuda:n, got gpu");
  EXPECT_THAT(message({.cpu_isa = "sse9"}), HasSubstr("portable, got sse9"));
  EXPECT_THAT(message({.num_threads = -1}), HasSubstr("num_threads: want 0 to"));
  const auto backend = *CreateBackend({.cpu_isa = "portable", .num_threads = 3});
  EXPECT_EQ(backend->info().name, "cpu");
  EXPECT_EQ(backend->info().isa_path, "portable");
  EXPECT_EQ(backend->info().num_threads, 3);
  EXPECT_GE((*CreateBackend({}))->info().num_threads, 1);
}

}  // namespace
}  // namespace quire::kernels
