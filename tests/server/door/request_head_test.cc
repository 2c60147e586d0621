// Tests which heads of requests pass, and how they are read.

#include "server/door/request_head.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::server::door {
namespace {

using ::testing::HasSubstr;

const HeaderList kPseudo = {{":method", "POST"}, {":scheme", "http"}, {":path", "/a.B/C"}};

HeaderList With(HeaderList fields, const HeaderList& more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

void ExpectRefused(const HeaderList& fields, std::string_view why) {
  const auto head = ReadHead(fields);
  ASSERT_FALSE(head.ok()) << ::testing::PrintToString(fields.back().name);
  EXPECT_EQ(head.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(head.status().message()), HasSubstr(std::string(why)));
}

TEST(RequestHeadTest, ReadsWhatClientsSend) {
  const HeaderList fields = With(kPseudo, {{":authority", "localhost:8100"},
                                           {"te", "trailers"},
                                           {"content-type", "application/grpc"},
                                           {"user-agent", "grpc-c++/1.51.1 grpc-c/29.0.0 (linux)"},
                                           {"grpc-accept-encoding", "identity, deflate, gzip"},
                                           {"grpc-encoding", "identity"},
                                           {"authorization", "Bearer a+b/c="},
                                           {"host", "localhost:8100"},
                                           {"x-a.b_c", ""},
                                           {"x-many", "1"},
                                           {"x-many", "2"},
                                           {"x-bin", "YWI="},
                                           {"x-bin", "YWI"},
                                           {"x-bin", ""},
                                           {"x-bin", std::string("\0raw\n\xff", 6)}});
  const auto head = ReadHead(fields);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->path, "/a.B/C");
  EXPECT_EQ(head->authorization, "Bearer a+b/c=");
  EXPECT_EQ(head->encoding, "identity");
  EXPECT_EQ(ReadHead(kPseudo)->authorization, "");
}

TEST(RequestHeadTest, PseudoHeadersAreOnceAndFirstAndKnown) {
  for (size_t missing = 0; missing < kPseudo.size(); ++missing) {
    HeaderList fields = kPseudo;
    fields.erase(fields.begin() + static_cast<ptrdiff_t>(missing));
    ExpectRefused(fields, "want it in each request");
  }
  ExpectRefused({}, "want it in each request");
  for (const HeaderField& field : kPseudo) ExpectRefused(With(kPseudo, {field}), "want it once");
  const HeaderField authority = {":authority", "a"};
  ExpectRefused(With(kPseudo, {authority, authority}), "want it once");
  ExpectRefused(With(kPseudo, {{"te", "trailers"}, authority}), "before the headers");
  for (const std::string name : {":", ":status", ":protocol", ":Path", ":path "}) {
    ExpectRefused(With(kPseudo, {{name, "/x"}}), "no such header");
  }
}

TEST(RequestHeadTest, HeadersThatAreReadAsOneValueAreThereOnce) {
  for (const std::string name :
       {"authorization", "content-type", "te", "grpc-encoding", "grpc-timeout", "x-request-id",
        "user-agent", "grpc-accept-encoding", "grpc-trace-bin", "lb-token", "host"}) {
    const HeaderField field = {name, "1234"};
    EXPECT_TRUE(ReadHead(With(kPseudo, {field})).ok()) << name;
    ExpectRefused(With(kPseudo, {field, field}), "\"" + name + "\": want it at most once");
  }
}

TEST(RequestHeadTest, HostIsTheAuthority) {
  const HeaderField authority = {":authority", "a"};
  EXPECT_TRUE(ReadHead(With(kPseudo, {{"host", "b"}})).ok());
  EXPECT_TRUE(ReadHead(With(kPseudo, {authority, {"host", "a"}})).ok());
  ExpectRefused(With(kPseudo, {authority, {"host", "b"}}), "the same as :authority");
}

TEST(RequestHeadTest, EveryByteOfANameIsChecked) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto c = static_cast<char>(byte);
    const bool allowed =
        (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    for (const std::string& name : {std::string("x") + c, std::string("x") + c + "x"}) {
      EXPECT_EQ(ReadHead(With(kPseudo, {{name, "v"}})).ok(), allowed) << byte;
    }
  }
  ExpectRefused(With(kPseudo, {{"", "v"}}), "a name of");
  ExpectRefused(With(kPseudo, {{"a\n" + std::string(100, 'b'), "v"}}), "\"a\\n");
}

TEST(RequestHeadTest, EveryByteOfAValueIsChecked) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string value = std::string("a") + static_cast<char>(byte) + "b";
    const bool printable = byte >= 0x20 && byte <= 0x7e;
    EXPECT_EQ(ReadHead(With(kPseudo, {{"x", value}})).ok(), printable) << byte;
    HeaderList fields = kPseudo;
    fields[2].value += value;
    EXPECT_EQ(ReadHead(fields).ok(), printable) << byte;
  }
}

TEST(RequestHeadTest, BinaryValuesAreBase64) {
  for (const std::string good :
       {"", "YQ", "YQ==", "YWI", "YWI=", "YWJj", "+/09", "YWJ/", "YWJjYQ=="}) {
    EXPECT_TRUE(ReadHead(With(kPseudo, {{"x-bin", good}})).ok()) << good;
  }
  for (const std::string bad :
       {"Y", "YQ=", "YWI==", "YWJj=", "YWJj====", "=", "====", "Y=Q=", "-_09", "YQ,YQ", "YQ\n",
        // Bits that the last digit has too many are not zero.
        "YR", "YZ==", "YWJjYf", "YWJ", "YWK=", "YWJjYWJ="}) {
    ExpectRefused(With(kPseudo, {{"x-bin", bad}}), "base64");
  }
}

}  // namespace
}  // namespace quire::server::door
