#include "server/grpc/library_logs.h"

#include <string>
#include <vector>

#include <grpc/support/log.h>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

// Calls `flood` and returns what was logged.
template <typename Flood>
std::string Logged(Flood flood) {
  ::gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // as a server has it
  TakeLibraryLogs();
  ::testing::internal::CaptureStderr();
  flood();
  return ::testing::internal::GetCapturedStderr();
}

// The attack: header values that gRPC repeats in its error, of which one holds a line of a log.
TEST(LibraryLogsTest, AFloodOfAStrangersTextStaysSmallAndOneLineEach) {
  const std::string forged = "bad\n2026-01-02T03:04:05.678Z INFO rpc: Generate caller=\"root\"";
  const std::string value = forged + std::string(4000, '\x1b');
  constexpr int kCalls = 1000;
  const std::string log = Logged([&] {
    for (int i = 0; i < kCalls; ++i)
      ::gpr_log("f.cc", 7, GPR_LOG_SEVERITY_ERROR, "%s", value.c_str());
  });
  const std::vector<std::string> lines = absl::StrSplit(log, '\n', absl::SkipEmpty());
  EXPECT_LT(log.size(), kCalls * value.size() / 10);
  EXPECT_GT(lines.size(), 0u);
  EXPECT_LT(lines.size(), 100u);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, HasSubstr(" ERROR grpc: the library says text=\"bad\\n2026"));
    EXPECT_THAT(line, HasSubstr(" file=\"f.cc\" line=7"));
    EXPECT_LT(line.size(), 2200u) << "500 bytes, each of which may need four";
  }
}

TEST(LibraryLogsTest, ProtobufsLinesAreLimitedApartFromThoseOfGrpc) {
  const std::string log = Logged([] {
    for (int i = 0; i < 1000; ++i) GOOGLE_LOG(ERROR) << "not\nUTF-8";
  });
  EXPECT_THAT(log, HasSubstr(" ERROR protobuf: the library says text=\"not\\nUTF-8\""));
  EXPECT_LT(log.size(), 100u * 200);
}

}  // namespace
}  // namespace quire::server
