// Tests the GPU benchmark on this build's device: its measurements, its report, and that it notices
// a wrong result.

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "bench/gpu/attention_bench.h"
#include "bench/gpu/bench_case.h"
#include "bench/gpu/bench_device.h"
#include "bench/gpu/stream.h"
#include "bench/gpu/suites.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/quant/float16.h"

namespace quire::bench {
namespace {

using kernels::DeviceBuffer;
using kernels::DType;
using kernels::cuda::Device;
using quire::kernels::cuda::ForwardingDevice;
using ::testing::Contains;
using ::testing::HasSubstr;

BenchOptions TinyOptions() {
  BenchOptions options;
  options.size = Size::kTiny;
  options.measure.repeats = 2;
  options.measure.flush_bytes = 1 << 12;
  return options;
}

// Lets `meddle` change the bytes of one copy to the host.
class MeddlingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  std::function<void(uint16_t* elements, int64_t count)> meddle;  // called once

  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    const absl::Status status = ForwardingDevice::CopyToHost(destination, source, bytes);
    if (auto once = std::exchange(meddle, nullptr); once && status.ok()) {
      EXPECT_TRUE(Synchronize().ok());
      once(static_cast<uint16_t*>(destination), bytes / 2);
    }
    return status;
  }
};

class GpuBenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = MakeBenchDevice();
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = *std::move(device);
  }
  std::vector<Row> Run(const BenchOptions& options) {
    std::vector<Row> rows;
    const absl::Status status =
        RunSuites(*device_, options, [&](const Row& row) { rows.push_back(row); });
    EXPECT_TRUE(status.ok()) << status.ToString();
    return rows;
  }

  std::unique_ptr<Device> device_;
};

TEST(GpuBenchCaseTest, WorkIsWhatTheShapeMakesIt) {
  AttentionCase decode = {.suite = "decode",
                          .context_lens = std::vector<int32_t>(64, 8192),
                          .query_lens = std::vector<int32_t>(64, 1)};
  EXPECT_EQ(Name(decode), "decode 64x8192 32/8 d128 bs16");
  // K and V: 2 * 64 * 8192 tokens * 8 heads * 128 elements * 2 bytes. Queries and outputs: 2 * 64
  // tokens * 32 heads * 128 elements * 2 bytes.
  EXPECT_EQ(WorkOf(decode).bytes, 2147483648.0 + 64 * 32 * 128 * 2 * 2);
  EXPECT_EQ(WorkOf(decode).flops, 4.0 * 64 * 8192 * 32 * 128);
  EXPECT_EQ(KvBytes(decode), int64_t{64} * 8192 * 2 * 8 * 128 * 2);
  decode.fp8 = true;
  EXPECT_EQ(Name(decode), "decode 64x8192 32/8 d128 bs16 fp8");
  EXPECT_EQ(WorkOf(decode).bytes, 1073741824.0 + 64 * 32 * 128 * 2 * 2);
  EXPECT_EQ(KvBytes(decode), int64_t{64} * 8192 * 2 * 8 * 128);
  decode.layers = 32;
  EXPECT_EQ(Name(decode), "decode 64x8192 32/8 d128 bs16 fp8 of 32 layers");
  EXPECT_EQ(KvBytes(decode), int64_t{64} * 8192 * 2 * 8 * 128 * 32);
  decode.apart = true;
  EXPECT_EQ(Name(decode), "decode 64x8192 32/8 d128 bs16 fp8 of 32 layers apart");
  EXPECT_EQ(WorkOf(decode).bytes, 1073741824.0 + 64 * 32 * 128 * 2 * 2);

  AttentionCase ragged = {.suite = "ragged",
                          .context_lens = {512, 512, 20},
                          .query_lens = {1, 1, 3},
                          .block_size = 64,
                          .alibi = true};
  EXPECT_EQ(Name(ragged), "ragged 2x512+1x3@20 32/8 d128 bs64 alibi");
  // The three queries of the last sequence see 18, 19 and 20 keys.
  EXPECT_EQ(WorkOf(ragged).flops, 4.0 * (512 + 512 + 57) * 32 * 128);
  EXPECT_EQ(NumBlocks(ragged), 17);

  // Units of 16 sequences with 4 heads each read the prefix: 20 sequences have two.
  AttentionCase forks = {.suite = "shared",
                         .context_lens = std::vector<int32_t>(20, 4352),
                         .query_lens = std::vector<int32_t>(20, 1),
                         .prefix = 4096};
  EXPECT_EQ(Name(forks), "shared 20x4352 32/8 d128 bs16 prefix 4096");
  const Work alone = WorkOf(forks);
  forks.together = true;
  EXPECT_EQ(Name(forks), "shared 20x4352 32/8 d128 bs16 prefix 4096 together");
  EXPECT_EQ(WorkOf(forks).flops, alone.flops);
  EXPECT_EQ(alone.bytes - WorkOf(forks).bytes, 18.0 * 4096 * 8 * 128 * 2 * 2);
}

// The farthest head of 32 has a slope of 2^-8, and the nearest one of 2^-0.25.
TEST(GpuBenchCaseTest, DecodesThatSkipReadTheKeysWithinTheHorizonOfTheirHeads) {
  AttentionCase c = {.suite = "skip",
                     .context_lens = std::vector<int32_t>(64, 32768),
                     .query_lens = std::vector<int32_t>(64, 1),
                     .num_kv_heads = 32,
                     .alibi = true};
  EXPECT_EQ(Name(c), "skip 64x32768 32/32 d128 bs16 alibi");
  const double all = WorkOf(c).bytes;
  c.skips = true;
  EXPECT_EQ(Name(c), "skip 64x32768 32/32 d128 bs16 alibi skipping");
  // Scores are at most 12 * sqrt(128 / 3) * 0.75 in magnitude.
  const double horizon = 2 * 12 * std::sqrt(128.0 / 3) * 0.75 + 24 * std::log(2.0);
  double keys = 0.0;
  for (int head = 1; head <= 32; ++head) {
    keys += std::min(32768.0, horizon * std::exp2(head / 4.0));
  }
  EXPECT_NEAR(WorkOf(c).bytes / all, keys / 32 / 32768, 1e-3);
  EXPECT_NEAR(keys / 32 / 32768, 0.21, 0.01);
}

TEST(GpuBenchCaseTest, PredictionsFollowWhicheverCeilingBinds) {
  const Ceilings ceilings = {.read = 100.0, .copy = 90.0, .gemm = 1000.0};
  const Expectation expectation = {.of_read = 0.5, .of_gemm = 0.25, .launch_seconds = 0.5};
  EXPECT_DOUBLE_EQ(PredictedSeconds({.bytes = 100.0, .flops = 100.0}, ceilings, expectation), 2.5);
  EXPECT_DOUBLE_EQ(PredictedSeconds({.bytes = 1.0, .flops = 1000.0}, ceilings, expectation), 4.5);
  EXPECT_DOUBLE_EQ(FloorSeconds({.bytes = 1.0, .flops = 1000.0}, ceilings), 1.0);
}

TEST(GpuBenchCaseTest, TheFullMatrixHasEveryShapeOnceWithAndWithoutAlibi) {
  std::set<std::string> names;
  size_t count = 0;
  for (const AttentionGroup& group : AttentionGroups(Size::kFull)) {
    for (const AttentionCase& c : group) {
      names.insert(Name(c));
      ++count;
      ASSERT_EQ(c.context_lens.size(), c.query_lens.size());
    }
  }
  EXPECT_EQ(names.size(), count);
  for (const char* heads : {"32/8", "28/4", "32/32", "32/1"}) {
    for (const char* block : {"16", "32", "64"}) {
      for (const char* alibi : {"", " alibi"}) {
        const std::string tail = absl::StrCat(" ", heads, " d128 bs", block, alibi);
        for (const char* batch : {"1", "8", "64", "256"}) {
          for (const char* context : {"1024", "8192", "32768"}) {
            EXPECT_THAT(names, Contains(absl::StrCat("decode ", batch, "x", context, tail)));
            EXPECT_THAT(names, Contains(absl::StrCat("decode ", batch, "x", context, " ", heads,
                                                     " d128 bs16 fp8")));
          }
        }
        EXPECT_THAT(names, Contains(absl::StrCat("ragged 63x512+1x131072", tail)));
      }
    }
    EXPECT_THAT(names, Contains(absl::StrCat("prefill 1x8192@8192 ", heads, " d128 bs16 alibi")));
  }
  EXPECT_THAT(names, Contains("shared 16x4352 32/8 d128 bs16 prefix 4096"));
  EXPECT_THAT(names, Contains("shared 16x4352 32/8 d128 bs16 prefix 4096 together"));
  EXPECT_THAT(names, Contains("skip 64x8192 32/32 d128 bs16 alibi"));
  EXPECT_THAT(names, Contains("skip 64x8192 32/32 d128 bs16 alibi skipping"));
  for (const char* shape : {"1x1024@1024", "1x8192@8192", "1x32768@32768", "1x512@8192"}) {
    EXPECT_THAT(names, Contains(absl::StrCat("prefill ", shape, " 32/8 d128 bs16")));
    EXPECT_THAT(names, Contains(absl::StrCat("prefill ", shape, " 32/8 d128 bs16 alibi")));
  }
}

TEST_F(GpuBenchTest, MeasuresEverySuiteAndComparesWhatItMeasures) {
  const std::vector<Row> rows = Run(TinyOptions());
  std::map<std::string, int> measured;
  for (const Row& row : rows) {
    if (LeftOut(row.status)) {
      EXPECT_EQ(row.status.message(), "the plan cuts nothing");
      continue;
    }
    ASSERT_TRUE(row.status.ok()) << row.name << ": " << row.status.ToString();
    ++measured[row.suite];
    EXPECT_EQ(row.seconds.size(), 2u) << row.name;
    EXPECT_GT(row.predicted_seconds, 0.0) << row.name;
    EXPECT_GT(row.floor_seconds, 0.0) << row.name;
    const nlohmann::ordered_json json = ToJson(row);
    EXPECT_EQ(json["type"], "row");
    EXPECT_GT(json["median_us"], 0.0);
    if (!row.more.contains("error_of_bound")) continue;
    EXPECT_LE(row.more["error_of_bound"], 1.0) << row.name;
    EXPECT_GT(row.more["plan_us"], 0.0) << row.name;
    // The error bound is about 0.02. If all outputs were that small, an output of zeros would meet
    // the bound.
    EXPECT_GT(row.more["largest_output"], 0.2) << row.name;
    if (row.suite == "ragged") {
      EXPECT_GT(row.more["merges"], 0);
    }
  }
  EXPECT_EQ(measured["ceilings"], 3);
  for (const std::string& suite : kAllSuites) EXPECT_GT(measured[suite], 0) << suite;
}

TEST_F(GpuBenchTest, SeesAnOutputThatIsNanOrOff) {
  MeddlingDevice device(*device_);
  const auto stopwatch = *Stopwatch::Create(device, TinyOptions().measure);
  AttentionBench bench(device, *stopwatch, kAssumedH200);
  const AttentionCase c = AttentionGroups(Size::kTiny).front().front();
  device.meddle = [](uint16_t* elements, int64_t) { elements[3] = 0x7fff; };
  EXPECT_EQ(bench.Run({c})[0].status.message(), "element 3 is NaN");
  device.meddle = [](uint16_t* elements, int64_t count) {
    uint16_t& last = elements[count - 1];
    last = kernels::F32ToBf16(kernels::Bf16ToF32(last) + 0.1f);
  };
  const Row row = bench.Run({c})[0];
  EXPECT_THAT(std::string(row.status.message()), HasSubstr("what rounding may do"));
  EXPECT_EQ(ToJson(row)["type"], "failed");
  EXPECT_TRUE(bench.Run({c})[0].status.ok());
}

TEST_F(GpuBenchTest, BeginsNothingAfterItsTime) {
  BenchOptions options = TinyOptions();
  options.seconds = 1e-9;
  for (const Row& row : Run(options)) {
    if (row.suite == "ceilings") continue;
    EXPECT_TRUE(LeftOut(row.status)) << row.name;
    EXPECT_THAT(std::string(row.status.message()), HasSubstr("s are over"));
    EXPECT_EQ(ToJson(row)["type"], "skipped");
  }
}

TEST_F(GpuBenchTest, FiltersCasesAndRefusesUnknownSuites) {
  BenchOptions options = TinyOptions();
  options.suites = {"decode"};
  options.filter = "bs32 alibi";
  const std::vector<Row> rows = Run(options);
  ASSERT_EQ(rows.size(), 4u);  // three ceilings and one decode
  EXPECT_EQ(rows[3].name, "decode 3x70 4/2 d64 bs32 alibi");
  // The filter leaves out all cases of the ops before.
  options.suites = {"linear"};
  options.filter = "moe 4/2 Q8_0 M=1";
  const std::vector<Row> mixtures = Run(options);
  ASSERT_EQ(mixtures.size(), 4u);
  EXPECT_TRUE(mixtures[3].status.ok()) << mixtures[3].status;
  options.suites = {"decodes"};
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("got decodes"));
}

TEST_F(GpuBenchTest, ServesTheCasesThatItIsAskedFor) {
  std::istringstream in(
      "decode 3x70 4/2 d64 bs16\ndecode 3x70 4/2 d64 bs16\nprefill 1x8@100 4/2 d64 bs16 "
      "alibi\nno\n");
  std::ostringstream out;
  ASSERT_TRUE(Serve(*device_, TinyOptions(), in, out).ok());
  std::istringstream lines(out.str());
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["name"], "decode 3x70 4/2 d64 bs16");
  EXPECT_EQ(rows[0]["samples"], 2);
  EXPECT_EQ(rows[1]["type"], "row");
  EXPECT_FALSE(rows[1].contains("error_of_bound"));  // the case was prepared for the first line
  EXPECT_EQ(rows[2]["alibi"], true);
  EXPECT_EQ(rows[3]["type"], "failed");
  EXPECT_EQ(rows[3]["reason"], "there is no case no");
}

TEST_F(GpuBenchTest, RandomNumbersStayWithinTheirAmplitudeAndFollowTheSeed) {
  constexpr int64_t kCount = 5000;
  const auto fill = [&](uint32_t seed) {
    const DeviceBuffer buffer = *device_->Allocate(kCount * 2);
    EXPECT_TRUE(FillRandom(*device_, buffer.data(), DType::kBF16, kCount, 4.0f, seed).ok());
    std::vector<uint16_t> bits(kCount);
    EXPECT_TRUE(device_->CopyToHost(bits.data(), buffer.data(), kCount * 2).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return bits;
  };
  const std::vector<uint16_t> bits = fill(1);
  double sum = 0.0, squares = 0.0;
  for (const uint16_t b : bits) {
    const double x = kernels::Bf16ToF32(b);
    ASSERT_LE(std::abs(x), 4.0);
    sum += x;
    squares += x * x;
  }
  // The numbers are uniform in (-4, 4), so their mean is 0 and the mean of their squares is 16 / 3.
  // Each estimate may be off by four of its standard deviations.
  EXPECT_NEAR(sum / kCount, 0.0, 4 * std::sqrt(16.0 / 3 / kCount));
  EXPECT_NEAR(squares / kCount, 16.0 / 3, 4 * std::sqrt(256.0 * 4 / 45 / kCount));
  EXPECT_EQ(fill(1), bits);
  EXPECT_NE(fill(2), bits);
}

TEST_F(GpuBenchTest, ReadsEveryWord) {
  // The number of 16-byte vectors exceeds the number of threads in the grid, and is not a multiple
  // of that number.
  constexpr int64_t kWords = 4 * 150'001;
  constexpr uint32_t kSeen = 0x12345678;  // a word with these bits makes the kernel write `sink`
  const DeviceBuffer data = *device_->Allocate(kWords * 4), sink = *device_->Allocate(4);
  for (const int64_t at : {int64_t{0}, int64_t{5}, kWords / 2, kWords - 1}) {
    uint32_t found = 0;
    ASSERT_TRUE(device_->Fill(data.data(), 0, data.bytes()).ok());
    ASSERT_TRUE(device_->Fill(sink.data(), 0, 4).ok());
    ASSERT_TRUE(device_->CopyToDevice(static_cast<uint32_t*>(data.data()) + at, &kSeen, 4).ok());
    ASSERT_TRUE(ReadAll(*device_, data.data(), data.bytes(), sink.data()).ok());
    ASSERT_TRUE(device_->CopyToHost(&found, sink.data(), 4).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(found, kSeen) << "word " << at;
  }
}

}  // namespace
}  // namespace quire::bench
