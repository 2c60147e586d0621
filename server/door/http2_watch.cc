#include "server/door/http2_watch.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace quire::server::door {
namespace {

constexpr int kMostWindowCredit = 10'000;
// The bytes for the server at which FromClient stops. Only headers may be longer than what was
// sent.
constexpr size_t kMostForwarded = 128 << 10;

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Copies bytes, and inserts frames between them or replaces the heads of frames.
class Splice {
 public:
  explicit Splice(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  void Insert(const uint8_t* place, std::string frames) {
    edits_.push_back({.place = place, .bytes = std::move(frames)});
  }
  // Sends `head` instead of the head of the frame at `frame`.
  void ReplaceHead(const uint8_t* frame, std::string head) {
    edits_.push_back({.place = frame, .bytes = std::move(head), .skipped = kFrameHeadBytes});
  }
  // Sends nothing from `place` on.
  void StopAt(const uint8_t* place) {
    Insert(place, "");
    bytes_ = bytes_.first(Offset(place));
  }

  // Returns true when `out` holds the bytes to send. Otherwise the original bytes must be sent.
  bool End(std::string& out) {
    if (edits_.empty()) return false;
    std::ranges::stable_sort(edits_, {}, &Edit::place);
    size_t sent = 0;
    for (const Edit& edit : edits_) {
      const size_t at = Offset(edit.place);
      out.append(Text(bytes_.subspan(sent, at - sent))).append(edit.bytes);
      sent = at + edit.skipped;
    }
    out.append(Text(bytes_.subspan(sent)));
    return true;
  }

 private:
  struct Edit {
    const uint8_t* place;
    std::string bytes;
    size_t skipped = 0;
  };
  size_t Offset(const uint8_t* place) const { return static_cast<size_t>(place - bytes_.data()); }

  std::span<const uint8_t> bytes_;
  std::vector<Edit> edits_;
};

}  // namespace

Http2Watch::Http2Watch(const Http2Limits& limits, Gate gate, DoorCounters& counters)
    : limits_(limits),
      gate_(std::move(gate)),
      counters_(counters),
      streams_(limits, counters),
      resets_(limits.resets),
      pings_(limits.pings),
      settings_(limits.settings),
      idle_frames_(limits.idle_frames) {}

void Http2Watch::CutOff(Cut reason, std::string_view why) {
  if (verdict_) return;
  verdict_ = reason;
  why_ = why;
}

std::string Http2Watch::Goaway() const {
  const bool is_polite = verdict_ == Cut::kIdle || verdict_ == Cut::kCertificate;
  const Http2Error error = verdict_ == Cut::kProtocol ? Http2Error::kProtocol
                           : is_polite                ? Http2Error::kNone
                                                      : Http2Error::kEnhanceYourCalm;
  return GoawayFrame(last_stream_, error, why_);
}

// Frames from the client.

size_t Http2Watch::FromClient(std::span<const uint8_t> bytes, Clock::time_point now,
                              std::string& out) {
  now_ = now;
  std::span<const uint8_t> rest = bytes;
  TakePreface(rest, out);
  while (!rest.empty() && !verdict_ && out.size() < kMostForwarded) {
    if (!in_.has_head()) {
      if (!in_.TakeHead(rest)) break;
      BeginClientFrame(out);
      if (verdict_) break;
    }
    const std::span<const uint8_t> payload = in_.TakePayload(rest);
    if (!payload.empty()) ClientPayload(payload, out);
    if (in_.payload_left() > 0 || verdict_) break;
    EndClientFrame(out);
    in_.Next();
    out += std::exchange(for_server_, {});
  }
  return bytes.size() - rest.size();
}

void Http2Watch::TakePreface(std::span<const uint8_t>& bytes, std::string& out) {
  const size_t take = std::min(kPreface.size() - preface_bytes_, bytes.size());
  if (Text(bytes.first(take)) != kPreface.substr(preface_bytes_, take)) {
    return CutOff(Cut::kProtocol, "want the preface of HTTP/2");
  }
  out += kPreface.substr(preface_bytes_, take);
  preface_bytes_ += take;
  bytes = bytes.subspan(take);
}

void Http2Watch::BeginClientFrame(std::string& out) {
  const FrameHead& frame = in_.frame();
  payload_at_ = 0;
  padding_ = 0;
  const bool may_be_padded = frame.type == FrameType::kHeaders || frame.type == FrameType::kData;
  const bool is_padded = may_be_padded && frame.has(kPadded);
  const bool has_priority = frame.type == FrameType::kHeaders && frame.has(kHasPriority);
  front_ = (is_padded ? 1 : 0) + (has_priority ? 5 : 0);
  if (front_ > frame.payload_bytes) return CutOff(Cut::kProtocol, "a frame is too short");
  if (in_headers_ != (frame.type == FrameType::kContinuation)) {
    return CutOff(Cut::kProtocol, "want CONTINUATION behind HEADERS without END_HEADERS alone");
  }
  forwards_ = false;
  switch (frame.type) {
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      return BeginHeaders();
    case FrameType::kData:
      BeginData();
      // The head of a padded frame follows when the length of the padding is known.
      if (!is_padded && !verdict_) ForwardDataHead(out);
      return;
    case FrameType::kPushPromise:
      return CutOff(Cut::kProtocol, "a client pushes nothing");
    default:
      BeginControlFrame();
      if (forwards_ && !verdict_) AppendFrameHead(frame, out);
  }
}

void Http2Watch::BeginControlFrame() {
  const FrameHead& frame = in_.frame();
  if (frame.payload_bytes > limits_.control_frame_bytes) {
    return CutOff(Cut::kFrames, "a control frame is too large");
  }
  switch (frame.type) {
    case FrameType::kResetStream:
      forwards_ = streams_.Has(frame.stream);
      CountReset();
      streams_.Close(frame.stream);
      return;
    case FrameType::kSettings:
      forwards_ = true;
      if (frame.has(kAck)) return TakeAck();
      if (!settings_.Take(now_)) CutOff(Cut::kSettings, "too many SETTINGS");
      return;
    case FrameType::kPing:
      forwards_ = true;
      if (frame.has(kAck)) return TakeAck();
      if (std::exchange(ping_is_free_, false)) return;
      if (!pings_.Take(now_)) CutOff(Cut::kPings, "too many PINGs");
      return;
    case FrameType::kWindowUpdate:
      forwards_ = true;
      if (window_credit_ > 0) {
        --window_credit_;
        return;
      }
      break;
    case FrameType::kGoaway:
      forwards_ = true;
      break;
    default:
      break;
  }
  if (!idle_frames_.Take(now_)) CutOff(Cut::kFrames, "too many frames without use");
}

void Http2Watch::TakeAck() {
  if (acks_due_ > 0) {
    --acks_due_;
  } else if (!idle_frames_.Take(now_)) {
    CutOff(Cut::kFrames, "too many acknowledgements of nothing");
  }
}

void Http2Watch::BeginHeaders() {
  const FrameHead& frame = in_.frame();
  if (frame.type == FrameType::kHeaders) {
    if (frame.stream % 2 == 0) return CutOff(Cut::kProtocol, "want odd stream ids of a client");
    headers_frame_ = frame;
    header_bytes_ = 0;
    // These HEADERS are trailers, or of a stream that is closed. gRPC clients send no trailers, so
    // both count against Http2Limits::idle_frames.
    if (frame.stream <= last_stream_ && !idle_frames_.Take(now_)) {
      CutOff(Cut::kFrames, "too many HEADERS without a call");
    }
  } else if (frame.stream != headers_frame_.stream) {
    return CutOff(Cut::kProtocol, "want CONTINUATION of the stream whose HEADERS came before");
  }
  in_headers_ = !frame.has(kEndHeaders);
  header_bytes_ += frame.payload_bytes + kFrameHeadBytes;
  if (header_bytes_ > limits_.header_block_bytes) CutOff(Cut::kHeaders, "headers are too large");
}

void Http2Watch::BeginData() {
  const FrameHead& frame = in_.frame();
  if (frame.stream == 0) return CutOff(Cut::kProtocol, "want DATA of a stream");
  const bool is_open = streams_.BeginData(frame.stream);
  // No client needs padding, so a padded frame counts as one without use.
  const bool is_idle =
      !is_open || frame.has(kPadded) || (frame.payload_bytes == 0 && !frame.has(kEndStream));
  if (is_idle && !idle_frames_.Take(now_)) CutOff(Cut::kFrames, "too many idle DATA frames");
}

void Http2Watch::ForwardDataHead(std::string& out) const {
  const FrameHead& frame = in_.frame();
  AppendFrameHead({.payload_bytes = frame.payload_bytes - front_ - padding_,
                   .type = FrameType::kData,
                   .flags = static_cast<uint8_t>(frame.flags & kEndStream),
                   .stream = frame.stream},
                  out);
}

void Http2Watch::ReadPadding(uint8_t length) {
  const FrameHead& frame = in_.frame();
  if (front_ + length > frame.payload_bytes) {
    return CutOff(Cut::kProtocol, "a frame is shorter than its padding");
  }
  padding_ = length;
  if (frame.type != FrameType::kData) return;
  // The server never sees the padding, so the door gives the client back the window for it.
  const auto unseen = static_cast<uint32_t>(front_ + padding_);
  TellClient(WindowUpdateFrame(0, unseen));
  if (streams_.Has(frame.stream) && !frame.has(kEndStream)) {
    TellClient(WindowUpdateFrame(frame.stream, unseen));
  }
}

std::span<const uint8_t> Http2Watch::Unpadded(std::span<const uint8_t> payload) const {
  const size_t skip = payload_at_ < front_ ? std::min(front_ - payload_at_, payload.size()) : 0;
  const size_t behind = in_.payload_left();
  const size_t tail = behind < padding_ ? std::min(padding_ - behind, payload.size() - skip) : 0;
  return payload.subspan(skip, payload.size() - skip - tail);
}

void Http2Watch::ClientPayload(std::span<const uint8_t> payload, std::string& out) {
  const FrameHead& frame = in_.frame();
  const bool is_data = frame.type == FrameType::kData;
  const bool is_headers =
      frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation;
  if (payload_at_ == 0 && front_ > 0 && frame.has(kPadded)) {
    ReadPadding(payload[0]);
    if (verdict_) return;
    if (is_data) ForwardDataHead(out);
  }
  if (forwards_) out += Text(payload);
  if (is_headers && !headers_.Read(Unpadded(payload), false, limits_.header_list_bytes)) {
    CutOff(Cut::kHeaders, "headers are no HPACK, or too large");
  }
  if (is_data) {
    const std::span<const uint8_t> data = Unpadded(payload);
    out += Text(data);
    if (const auto refusal = streams_.TakeData(frame.stream, data, now_)) {
      Refuse(frame.stream, *refusal);
    }
    if (unfinished_bytes() > limits_.connection_bytes) RefuseLargest();
  }
  payload_at_ += payload.size();
}

void Http2Watch::EndClientFrame(std::string& out) {
  const FrameHead& frame = in_.frame();
  switch (frame.type) {
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      if (!in_headers_) EndHeaders(out);
      return;
    case FrameType::kData:
      if (frame.has(kEndStream)) streams_.EndRequest(frame.stream);
      return;
    default:
      return;
  }
}

void Http2Watch::EndHeaders(std::string& out) {
  if (!headers_.Read({}, true, limits_.header_list_bytes)) {
    return CutOff(Cut::kHeaders, "headers are no HPACK, or too large");
  }
  const uint32_t id = headers_frame_.stream;
  const bool ends_stream = headers_frame_.has(kEndStream);
  if (id <= last_stream_) return EndTrailers(id, ends_stream, out);
  last_stream_ = id;
  streams_.Open(id, now_);
  if (const auto refusal = JudgeHead()) return AnswerRefusal(id, *refusal);
  AppendHeaders(id, headers_to_server_.Write(headers_.fields()), ends_stream, out);
  if (ends_stream) streams_.EndRequest(id);
}

std::optional<Refusal> Http2Watch::JudgeHead() const {
  if (streams_.are_too_many()) return Refusal{.reason = Refused::kStreams};
  if (headers_.list_bytes() > limits_.request_list_bytes) {
    return Refusal{
        .reason = Refused::kMalformed,
        .code = kResourceExhausted,
        .message = absl::StrFormat("headers: want at most %d bytes with 32 for each header, got %d",
                                   limits_.request_list_bytes, headers_.list_bytes())};
  }
  const absl::StatusOr<RequestHead> head = ReadHead(headers_.fields());
  if (head.ok()) return gate_(*head);
  return Refusal{.reason = Refused::kMalformed,
                 .code = static_cast<int>(head.status().code()),
                 .message = std::string(head.status().message())};
}

// Nothing in the server reads trailers, so it gets their END_STREAM alone.
void Http2Watch::EndTrailers(uint32_t stream, bool ends_stream, std::string& out) {
  if (!streams_.Has(stream)) return;
  if (!ends_stream) {
    return Refuse(stream, {.reason = Refused::kMalformed,
                           .code = kInvalidArgument,
                           .message = "trailers: want END_STREAM"});
  }
  AppendFrameHead({.type = FrameType::kData, .flags = kEndStream, .stream = stream}, out);
  streams_.EndRequest(stream);
}

// Frames from the server.

bool Http2Watch::FromServer(std::span<const uint8_t> bytes, Clock::time_point now,
                            std::string& out) {
  now_ = now;
  std::string joined;
  const bool had_kept = !out_kept_.empty();
  if (had_kept) {
    joined = std::exchange(out_kept_, {}).append(Text(bytes));
    bytes = Bytes(joined);
  }
  Splice splice(bytes);
  if (had_kept) splice.Insert(bytes.data(), "");  // `bytes` is in `joined`, so End must fill `out`
  std::span<const uint8_t> rest = bytes;
  while (!rest.empty() && !verdict_) {
    if (out_.at_border()) {
      if (!for_client_.empty() && !out_in_headers_) {
        splice.Insert(rest.data(), std::exchange(for_client_, {}));
      }
      if (!CanJudge(rest)) {
        splice.StopAt(rest.data());
        out_kept_ = Text(rest);
        break;
      }
      const uint8_t* const frame = rest.data();
      out_.TakeHead(rest);
      if (ServerFrame(rest)) {
        std::string head(reinterpret_cast<const char*>(frame), kFrameHeadBytes);
        head[3] = static_cast<char>(FrameType::kUnknown);
        head[4] = 0;
        splice.ReplaceHead(frame, head);
      }
    }
    out_.TakePayload(rest);
    if (out_.payload_left() > 0) break;
    out_.Next();
  }
  return splice.End(out);
}

bool Http2Watch::CanJudge(std::span<const uint8_t> bytes) const {
  if (bytes.size() < kFrameHeadBytes) return false;
  const FrameHead frame = ParseFrameHead(bytes.first<kFrameHeadBytes>());
  const bool is_late_answer = frame.type == FrameType::kHeaders && WasRefused(frame.stream);
  return !is_late_answer || bytes.size() >= kFrameHeadBytes + frame.payload_bytes;
}

bool Http2Watch::ServerFrame(std::span<const uint8_t> payload) {
  const FrameHead& frame = out_.frame();
  const bool is_headers = frame.type == FrameType::kHeaders;
  const bool is_data = frame.type == FrameType::kData;
  if (is_headers || frame.type == FrameType::kContinuation) {
    out_in_headers_ = !frame.has(kEndHeaders);
  }
  if (is_headers || is_data) {
    ping_is_free_ = true;
    // After each HEADERS or DATA frame of the server, the client may send one WINDOW_UPDATE for the
    // stream and one for the connection.
    window_credit_ = std::min(window_credit_ + 2, kMostWindowCredit);
  }
  const bool wants_ack = frame.type == FrameType::kSettings || frame.type == FrameType::kPing;
  if (wants_ack && !frame.has(kAck)) ++acks_due_;
  if (!streams_.Has(frame.stream)) {
    if (!WasRefused(frame.stream)) return false;
    if (frame.type == FrameType::kResetStream) return true;
    if (!is_headers) return false;
    // After a reset gRPC may still send CANCELLED as its answer. This answer must be hidden,
    // because the client already has an answer.
    if (out_in_headers_ || !LeavesTableAlone(payload.first(frame.payload_bytes))) {
      CutOff(Cut::kProtocol, "an answer crossed a refusal");
    }
    return true;
  }
  if (is_headers || is_data) streams_.Answer(frame.stream, is_data);
  if (frame.type == FrameType::kResetStream) CountReset();
  const bool ends = (is_headers || is_data) && frame.has(kEndStream);
  if (ends || frame.type == FrameType::kResetStream) streams_.Close(frame.stream);
  return false;
}

// Refusing streams.

void Http2Watch::Refuse(uint32_t stream, const Refusal& refusal) {
  for_server_ += ResetStreamFrame(stream, Http2Error::kCancel);
  refused_[num_refused_++ % kRefusedKept] = stream;
  AnswerRefusal(stream, refusal);
}

void Http2Watch::AnswerRefusal(uint32_t stream, const Refusal& refusal) {
  if (refusal.reason == Refused::kStreams) {
    TellClient(ResetStreamFrame(stream, Http2Error::kRefusedStream));  // clients may try again
  } else if (streams_.IsAnswered(stream)) {
    TellClient(ResetStreamFrame(stream, Http2Error::kEnhanceYourCalm));
  } else {
    TellClient(TrailersOnlyFrame(stream, refusal.code, refusal.message));
    TellClient(ResetStreamFrame(stream, Http2Error::kNone));  // the rest of the body is unwanted
  }
  counters_.refused.Add(refusal.reason);
  streams_.Close(stream);
  CountReset();
}

void Http2Watch::TellClient(std::string_view frames) {
  for_client_ += frames;
  if (for_client_.size() > limits_.unread_bytes) CutOff(Cut::kUnread, "the door is not read");
}

bool Http2Watch::WasRefused(uint32_t stream) const {
  const auto end = refused_.begin() + static_cast<ptrdiff_t>(std::min(num_refused_, kRefusedKept));
  return std::find(refused_.begin(), end, stream) != end;
}

void Http2Watch::CountReset() {
  if (!resets_.Take(now_)) CutOff(Cut::kResets, "too many streams are reset");
}

void Http2Watch::RefuseLargest() {
  const std::optional<uint32_t> largest = streams_.Largest();
  if (!largest) return;
  Refuse(*largest, {.reason = Refused::kUnfinished,
                    .code = kResourceExhausted,
                    .message = "message: too many bytes of unfinished messages; try again later"});
}

void Http2Watch::Expire(Clock::time_point now) {
  now_ = now;
  for (const uint32_t stream : streams_.Late(now)) {
    Refuse(stream, {.reason = Refused::kTimeout,
                    .code = kDeadlineExceeded,
                    .message = absl::StrFormat("message: want all of it within %d ms",
                                               limits_.message_time.count())});
  }
}

std::string Http2Watch::TakeForServer() {
  if (!in_.at_border() || preface_bytes_ < kPreface.size()) return "";
  return std::exchange(for_server_, {});
}

std::string Http2Watch::TakeForClient() {
  return can_speak() ? std::exchange(for_client_, {}) : "";
}

}  // namespace quire::server::door
