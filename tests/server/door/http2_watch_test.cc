// Tests the verdicts of Http2Watch on each frame: pass, refuse or cut.

#include "server/door/http2_watch.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/server/door/http2_bytes.h"

namespace quire::server::door {
namespace {

using quire::testing::Data;
using quire::testing::Frame;
using quire::testing::FramesOf;
using quire::testing::HeadBlock;
using quire::testing::Headers;
using quire::testing::Literal;
using quire::testing::Message;
using quire::testing::SeenFrame;
using ::testing::HasSubstr;

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A watch between a client and a server. The test plays both.
class Wire {
 public:
  explicit Wire(const Http2Limits& limits = {}, Gate gate = nullptr)
      : limits_(limits),
        watch(
            limits_, gate ? gate : [](const RequestHead&) { return std::nullopt; }, counters) {
    EXPECT_EQ(FromClient(std::string(kPreface)), kPreface);
    EXPECT_EQ(FromClient(Frame(FrameType::kSettings, 0, 0)).size(), kFrameHeadBytes);
  }

  // Passes `bytes` to the watch as if the client had sent them. Returns what the server gets, with
  // its headers as literals. The preface is returned as it is.
  std::string FromClient(std::string_view bytes) {
    std::string out;
    while (!bytes.empty() && !watch.verdict()) {
      std::string more;
      bytes.remove_prefix(watch.FromClient(Bytes(bytes), now, more));
      out += std::exchange(has_preface_, true) ? server_.Read(more) : more;
    }
    return out;
  }
  // Passes `bytes` to the watch as if the server had sent them. Returns what the client gets.
  std::string FromServer(std::string_view bytes) {
    std::string out;
    if (!watch.FromServer(Bytes(bytes), now, out)) out = bytes;
    return out;
  }
  uint64_t refused(Refused reason) const {
    return counters.refused.Get(static_cast<size_t>(reason));
  }

 private:
  Http2Limits limits_;
  quire::testing::LiteralHeaders server_;
  bool has_preface_ = false;

 public:
  DoorCounters counters;
  Clock::time_point now = Clock::now();
  Http2Watch watch;
};

// Expects that `to_client` consists of the trailers and the reset of a refused stream.
void ExpectRefusal(const std::string& to_client, uint32_t stream, std::string_view code) {
  const std::vector<SeenFrame> frames = FramesOf(to_client);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].head.type, FrameType::kHeaders);
  EXPECT_EQ(frames[0].head.stream, stream);
  EXPECT_TRUE(frames[0].head.has(kEndStream));
  EXPECT_THAT(frames[0].payload,
              HasSubstr(absl::StrCat("grpc-status", std::string(1, static_cast<char>(code.size())),
                                     std::string(code))));
  EXPECT_EQ(frames[1].head.type, FrameType::kResetStream);
}

TEST(Http2WatchTest, LetsACallPass) {
  Wire wire;
  const std::string call = Headers(1) + Data(1, Message(1000), true);
  EXPECT_EQ(wire.FromClient(call), call);
  EXPECT_EQ(wire.watch.num_streams(), 1u);
  const std::string answer = Frame(FrameType::kHeaders, kEndHeaders, 1, "\x88") + Data(1, "x") +
                             Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1, "\x88");
  EXPECT_EQ(wire.FromServer(answer), answer);
  EXPECT_EQ(wire.watch.num_streams(), 0u);
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
  EXPECT_FALSE(wire.watch.verdict());
}

TEST(Http2WatchTest, ADivisionOfTheBytesChangesNothing) {
  const std::string call = Headers(1) + Data(1, Message(300).substr(0, 100)) + Headers(3) +
                           Data(3, Message(5), true) + Data(1, Message(300).substr(100), true);
  for (size_t piece = 1; piece < 40; ++piece) {
    Wire wire;
    std::string seen;
    for (size_t at = 0; at < call.size(); at += piece) {
      seen += wire.FromClient(std::string_view(call).substr(at, piece));
    }
    EXPECT_EQ(seen, call) << piece;
    EXPECT_EQ(wire.watch.unfinished_bytes(), 0u) << piece;
    EXPECT_FALSE(wire.watch.waits()) << piece;
  }
}

TEST(Http2WatchTest, CountsWhatIsUnfinishedAndNothingElse) {
  Wire wire;
  wire.FromClient(Headers(1) + Data(1, Message(1000).substr(0, 500)));
  EXPECT_GE(wire.watch.unfinished_bytes(), 500u);
  EXPECT_EQ(wire.counters.unfinished_bytes, static_cast<int64_t>(wire.watch.unfinished_bytes()));
  EXPECT_TRUE(wire.watch.waits());
  wire.FromClient(Data(1, Message(1000).substr(500)));
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
  EXPECT_FALSE(wire.watch.waits());
  // A further message counts as unfinished until the server has sent DATA.
  wire.FromClient(Data(1, Message(100)));
  EXPECT_GE(wire.watch.unfinished_bytes(), 100u);
  wire.FromServer(Data(1, "x"));
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
}

// Returns `payload` as the payload of a padded frame.
std::string Padded(std::string_view payload, uint8_t padding, char filler = '\0') {
  return std::string(1, static_cast<char>(padding)).append(payload).append(padding, filler);
}

TEST(Http2WatchTest, PaddingAndPriorityStayAtTheDoor) {
  const uint8_t all = kPadded | kHasPriority | kEndHeaders;
  for (const int padding : {0, 8, 0x82, 255}) {
    const std::string headers =
        Frame(FrameType::kHeaders, all, 1,
              Padded("PRIO!" + HeadBlock(), static_cast<uint8_t>(padding), '\x82'));
    const std::string call =
        headers + Frame(FrameType::kData, kPadded | kEndStream, 1,
                        Padded(Message(7), static_cast<uint8_t>(padding), '\x01'));
    for (size_t piece = 1; piece <= call.size(); piece += 7) {
      Wire wire;
      std::string seen;
      for (size_t at = 0; at < call.size(); at += piece) {
        seen += wire.FromClient(std::string_view(call).substr(at, piece));
      }
      EXPECT_EQ(seen, Headers(1) + Data(1, Message(7), true)) << padding << " " << piece;
      EXPECT_EQ(wire.refused(Refused::kCompressed), 0u);
      EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
      EXPECT_FALSE(wire.watch.verdict());
    }
  }
}

TEST(Http2WatchTest, TheWindowOfPaddingIsGivenBack) {
  Wire wire;
  wire.FromClient(Headers(1) + Frame(FrameType::kData, kPadded, 1, Padded("abc", 99)));
  const std::string update = WindowUpdateFrame(0, 100) + WindowUpdateFrame(1, 100);
  EXPECT_EQ(wire.watch.TakeForClient(), update);
  // The client will send nothing more on a stream that it has ended.
  wire.FromClient(Frame(FrameType::kData, kPadded | kEndStream, 1, Padded("", 0)));
  EXPECT_EQ(wire.watch.TakeForClient(), WindowUpdateFrame(0, 1));
  // HEADERS take no window.
  wire.FromClient(Frame(FrameType::kHeaders, kPadded | kEndHeaders, 3, Padded(HeadBlock(), 9)));
  EXPECT_EQ(wire.watch.TakeForClient(), "");
}

TEST(Http2WatchTest, APaddedFrameLeavesTheNextOneWhole) {
  Wire wire;
  const std::string message = Message(100);
  wire.FromClient(Headers(1) +
                  Frame(FrameType::kData, kPadded, 1, Padded(message.substr(0, 3), 9)));
  EXPECT_EQ(wire.FromClient(Data(1, message.substr(3))), Data(1, message.substr(3)));
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
}

TEST(Http2WatchTest, AnotherPrefaceIsCut) {
  const Http2Limits limits;
  DoorCounters counters;
  Http2Watch watch(
      limits, [](const RequestHead&) { return std::nullopt; }, counters);
  std::string out;
  watch.FromClient(Bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r."), Clock::now(), out);
  EXPECT_EQ(watch.verdict(), Cut::kProtocol);
}

// As RFC 9113, 6 has them. Other tests compare frames with those of the same functions.
TEST(Http2FramesTest, HaveTheBytesOfTheStandard) {
  EXPECT_EQ(WindowUpdateFrame(3, 0x01020304), Frame(FrameType::kWindowUpdate, 0, 3, "\1\2\3\4"));
  EXPECT_EQ(ResetStreamFrame(0x0506, Http2Error::kEnhanceYourCalm),
            Frame(FrameType::kResetStream, 0, 0x0506, std::string("\0\0\0\x0b", 4)));
  EXPECT_EQ(GoawayFrame(0x01020304, Http2Error::kProtocol, "why"),
            Frame(FrameType::kGoaway, 0, 0, "\1\2\3\4" + std::string("\0\0\0\1why", 7)));
}

TEST(Http2WatchTest, PaddingLongerThanItsFrameIsCut) {
  for (const FrameType type : {FrameType::kHeaders, FrameType::kData}) {
    const uint8_t flags = kPadded | (type == FrameType::kHeaders ? kEndHeaders : uint8_t{0});
    const std::string begin = type == FrameType::kData ? Headers(1) : "";
    const std::string payload = type == FrameType::kHeaders ? HeadBlock() : "abc";
    for (const size_t padding : {payload.size(), payload.size() + 1}) {
      Wire wire;
      wire.FromClient(begin + Frame(type, flags, 1, static_cast<char>(padding) + payload));
      EXPECT_EQ(wire.watch.verdict().has_value(), padding > payload.size()) << padding;
    }
    Wire empty;
    empty.FromClient(begin + Frame(type, flags, 1));
    EXPECT_EQ(empty.watch.verdict(), Cut::kProtocol);
  }
}

TEST(Http2WatchTest, WhatOnlyTheServerWouldReadStaysAtTheDoor) {
  Wire wire;
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kPriority, 0, 1, "12345")), "");
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kUnknown, 0, 1, "12345")), "");
  EXPECT_EQ(wire.FromClient(ResetStreamFrame(1, Http2Error::kCancel)), "");  // it knows no stream 1
  // Flags without a meaning are not passed on.
  EXPECT_EQ(wire.FromClient(Headers(1, "", 0xff & ~kPadded & ~kHasPriority & ~kEndStream)),
            Headers(1));
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kData, 0xf2, 1, "abc")), Data(1, "abc"));
  // Of trailers the server gets the end.
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1,
                                  Literal(":path", "/another") + Literal("a", "b"))),
            Data(1, "", true));
  EXPECT_FALSE(wire.watch.verdict());
  wire.FromClient(Headers(3) + Frame(FrameType::kHeaders, kEndHeaders, 3, Literal("a", "b")));
  ExpectRefusal(wire.watch.TakeForClient(), 3, "3");
  EXPECT_EQ(wire.refused(Refused::kMalformed), 1u);
}

TEST(Http2WatchTest, WhatTheServerMustKnowGoesOnToIt) {
  Wire wire;
  wire.FromServer(Frame(FrameType::kSettings, 0, 0) + Frame(FrameType::kPing, 0, 0, "12345678"));
  for (const std::string& frame :
       {Frame(FrameType::kSettings, 0, 0, "123456"), Frame(FrameType::kSettings, kAck, 0),
        Frame(FrameType::kPing, 0, 0, "12345678"), Frame(FrameType::kPing, kAck, 0, "12345678"),
        Headers(1), WindowUpdateFrame(0, 7), WindowUpdateFrame(1, 7),
        ResetStreamFrame(1, Http2Error::kCancel), GoawayFrame(0, Http2Error::kNone, "bye")}) {
    EXPECT_EQ(wire.FromClient(frame), frame);
  }
  EXPECT_EQ(wire.watch.num_streams(), 0u) << "it was reset";
}

TEST(Http2WatchTest, ARequestEndsWithItsStreamHoweverThatEnds) {
  const std::string part = Data(1, Message(100).substr(0, 50));
  const std::string trailers =
      Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1, Literal("a", "b"));
  for (const std::string& request :
       {Headers(1) + Data(1, Message(100).substr(0, 50), true), Headers(1) + part + trailers,
        Headers(1, "", kEndHeaders | kEndStream)}) {
    Wire wire;
    wire.FromClient(request);
    EXPECT_EQ(wire.watch.num_streams(), 1u) << "it is answered yet";
    EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
    EXPECT_FALSE(wire.watch.waits());
  }
}

TEST(Http2WatchTest, AContinuationOfAnotherStreamIsCut) {
  Wire wire;
  wire.FromClient(Headers(1, "", 0) +
                  Frame(FrameType::kContinuation, kEndHeaders, 3, Literal("a", "b")));
  EXPECT_EQ(wire.watch.verdict(), Cut::kProtocol);
}

TEST(Http2WatchTest, RefusalsStandBetweenTheFramesOfTheServer) {
  const auto refuse = [](const RequestHead& head) -> std::optional<Refusal> {
    if (head.authorization.empty()) return std::nullopt;
    return Refusal{.code = 16};
  };
  const std::string refused = Headers(3, Literal("authorization", "no"));
  const std::string begin = Frame(FrameType::kHeaders, 0, 1, "\x88");
  const std::string end = Frame(FrameType::kContinuation, kEndHeaders, 1, Literal("a", "b"));
  Wire apart({}, refuse);
  apart.FromClient(refused);
  const std::string refusal = apart.watch.TakeForClient();
  ASSERT_FALSE(refusal.empty());

  Wire wire({}, refuse);
  wire.FromClient(Headers(1));
  EXPECT_EQ(wire.FromServer(begin), begin);
  wire.FromClient(refused);
  EXPECT_EQ(wire.watch.TakeForClient(), "") << "a header block has not ended";
  EXPECT_EQ(wire.FromServer(end + Data(1, "x")), end + refusal + Data(1, "x"));
  EXPECT_EQ(wire.watch.TakeForClient(), "") << "it is told once";
}

TEST(Http2WatchTest, OfARefusedStreamOnlyResetsAndAnswersAreHidden) {
  Wire wire;
  wire.FromClient(Headers(1) + Data(1, Message(10, 1)) + Headers(3) +
                  ResetStreamFrame(3, Http2Error::kCancel));
  wire.watch.TakeForClient();
  const std::string reset = ResetStreamFrame(1, Http2Error::kCancel);
  EXPECT_EQ(FramesOf(wire.FromServer(reset))[0].head.type, FrameType::kUnknown);
  const std::string update = WindowUpdateFrame(1, 9);
  EXPECT_EQ(wire.FromServer(update), update);
  const std::string another = ResetStreamFrame(3, Http2Error::kCancel);
  EXPECT_EQ(wire.FromServer(another), another) << "the door did not refuse it";
  EXPECT_FALSE(wire.watch.verdict());
}

TEST(Http2WatchTest, RefusalsCountAsResets) {
  Wire wire({.resets = {.per_second = 0, .burst = 2}},
            [](const RequestHead&) { return Refusal{.code = 16}; });
  wire.FromClient(Headers(1) + Headers(3));
  EXPECT_FALSE(wire.watch.verdict());
  wire.FromClient(Headers(5));
  EXPECT_EQ(wire.watch.verdict(), Cut::kResets);
}

TEST(Http2WatchTest, ResetsForTheServerStandBetweenTheFramesOfTheClient) {
  Wire wire({.message_time = std::chrono::milliseconds(1000)});
  const std::string data = Data(3, Message(100));
  wire.FromClient(Headers(1));
  wire.now += std::chrono::milliseconds(1000);
  wire.FromClient(Headers(3) + data.substr(0, 50));
  wire.watch.Expire(wire.now);
  EXPECT_EQ(wire.refused(Refused::kTimeout), 1u);
  EXPECT_EQ(wire.watch.TakeForServer(), "") << "a frame has not ended";
  EXPECT_EQ(wire.FromClient(data.substr(50)),
            data.substr(50) + ResetStreamFrame(1, Http2Error::kCancel));
  EXPECT_EQ(wire.watch.TakeForServer(), "");
}

TEST(Http2WatchTest, WithoutStreamsNoneIsRefused) {
  Wire wire;
  wire.watch.RefuseLargest();
  EXPECT_EQ(wire.watch.TakeForServer(), "");
  EXPECT_EQ(wire.watch.TakeForClient(), "");
}

TEST(Http2WatchTest, EachConnectionMayOpenItsFirstStream) {
  Wire wire({.total_streams = 9});
  wire.counters.streams = 9;  // of other connections
  wire.FromClient(Headers(1));
  EXPECT_EQ(wire.refused(Refused::kStreams), 0u);
  wire.FromClient(Headers(3));
  EXPECT_EQ(wire.refused(Refused::kStreams), 1u);
}

TEST(Http2WatchTest, ResetsOfTheServerCountAtTheirTime) {
  Wire wire({.resets = {.per_second = 1, .burst = 1}});
  for (const uint32_t id : {1u, 3u, 5u}) {
    wire.FromClient(Headers(id));
    wire.now += std::chrono::seconds(1);
    wire.FromServer(ResetStreamFrame(id, Http2Error::kCancel));
  }
  EXPECT_FALSE(wire.watch.verdict());
  wire.FromClient(Headers(7));
  wire.FromServer(ResetStreamFrame(7, Http2Error::kCancel));
  EXPECT_EQ(wire.watch.verdict(), Cut::kResets);
}

TEST(Http2WatchTest, TheServerDecodesEachHeadAlone) {
  // The client puts a path into its table, and names it by the table's index later.
  std::vector<std::string> paths;
  Wire wire({}, [&](const RequestHead& head) -> std::optional<Refusal> {
    paths.emplace_back(head.path);
    if (head.path == "/first") return Refusal{.code = 16};
    return std::nullopt;
  });
  const std::string pseudo = "\x83\x86";  // :method POST, :scheme http
  const std::string indexed = std::string("\x44\x06/first", 8);
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders, 1, pseudo + indexed)), "");
  const std::string again = pseudo + "\xbe";  // the newest entry of the table: "/first"
  EXPECT_EQ(wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders, 3, again)), "");
  EXPECT_EQ(wire.FromClient(Headers(5)), Headers(5));
  EXPECT_EQ(paths,
            (std::vector<std::string>{"/first", "/first", "/quire.v1.InferenceService/Generate"}));
}

TEST(Http2WatchTest, LongHeadersAreSentAsSeveralFrames) {
  Wire wire({.header_block_bytes = 64 << 10,
             .header_list_bytes = 64 << 10,
             .request_list_bytes = 64 << 10});
  std::string more;
  for (int i = 0; i < 300; ++i) more += Literal("name", std::string(126, '~'));  // 13 bits each
  std::string raw;
  wire.watch.FromClient(Bytes(Headers(1, more)), wire.now, raw);
  const std::vector<SeenFrame> frames = FramesOf(raw);
  ASSERT_GT(frames.size(), 1u);
  for (const SeenFrame& frame : frames) {
    EXPECT_LE(frame.payload.size(), kSmallestFrameLimit);
    EXPECT_EQ(frame.head.type,
              &frame == &frames[0] ? FrameType::kHeaders : FrameType::kContinuation);
    EXPECT_EQ(frame.head.has(kEndHeaders), &frame == &frames.back());
  }
  EXPECT_EQ(wire.FromClient(Headers(3, more)), Headers(3, more));
  raw.clear();
  wire.watch.FromClient(Bytes(Headers(5, more, kEndHeaders | kEndStream)), wire.now, raw);
  const std::vector<SeenFrame> last = FramesOf(raw);
  ASSERT_EQ(last.size(), frames.size());
  for (const SeenFrame& frame : last) {
    EXPECT_EQ(frame.head.has(kEndStream), &frame == &last[0]) << "CONTINUATION has no such flag";
  }
}

TEST(Http2WatchTest, TheTableMayChangeItsSizeBeforeEachHead) {
  Wire wire;
  for (const uint32_t id : {1u, 3u, 5u}) {
    EXPECT_EQ(wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders, id, "\x20" + HeadBlock())),
              Headers(id));
  }
}

// Returns the size of a head, decoded, with `more` as its only further header.
size_t ListBytes(const HeaderField& more) {
  size_t size = 4 * 32;  // of four headers
  for (const std::string_view text :
       {":method", "POST", ":scheme", "http", ":path", "/quire.v1.InferenceService/Generate"}) {
    size += text.size();
  }
  return size + more.name.size() + more.value.size();
}

TEST(Http2WatchTest, MoreHeadersThanGrpcTakesAreRefused) {
  const std::string more = Literal("name", std::string(100, 'v'));
  const size_t size = ListBytes({.name = "name", .value = std::string(100, 'v')});
  for (const size_t limit : {size, size - 1}) {
    Wire wire({.request_list_bytes = limit});
    const std::string seen = wire.FromClient(Headers(1, more));
    EXPECT_EQ(seen, limit == size ? Headers(1, more) : "") << limit;
    if (limit < size) ExpectRefusal(wire.watch.TakeForClient(), 1, "8");
  }
}

TEST(Http2WatchTest, HeadersThatGrowWhenDecodedAreReadBitByBit) {
  Wire wire({.streams = 1000, .total_streams = 10'000});
  std::string entry = "\x40\x01";
  entry += "n\x7f\xa1\x1e";  // 127 + 0x21 + (0x1e << 7) = 4,000
  entry += std::string(4000, '~');
  wire.FromClient(Headers(1, entry));
  std::string calls;
  for (uint32_t id = 3; id < 203; id += 2) calls += Headers(id, "\xbe\xbe");
  std::string_view rest = calls;
  int turns = 0;
  for (; !rest.empty(); ++turns) {
    std::string out;
    rest.remove_prefix(wire.watch.FromClient(Bytes(rest), wire.now, out));
    EXPECT_LT(out.size(), 160u << 10);
  }
  EXPECT_GT(turns, 5);
  EXPECT_EQ(wire.watch.num_streams(), 101u);
  EXPECT_FALSE(wire.watch.verdict());
}

TEST(Http2WatchTest, AMessageThatSaysItIsTooLargeIsRefusedAtItsPrefix) {
  Wire wire({.message_bytes = 1000});
  const std::string whole = Headers(1) + Data(1, Message(1000), true);
  EXPECT_EQ(wire.FromClient(whole), whole);
  EXPECT_EQ(wire.FromClient(Headers(3)), Headers(3));
  const std::string seen = wire.FromClient(Data(3, Message(1001).substr(0, 5)));
  EXPECT_EQ(FramesOf(seen).back().head.type, FrameType::kResetStream);
  EXPECT_EQ(FramesOf(seen).back().head.stream, 3u);
  ExpectRefusal(wire.watch.TakeForClient(), 3, "8");
  EXPECT_EQ(wire.refused(Refused::kMessageSize), 1u);
  EXPECT_FALSE(wire.watch.verdict());
}

TEST(Http2WatchTest, TheCompressedFlagIsRefused) {
  Wire wire;
  wire.FromClient(Headers(1) + Data(1, Message(10, 1), true));
  ExpectRefusal(wire.watch.TakeForClient(), 1, "13");
  EXPECT_EQ(wire.refused(Refused::kCompressed), 1u);
}

TEST(Http2WatchTest, TheGateIsAskedBeforeTheBody) {
  int asked = 0;
  Wire wire({}, [&](const RequestHead& head) -> std::optional<Refusal> {
    ++asked;
    EXPECT_EQ(head.path, "/quire.v1.InferenceService/Generate");
    if (head.authorization == "Bearer known") return std::nullopt;
    return Refusal{.code = 16, .message = "who?"};
  });
  const std::string known = Headers(1, Literal("authorization", "Bearer known"));
  EXPECT_EQ(wire.FromClient(known), known);
  EXPECT_EQ(wire.FromClient(Headers(3)), "");
  ExpectRefusal(wire.watch.TakeForClient(), 3, "16");
  EXPECT_EQ(asked, 2);
  wire.FromClient(Data(3, Message(1 << 16)));
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
}

TEST(Http2WatchTest, AClosedStreamIsNotBegunAgain) {
  Wire wire;
  wire.FromClient(Headers(3) + ResetStreamFrame(3, Http2Error::kCancel));
  EXPECT_EQ(wire.FromClient(Headers(3)), "");
  EXPECT_EQ(wire.FromClient(Headers(1)), "");  // closed when stream 3 began
  EXPECT_EQ(wire.watch.num_streams(), 0u);
}

TEST(Http2WatchTest, WhatTheServerStillSaysOfARefusedStreamIsNotForTheClient) {
  Wire wire;
  wire.FromClient(Headers(1) + Data(1, Message(10, 1)));
  ExpectRefusal(wire.watch.TakeForClient(), 1, "13");
  const std::string late = Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1,
                                 Literal(":status", "200") + Literal("grpc-status", "1"));
  const std::string other = Frame(FrameType::kPing, 0, 0, "12345678");
  std::string seen;
  for (const char byte : late + other) seen += wire.FromServer(std::string(1, byte));
  const std::vector<SeenFrame> frames = FramesOf(seen);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].head.type, FrameType::kUnknown);
  EXPECT_EQ(frames[1].head.type, FrameType::kPing);
  // An answer that changes HPACK's table cannot be hidden.
  wire.FromServer(Frame(FrameType::kHeaders, kEndHeaders, 1,
                        "\x40\x01"
                        "a\x01"
                        "b"));
  EXPECT_EQ(wire.watch.verdict(), Cut::kProtocol);
}

TEST(Http2WatchTest, AMessageThatDoesNotArriveExpires) {
  Wire wire({.message_time = std::chrono::milliseconds(1000)});
  wire.FromClient(Headers(1));
  wire.FromClient(Headers(3) + Data(3, Message(100).substr(0, 99)));
  wire.FromClient(Headers(5) + Data(5, Message(100)));
  wire.watch.Expire(wire.now + std::chrono::milliseconds(999));
  EXPECT_EQ(wire.refused(Refused::kTimeout), 0u);
  wire.watch.Expire(wire.now + std::chrono::milliseconds(1000));
  EXPECT_EQ(wire.refused(Refused::kTimeout), 2u);
  EXPECT_FALSE(wire.watch.waits());
  EXPECT_THAT(wire.watch.TakeForClient(), HasSubstr("\x0b"
                                                    "grpc-status\x01"
                                                    "4"));
  EXPECT_EQ(FramesOf(wire.watch.TakeForServer()).size(), 2u);
}

TEST(Http2WatchTest, AMessageWithoutItsLastByteIsUnfinished) {
  Wire wire;
  const std::string message = Message(100);
  wire.FromClient(Headers(1) + Data(1, message.substr(0, message.size() - 1)));
  EXPECT_TRUE(wire.watch.waits());
  EXPECT_GT(wire.watch.unfinished_bytes(), 0u);
  wire.FromClient(Data(1, message.substr(message.size() - 1)));
  EXPECT_FALSE(wire.watch.waits());
  EXPECT_EQ(wire.watch.unfinished_bytes(), 0u);
}

TEST(Http2WatchTest, EachMessageOfAStreamHasItsTime) {
  Wire wire({.message_time = std::chrono::milliseconds(1000)});
  wire.FromClient(Headers(1) + Data(1, Message(10)));
  EXPECT_FALSE(wire.watch.waits());
  wire.now += std::chrono::milliseconds(5000);
  wire.FromClient(Data(1, Message(100).substr(0, 3)));  // a part of its prefix
  EXPECT_TRUE(wire.watch.waits());
  wire.watch.Expire(wire.now + std::chrono::milliseconds(999));
  EXPECT_EQ(wire.refused(Refused::kTimeout), 0u);
  wire.watch.Expire(wire.now + std::chrono::milliseconds(1000));
  EXPECT_EQ(wire.refused(Refused::kTimeout), 1u);
}

TEST(Http2WatchTest, TheLargestIsRefusedWhenAConnectionHoldsTooMuch) {
  Wire wire({.connection_bytes = 2000});
  wire.FromClient(Headers(1) + Data(1, Message(3000).substr(0, 1500)));
  wire.FromClient(Headers(3) + Data(3, Message(3000).substr(0, 600)));
  EXPECT_EQ(wire.refused(Refused::kUnfinished), 1u);
  ExpectRefusal(wire.watch.TakeForClient(), 1, "8");
  EXPECT_LT(wire.watch.unfinished_bytes(), 1000u);
}

TEST(Http2WatchTest, StreamsBeyondTheLimitMayTryAgain) {
  Wire wire({.streams = 2});
  wire.FromClient(Headers(1) + Headers(3) + Headers(5));
  const std::vector<SeenFrame> frames = FramesOf(wire.watch.TakeForClient());
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].head.type, FrameType::kResetStream);
  EXPECT_EQ(frames[0].head.stream, 5u);
  EXPECT_EQ(frames[0].payload, std::string("\0\0\0\x07", 4));  // REFUSED_STREAM
  EXPECT_EQ(wire.watch.num_streams(), 2u);
  EXPECT_FALSE(wire.watch.verdict());
}

TEST(Http2WatchTest, ADecodedListIsBounded) {
  // The headers refer to one entry of the dynamic table again and again. Each byte expands to 4,000
  // bytes.
  Wire wire({.header_list_bytes = 64 << 10});
  std::string entry = "\x40\x01";
  entry += "n\x7f\xa1\x1e";  // 127 + 0x21 + (0x1e << 7) = 4,000
  entry += std::string(4000, 'v');
  wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders, 1, entry));
  EXPECT_FALSE(wire.watch.verdict());
  wire.FromClient(Frame(FrameType::kHeaders, kEndHeaders, 3, std::string(100, '\xbe')));
  EXPECT_EQ(wire.watch.verdict(), Cut::kHeaders);
}

TEST(Http2WatchTest, HeadersAreCutAtTheEdgesOfTheirSizes) {
  const std::string begin = Headers(1, "", 0);
  const std::string whole =
      begin + Frame(FrameType::kContinuation, kEndHeaders, 1, Literal("a", "b"));
  for (const size_t limit : {whole.size(), whole.size() - 1}) {
    Wire wire({.header_block_bytes = limit});
    wire.FromClient(whole);
    EXPECT_EQ(wire.watch.verdict().has_value(), limit < whole.size()) << "as sent";
  }
  const HeaderField field{.name = "name", .value = std::string(100, 'v')};
  const size_t size = ListBytes(field);
  for (const size_t limit : {size, size - 1}) {
    Wire wire({.header_list_bytes = limit, .request_list_bytes = 1 << 20});
    wire.FromClient(Headers(1, Literal(field.name, field.value)));
    EXPECT_EQ(wire.watch.verdict().has_value(), limit < size) << "decoded";
  }
  // Each head is counted by itself.
  Wire wire({.header_block_bytes = whole.size(), .header_list_bytes = size});
  for (const uint32_t id : {1u, 3u, 5u}) wire.FromClient(Headers(id, Literal("a", "b")));
  EXPECT_EQ(wire.watch.num_streams(), 3u);
  EXPECT_FALSE(wire.watch.verdict()) << wire.watch.why();
}

TEST(Http2WatchTest, AControlFrameIsCutAtTheEdgeOfItsSize) {
  for (const size_t size : {size_t{100}, size_t{101}}) {
    Wire wire({.control_frame_bytes = 100});
    wire.FromClient(Frame(FrameType::kGoaway, 0, 0, std::string(size, 'x')));
    EXPECT_EQ(wire.watch.verdict().has_value(), size > 100) << size;
  }
}

TEST(Http2WatchTest, AFrameShorterThanItsPriorityIsCut) {
  for (const std::string payload : {"PRIO", "PRIO!"}) {
    Wire wire;
    wire.FromClient(Frame(FrameType::kHeaders, kHasPriority | kEndHeaders, 1, payload));
    EXPECT_EQ(wire.watch.verdict().has_value(), payload.size() < 5) << payload;
  }
}

TEST(Http2WatchTest, UnfinishedBytesOfAConnectionAreRefusedAtTheirEdge) {
  const std::string part = Headers(1) + Data(1, Message(1000).substr(0, 100));
  Wire measured;
  measured.FromClient(part);
  const size_t held = measured.watch.unfinished_bytes();
  EXPECT_EQ(held, 64u + 100u) << "a frame, and its payload";
  for (const size_t limit : {held, held - 1}) {
    Wire wire({.connection_bytes = limit});
    wire.FromClient(part);
    EXPECT_EQ(wire.refused(Refused::kUnfinished), limit < held ? 1u : 0u);
  }
}

TEST(Http2WatchTest, WhoDoesNotReadRefusalsIsCutAtTheEdge) {
  const auto refuse = [](const RequestHead&) { return Refusal{.code = 16}; };
  Wire measured({}, refuse);
  measured.FromClient(Headers(1) + Headers(3));
  const size_t unread = measured.watch.TakeForClient().size();
  ASSERT_GT(unread, 0u);
  for (const size_t limit : {unread, unread - 1}) {
    Wire wire({.unread_bytes = limit}, refuse);
    wire.FromClient(Headers(1) + Headers(3));
    EXPECT_EQ(wire.watch.verdict(), limit < unread ? std::optional(Cut::kUnread) : std::nullopt);
  }
}

TEST(TokenBucketTest, ABurstAndThenAFewPerSecond) {
  const Clock::time_point start = Clock::now();
  TokenBucket bucket({.per_second = 4, .burst = 3});
  const auto takes = [&](std::chrono::milliseconds after, int num) {
    for (int i = 0; i < num; ++i) EXPECT_TRUE(bucket.Take(start + after)) << after.count();
  };
  takes(std::chrono::milliseconds(0), 3);
  takes(std::chrono::milliseconds(250), 1);
  takes(std::chrono::milliseconds(60'000), 3);  // no more than a burst
  EXPECT_FALSE(bucket.Take(start + std::chrono::milliseconds(60'249)));
}

struct RateLimit {
  const char* name;
  Rate Http2Limits::*rate;
  Cut verdict;
  int num_before;  // events of the handshake
  std::function<std::string(int)> frame;
};

TEST(Http2WatchTest, RatesAreCutAtTheEndOfTheirBursts) {
  const RateLimit all[] = {{"resets", &Http2Limits::resets, Cut::kResets, 0,
                            [](int) { return ResetStreamFrame(1, Http2Error::kCancel); }},
                           {"pings", &Http2Limits::pings, Cut::kPings, 0,
                            [](int) { return Frame(FrameType::kPing, 0, 0, "12345678"); }},
                           {"settings", &Http2Limits::settings, Cut::kSettings, 1,
                            [](int) { return Frame(FrameType::kSettings, 0, 0); }},
                           {"window updates", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int) { return Frame(FrameType::kWindowUpdate, 0, 0, "1234"); }},
                           {"goaway", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int) { return Frame(FrameType::kGoaway, 0, 0, "12345678"); }},
                           {"acknowledgements", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int) { return Frame(FrameType::kPing, kAck, 0, "12345678"); }},
                           {"trailers", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int i) { return (i == 0 ? Headers(3) : "") + Headers(1); }},
                           {"padding", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int i) {
                              return (i == 0 ? Headers(1) : "") +
                                     Frame(FrameType::kData, kPadded, 1, Padded("a", 1));
                            }},
                           {"empty data", &Http2Limits::idle_frames, Cut::kFrames, 0,
                            [](int i) { return (i == 0 ? Headers(1) : "") + Data(1, ""); }}};
  for (const RateLimit& limit : all) {
    for (const int burst : {2, 5}) {
      Http2Limits limits;
      limits.*limit.rate = {.per_second = 0, .burst = static_cast<double>(burst)};
      Wire wire(limits);
      for (int i = limit.num_before; i < burst; ++i) {
        wire.FromClient(limit.frame(i - limit.num_before));
        ASSERT_FALSE(wire.watch.verdict()) << limit.name << " " << i;
      }
      wire.FromClient(limit.frame(burst));
      EXPECT_EQ(wire.watch.verdict(), limit.verdict) << limit.name;
    }
  }
}

TEST(Http2WatchTest, FramesOfTheServerAllowAsManyOfTheClient) {
  // Without them, none of the client's is allowed.
  const Rate none{.per_second = 0, .burst = 0};
  const Http2Limits limits{.pings = none, .idle_frames = none};
  const std::string update = Frame(FrameType::kWindowUpdate, 0, 0, "1234");
  const std::string ping = Frame(FrameType::kPing, 0, 0, "12345678");
  const std::string settings_ack = Frame(FrameType::kSettings, kAck, 0);
  const std::string ping_ack = Frame(FrameType::kPing, kAck, 0, "12345678");
  struct Allowed {
    std::string by;
    std::string frame;
    int num;
  };
  const std::string headers = Frame(FrameType::kHeaders, kEndHeaders, 1, "\x88");
  const Allowed all[] = {{headers, update, 2},
                         {Data(1, "x"), update, 2},
                         {headers + Data(1, "x"), update, 4},
                         {headers, ping, 1},
                         {headers + Data(1, "x"), ping, 1},
                         {Frame(FrameType::kSettings, 0, 0), settings_ack, 1},
                         {ping + Frame(FrameType::kSettings, 0, 0), ping_ack, 2},
                         {ping_ack + settings_ack, ping_ack, 0}};
  for (const Allowed& allowed : all) {
    Wire wire(limits);
    wire.FromClient(Headers(1));
    wire.FromServer(allowed.by);
    for (int i = 0; i < allowed.num; ++i) wire.FromClient(allowed.frame);
    EXPECT_FALSE(wire.watch.verdict()) << allowed.num;
    wire.FromClient(allowed.frame);
    EXPECT_TRUE(wire.watch.verdict()) << allowed.num;
  }
}

TEST(Http2WatchTest, WindowUpdatesAreAllowedUpToABound) {
  Wire wire({.idle_frames = {.per_second = 0, .burst = 0}});
  wire.FromClient(Headers(1));
  std::string tokens, updates;
  for (int i = 0; i < 5001; ++i) tokens += Data(1, "t");
  for (int i = 0; i < 10'000; ++i) updates += Frame(FrameType::kWindowUpdate, 0, 0, "1234");
  wire.FromServer(tokens);
  wire.FromClient(updates);
  EXPECT_FALSE(wire.watch.verdict());
  wire.FromClient(Frame(FrameType::kWindowUpdate, 0, 0, "1234"));
  EXPECT_EQ(wire.watch.verdict(), Cut::kFrames);
}

TEST(Http2WatchTest, LateAnswersOfTheLastRefusalsAreHidden) {
  constexpr uint32_t kKept = 256;
  const Http2Limits limits{.unread_bytes = 1 << 20, .resets = {.per_second = 0, .burst = 1000}};
  for (const uint32_t num : {kKept, kKept + 1}) {
    Wire wire(limits);
    for (uint32_t i = 0; i < num; ++i) {
      wire.FromClient(Headers(2 * i + 1) + Data(2 * i + 1, Message(10, 1)));
    }
    ASSERT_EQ(wire.refused(Refused::kCompressed), num);
    wire.watch.TakeForClient();
    const auto late = [](uint32_t stream) {
      return Frame(FrameType::kHeaders, kEndHeaders | kEndStream, stream,
                   Literal(":status", "200"));
    };
    // From the first one that is kept to the last.
    for (uint32_t i = num - kKept; i < num; ++i) {
      EXPECT_EQ(FramesOf(wire.FromServer(late(2 * i + 1)))[0].head.type, FrameType::kUnknown) << i;
    }
  }
}

// Other fields may change HPACK's table, of which the client then knows nothing.
TEST(Http2WatchTest, LateAnswersOfShortLiteralsAreHiddenAndOthersCut) {
  const std::string status = Literal(":status", "200");
  const std::string never_indexed = "\x10" + status.substr(1);
  const struct {
    std::string block;
    bool is_hidden;
  } cases[] = {{status, true},
               {never_indexed, true},
               {status + Literal("a", std::string(126, 'x')), true},
               {status + Literal("a", std::string(127, 'x')), false},
               {status.substr(0, status.size() - 1), false},
               {status.substr(0, status.size() - 4), false},
               {status + "\x88", false}};
  for (const auto& [block, is_hidden] : cases) {
    Wire wire;
    wire.FromClient(Headers(1) + Data(1, Message(10, 1)));
    wire.watch.TakeForClient();
    const std::string seen =
        wire.FromServer(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1, block));
    EXPECT_EQ(wire.watch.verdict().has_value(), !is_hidden) << block;
    if (is_hidden) {
      EXPECT_EQ(FramesOf(seen)[0].head.type, FrameType::kUnknown) << block;
      EXPECT_EQ(FramesOf(seen)[0].head.flags, 0) << block;
    }
  }
}

TEST(Http2WatchTest, TheMessageOfARefusalIsPercentEncodedAndShort) {
  for (const auto& [message, sent] :
       {std::pair(std::string("\x1f ~\x7f%"), std::string("%1F ~%7F%25")),
        std::pair(std::string(126, 'x'), std::string(126, 'x')),
        std::pair(std::string(127, 'x'), std::string(126, 'x'))}) {
    Wire wire({}, [&, text = message](const RequestHead&) {
      return Refusal{.code = 16, .message = text};
    });
    wire.FromClient(Headers(1));
    EXPECT_EQ(wire.watch.TakeForClient(),
              Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1,
                    "\x88\x10" + Literal("content-type", "application/grpc").substr(1) + "\x10" +
                        Literal("grpc-status", "16").substr(1) + "\x10" +
                        Literal("grpc-message", sent).substr(1)) +
                  ResetStreamFrame(1, Http2Error::kNone));
  }
}

TEST(Http2WatchTest, GoawayTellsTheLastStreamAndWhetherTheClientIsToBlame) {
  for (const auto& [cut, error] :
       {std::pair(Cut::kIdle, Http2Error::kNone), std::pair(Cut::kCertificate, Http2Error::kNone),
        std::pair(Cut::kProtocol, Http2Error::kProtocol),
        std::pair(Cut::kPings, Http2Error::kEnhanceYourCalm)}) {
    Wire wire;
    wire.FromClient(Headers(5));
    wire.watch.CutOff(cut, "first");
    wire.watch.CutOff(Cut::kUnread, "second");
    EXPECT_EQ(wire.watch.Goaway(), GoawayFrame(5, error, "first"));
  }
}

TEST(Http2WatchTest, ARefusalAfterTheAnswerBeganIsAReset) {
  Wire wire;
  wire.FromClient(Headers(1));
  wire.FromServer(Frame(FrameType::kHeaders, kEndHeaders, 1, "\x88"));
  wire.FromClient(Data(1, Message(10, 1)));
  EXPECT_EQ(wire.watch.TakeForClient(), ResetStreamFrame(1, Http2Error::kEnhanceYourCalm));
}

struct Attack {
  const char* name;
  Cut verdict;
  std::function<std::string(int)> frame;  // returns the i-th frame
};

class FloodTest : public ::testing::TestWithParam<Attack> {};

TEST_P(FloodTest, IsCut) {
  Wire wire;
  int sent = 0;
  for (; sent < 20'000 && !wire.watch.verdict(); ++sent) wire.FromClient(GetParam().frame(sent));
  ASSERT_TRUE(wire.watch.verdict()) << GetParam().name;
  EXPECT_EQ(*wire.watch.verdict(), GetParam().verdict) << GetParam().name;
  EXPECT_LT(sent, 6000) << GetParam().name;
  const std::vector<SeenFrame> goaway = FramesOf(wire.watch.Goaway());
  ASSERT_EQ(goaway.size(), 1u);
  EXPECT_EQ(goaway[0].head.type, FrameType::kGoaway);
}

std::string HeadersThenReset(int i) {
  const auto stream = static_cast<uint32_t>(2 * i + 1);
  return Headers(stream) + Frame(FrameType::kResetStream, 0, stream, std::string(4, '\0'));
}

INSTANTIATE_TEST_SUITE_P(
    All, FloodTest,
    ::testing::Values(
        Attack{"resets", Cut::kResets, &HeadersThenReset},
        Attack{"pings", Cut::kPings, [](int) { return Frame(FrameType::kPing, 0, 0, "12345678"); }},
        Attack{"acknowledgements", Cut::kFrames,
               [](int i) {
                 return i % 2 == 0 ? Frame(FrameType::kSettings, kAck, 0)
                                   : Frame(FrameType::kPing, kAck, 0, "12345678");
               }},
        Attack{"settings", Cut::kSettings, [](int) { return Frame(FrameType::kSettings, 0, 0); }},
        Attack{"empty data", Cut::kFrames,
               [](int i) { return (i == 0 ? Headers(1) : "") + Data(1, ""); }},
        Attack{"priority", Cut::kFrames,
               [](int) { return Frame(FrameType::kPriority, 0, 1, "12345"); }},
        Attack{"window updates", Cut::kFrames,
               [](int) { return Frame(FrameType::kWindowUpdate, 0, 0, "1234"); }},
        Attack{"data of closed streams", Cut::kFrames, [](int) { return Data(9, "x"); }},
        Attack{"a large control frame", Cut::kFrames,
               [](int) { return Frame(FrameType::kGoaway, 0, 0, std::string(1 << 20, 'x')); }},
        Attack{"continuation", Cut::kHeaders,
               [](int i) {
                 return i == 0 ? Headers(1, "", 0)
                               : Frame(FrameType::kContinuation, 0, 1, Literal("a", "b"));
               }},
        Attack{"no continuation", Cut::kProtocol,
               [](int i) { return i == 0 ? Headers(1, "", 0) : Data(1, "x"); }},
        Attack{"even streams", Cut::kProtocol, [](int) { return Headers(2); }},
        Attack{"data of no stream", Cut::kProtocol, [](int) { return Data(0, "x"); }},
        Attack{"push", Cut::kProtocol,
               [](int) { return Frame(FrameType::kPushPromise, kEndHeaders, 1, "1234"); }},
        Attack{"no HPACK", Cut::kHeaders, [](int) {
                 return Frame(FrameType::kHeaders, kEndHeaders, 1, "\xff\xff\xff\xff\xff");
               }}));

TEST(Http2WatchTest, HonestRatesAreNotCut) {
  Wire wire;
  // The client cancels 50 streams a second, which is within the limit. Its other frames do not
  // count, because the server's frames allow them: DATA allows a PING and WINDOW_UPDATEs, and a
  // PING allows its acknowledgement.
  for (int i = 0; i < 2000; ++i) {
    wire.now += std::chrono::milliseconds(20);
    wire.FromClient(HeadersThenReset(i));
    wire.FromServer(Data(1, "token") + Frame(FrameType::kPing, 0, 0, "12345678"));
    wire.FromClient(Frame(FrameType::kPing, 0, 0, "12345678") +
                    Frame(FrameType::kPing, kAck, 0, "12345678") +
                    Frame(FrameType::kWindowUpdate, 0, 0, "1234") +
                    Frame(FrameType::kWindowUpdate, 0, 1, "1234"));
    ASSERT_FALSE(wire.watch.verdict()) << i << " " << wire.watch.why();
  }
}

}  // namespace
}  // namespace quire::server::door
