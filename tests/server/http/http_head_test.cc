#include "server/http/http_head.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kProbe =
    "GET /livez HTTP/1.1\r\nHost: 10.0.0.1:8101\r\nUser-Agent: kube-probe/1.30\r\n\r\n";

TEST(HttpHeadTest, NothingIsSaidBeforeItIsWhole) {
  for (size_t size = 0; size < kProbe.size(); ++size) {
    EXPECT_FALSE(ParseHttpHead(kProbe.substr(0, size)).complete) << size;
  }
  const HttpHead head = ParseHttpHead(kProbe);
  EXPECT_TRUE(head.complete);
  EXPECT_EQ(head.error, 0);
  EXPECT_EQ(head.path, "/livez");
  EXPECT_FALSE(head.is_head);
}

TEST(HttpHeadTest, TakesGetAndHeadOfBothVersionsWithAnyFields) {
  EXPECT_EQ(ParseHttpHead("GET / HTTP/1.0\r\n\r\n").path, "/");
  EXPECT_EQ(ParseHttpHead("GET /metrics?name[]=up HTTP/1.1\r\n\r\n").path, "/metrics");
  EXPECT_TRUE(ParseHttpHead("HEAD /readyz HTTP/1.1\r\nA:\r\nB: c: d\t\xc3\xa9\r\n\r\n").is_head);
  EXPECT_EQ(ParseHttpHead("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n").path, "/a");
}

TEST(HttpHeadTest, RefusesTheRestWithItsStatus) {
  const auto error = [](std::string_view bytes) {
    const HttpHead head = ParseHttpHead(bytes);
    EXPECT_TRUE(head.complete) << bytes;
    return head.error;
  };
  EXPECT_EQ(error("POST /livez HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(error("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(error("GET /livez\r\n\r\n"), 400);
  EXPECT_EQ(error("GET  HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(error("GET /a b HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(error("GET http://a/livez HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(error("G(T / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(error("\r\n\r\n"), 400);
  EXPECT_EQ(error("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(error("GET / HTTP/1.1\r\n folded: x\r\n\r\n"), 400);
  EXPECT_EQ(error("GET / HTTP/1.1\r\n: x\r\n\r\n"), 400);
  EXPECT_EQ(error("PUT / HTTP/1.1\r\n\r\r\n\r\n"), 400);
  // A wrong line end, or TLS on this port, is refused before the rest of the head has come.
  EXPECT_EQ(error("GET / HTTP/1.1\nHost"), 400);
  EXPECT_EQ(error("GET / HTTP/1.1\rHost"), 400);
  EXPECT_EQ(error(std::string_view("\x16\x03\x01\x00", 4)), 400);
}

TEST(HttpHeadTest, TheLargestHeadHasItsBound) {
  const std::string begin = "GET / HTTP/1.1\r\nA: ";
  const std::string fits = begin + std::string(kMaxHttpHeadBytes - begin.size() - 4, 'x');
  EXPECT_FALSE(ParseHttpHead(fits).complete);
  EXPECT_EQ(ParseHttpHead(fits + "\r\n\r\n").error, 0);
  EXPECT_EQ(ParseHttpHead(fits + "x").error, 431);
  EXPECT_EQ(ParseHttpHead(fits + "x\r\n\r\n").error, 431);
}

TEST(HttpHeadTest, AnAnswerSaysItsLengthAndThatItIsTheLast) {
  const std::string answer = MakeHttpAnswer(503, "text/plain", "why\n", /*is_head=*/false);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nwhy\n"));
  const std::string head = MakeHttpAnswer(200, "text/plain", "why\n", /*is_head=*/true);
  EXPECT_THAT(head, HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("Allow")));
  EXPECT_THAT(MakeHttpAnswer(405, "text/plain", "", false), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

}  // namespace
}  // namespace quire::server
