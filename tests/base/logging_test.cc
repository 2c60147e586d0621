// Tests logging when stderr is a pipe. Covers whole lines, both formats, and a reader that stops.

#include "base/logging.h"

#include <fcntl.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/check.h"
#include "base/json.h"

namespace quire::base {
namespace {

using ::testing::HasSubstr;

// Replaces stderr by a pipe until Restore is called or the StderrPipe is destroyed. Nothing reads
// the pipe before ReadAll is called.
class StderrPipe {
 public:
  StderrPipe() : saved_(::dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read_end_ = ends[0];
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    ::fcntl(read_end_, F_SETPIPE_SZ, 4096);
  }
  ~StderrPipe() {
    Restore();
    ::close(read_end_);
    ::close(saved_);
  }

  // Restores stderr. This closes the write end of the pipe, so that ReadAll reaches the end.
  void Restore() { ::dup2(saved_, STDERR_FILENO); }
  std::string ReadAll() {
    ::fcntl(read_end_, F_SETPIPE_SZ,
            1 << 20);  // so that reading is quick, however busy the machine
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(read_end_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  const int saved_;
  int read_end_ = -1;
};

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines = absl::StrSplit(std::string(text), '\n');
  EXPECT_EQ(lines.back(), "") << "a line was cut";
  lines.pop_back();
  return lines;
}

std::string Logged(LogFormat format) {
  StderrPipe pipe;
  SetLogFormat(format);
  Log(LogLevel::kInfo, "room", "it \"said\"", {{"text", "a\n\xff\"b"}, {"count", -3}});
  Log(LogLevel::kDebug, "room", "not enabled");
  SetLogFormat(LogFormat::kText);
  pipe.Restore();
  return pipe.ReadAll();
}

TEST(LoggingTest, ALineOfText) {
  const std::string line = Logged(LogFormat::kText);
  EXPECT_THAT(line, ::testing::MatchesRegex("[-0-9]+T[0-9:.]+Z INFO room: it \"said\" .*\n"));
  EXPECT_TRUE(absl::EndsWith(line, " text=\"a\\n\\xff\\\"b\" count=-3\n")) << line;
}

TEST(LoggingTest, ALineOfJson) {
  const std::string line = Logged(LogFormat::kJson);
  const auto json = ParseJson(line, "line");
  ASSERT_TRUE(json.ok()) << line;
  EXPECT_EQ(Lines(line).size(), 1u);
  EXPECT_EQ((*json)["level"], "INFO");
  EXPECT_EQ((*json)["component"], "room");
  EXPECT_EQ((*json)["message"], "it \"said\"");
  EXPECT_EQ((*json)["text"], "a\n\uFFFD\"b");
  EXPECT_EQ((*json)["count"], -3);
}

// All 256 bytes, and characters of Unicode that end a line or begin a terminal's command.
std::string Hostile() {
  std::string text = "\u0085\u009b31m\u2028\u202e";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  return text;
}

TEST(LoggingTest, NoTextMakesASecondLine) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    StderrPipe pipe;
    std::string text;
    std::thread reader([&] { text = pipe.ReadAll(); });
    SetLogFormat(format);
    LogLimit limit;
    Log(LogLevel::kInfo, "room", Hostile(), {{"text", Hostile()}});
    LogLimited(limit, absl::UnixEpoch(), LogLevel::kInfo, "room", Hostile(), {{"text", Hostile()}});
    SetLogFormat(LogFormat::kText);
    pipe.Restore();
    reader.join();
    const std::vector<std::string> lines = Lines(text);
    EXPECT_EQ(lines.size(), 2u);
    for (const std::string& line : lines) {
      for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << static_cast<int>(c);
      if (format == LogFormat::kJson) {
        const auto json = ParseJson(line, "line");
        ASSERT_TRUE(json.ok()) << line;
        EXPECT_EQ((*json)["message"], (*json)["text"]);
      }
    }
  }
}

TEST(LoggingTest, LastWordsKeepToTheFormat) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    StderrPipe pipe;
    SetLogFormat(format);
    LogLastWords("no \"model\"");
    SetLogFormat(LogFormat::kText);
    pipe.Restore();
    const std::string text = pipe.ReadAll();
    if (format == LogFormat::kText) {
      EXPECT_EQ(text, "no \"model\"\n");
      continue;
    }
    const auto json = ParseJson(text, "line");
    ASSERT_TRUE(json.ok()) << text;
    EXPECT_EQ((*json)["level"], "ERROR");
    EXPECT_EQ((*json)["error"], "no \"model\"");
  }
}

TEST(LogLimitTest, TakesTenLinesASecondAndCountsTheRest) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  LogLimit limit;
  for (int64_t i = 0; i < LogLimit::kMaxLines; ++i) EXPECT_EQ(limit.Take(start), 0);
  EXPECT_EQ(limit.Take(start), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 2);
  for (int64_t i = 1; i < LogLimit::kMaxLines; ++i) {
    EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 0);
  }
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), std::nullopt);
}

TEST(LogLimitTest, TheNextLineTellsHowManyWereLeftOut) {
  StderrPipe pipe;
  LogLimit limit;
  const absl::Time start = absl::FromUnixSeconds(1000);
  const auto log = [&](absl::Time now, LogLevel level = LogLevel::kInfo) {
    LogLimited(limit, now, level, "room", "flood", {{"n", 1}});
  };
  for (int i = 0; i < 1000; ++i) log(start, LogLevel::kDebug);  // not enabled, so not counted
  for (int i = 0; i < 1000; ++i) log(start);
  log(start + absl::Seconds(1));
  log(start + absl::Seconds(1));
  pipe.Restore();
  const std::vector<std::string> lines = Lines(pipe.ReadAll());
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_TRUE(absl::EndsWith(lines[9], "flood n=1")) << lines[9];
  EXPECT_TRUE(absl::EndsWith(lines[10], "flood n=1 lines_left_out=990")) << lines[10];
  EXPECT_TRUE(absl::EndsWith(lines[11], "flood n=1")) << lines[11];
}

TEST(LogThreadTest, EveryLineComesWholeAndInItsThreadsOrder) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  StderrPipe pipe;
  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  {
    LogThread log;
    std::vector<std::thread> writers;
    for (int t = 0; t < kThreads; ++t) {
      writers.emplace_back([t] {
        for (int i = 0; i < kLines; ++i) {
          Log(LogLevel::kInfo, "t", absl::StrCat(t), {{"i", i}, {"pad", std::string(i % 50, 'x')}});
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  pipe.Restore();
  reader.join();
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : Lines(text)) {
    const size_t at = line.find(" INFO t: ");
    ASSERT_NE(at, std::string::npos) << line;
    const int t = line[at + 9] - '0';
    EXPECT_THAT(line, HasSubstr(absl::StrCat(" i=", next[t]++, " pad=\"")));
  }
  EXPECT_EQ(next, std::vector<int>(kThreads, kLines));
}

TEST(LogThreadTest, WhatNobodyReadsIsDroppedAndCounted) {
  constexpr int kLines = 30000;  // about three times what the queue holds
  const int64_t dropped_before = NumLogLinesDropped();
  StderrPipe pipe;
  auto log = std::make_unique<LogThread>();
  const std::string padding(80, 'x');
  for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "t", "unread", {{"pad", padding}});
  const int64_t dropped = NumLogLinesDropped() - dropped_before;
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, kLines);

  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  log.reset();
  pipe.Restore();
  reader.join();
  int64_t unread = 0;
  int64_t reported = 0;
  for (const std::string& line : Lines(text)) {
    if (absl::StrContains(line, "t: unread")) {
      ++unread;
    } else {
      int64_t lines = 0;
      EXPECT_THAT(line, HasSubstr("WARNING log: lines dropped"));
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(line.rfind('=') + 1), &lines)) << line;
      reported += lines;
    }
  }
  EXPECT_EQ(reported, dropped);
  EXPECT_EQ(unread + dropped, kLines);
}

// Each child process must end although nobody reads its log. The first child calls _Exit after its
// LogThread has given up waiting for a reader. The second child aborts.
TEST(LogThreadDeathTest, TheEndOfTheProcessWaitsForNoReader) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fill = [] {
    for (int i = 0; i < 1000; ++i)
      Log(LogLevel::kInfo, "t", "unread", {{"pad", "xxxxxxxxxxxxxxx"}});
  };
  EXPECT_EXIT(
      {
        auto pipe = std::make_unique<StderrPipe>();
        {
          LogThread log;
          fill();
        }
        std::_Exit(3);
      },
      ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(
      {
        auto pipe = std::make_unique<StderrPipe>();
        LogThread log;
        fill();
        QUIRE_CHECK(false);
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

TEST(LogThreadDeathTest, LastWordsStandBehindWhatWasLogged) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        LogThread log;
        Log(LogLevel::kInfo, "t", "before");
        QUIRE_CHECK(1 == 2) << "for a test";
      },
      "t: before\n.*logging_test.cc:[0-9]+: check failed: 1 == 2 for a test\n");
}

}  // namespace
}  // namespace quire::base
