// Holds the heads of requests as the door judged them against the heads that gRPC reports.
//
// The input is what a client sends after its SETTINGS. It goes through an Http2Watch to a real gRPC
// server of this process. gRPC may report only heads that the gate has let in, with the same path,
// authority, authorization and metadata.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <optional>
#include <poll.h>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/unique_fd.h"
#include "server/door/header_block.h"
#include "server/door/http2_watch.h"

namespace quire::server::door {
namespace {

// A head as text: its path, its authority, and its metadata in the order of names.
std::string Written(std::string_view path, std::string_view authority,
                    const std::multiset<std::pair<std::string, std::string>>& metadata) {
  std::string text = absl::StrCat(absl::CHexEscape(std::string(path)), " ",
                                  absl::CHexEscape(std::string(authority)));
  for (const auto& [name, value] : metadata) {
    absl::StrAppend(&text, "\n", name, "=", absl::CHexEscape(value));
  }
  return text;
}

// gRPC takes these for itself, and a server does not see all of them.
bool IsOfGrpc(std::string_view name) {
  return name == "te" || name == "content-type" || name == "host" || name == "user-agent" ||
         name == "lb-cost-bin" || name == "endpoint-load-metrics-bin" || name.starts_with("grpc");
}

// What the gate was asked about.
struct Asked {
  std::string path, authorization;
};

// The head that gRPC must report for `fields`, if it reads them as the gate did.
std::string Written(const HeaderList& fields, const Asked& asked) {
  std::string authority, host;
  std::multiset<std::pair<std::string, std::string>> metadata;
  if (!asked.authorization.empty()) metadata.emplace("authorization", asked.authorization);
  for (const auto& [name, value] : fields) {
    if (name == ":authority") authority = value;
    if (name == "host") host = value;
    if (name.starts_with(':') || IsOfGrpc(name)) continue;
    if (name == "authorization" && !value.empty()) continue;
    std::string plain = value;
    if (name.ends_with("-bin") && value.starts_with('\0')) {
      plain = value.substr(1);
    } else if (name.ends_with("-bin")) {
      QUIRE_CHECK(absl::Base64Unescape(value, &plain)) << name;
    }
    metadata.emplace(name, plain);
  }
  return Written(asked.path, authority.empty() ? host : authority, metadata);
}

// gRPC may report late: on a busy machine, when some more inputs have passed.
constexpr size_t kInputsKept = 256;

// The heads that the gate let in, of the last kInputsKept inputs.
class Judged {
 public:
  void Begin() {
    std::lock_guard lock(mu_);
    heads_.push_back({});
    if (heads_.size() > kInputsKept) heads_.pop_front();
  }
  void Add(std::string head) {
    std::lock_guard lock(mu_);
    heads_.back().insert(std::move(head));
  }
  void Check(const std::string& head) {
    std::lock_guard lock(mu_);
    for (size_t i = heads_.size(); i-- > 0;) {
      if (heads_[i].contains(head)) return;
    }
    std::string known;
    for (const std::string& each : heads_.back()) absl::StrAppend(&known, "\n--\n", each);
    QUIRE_CHECK(false) << "gRPC reports a head that the door did not judge:\n"
                       << head << "\nlast it judged:" << known;
  }

 private:
  std::mutex mu_;
  std::deque<std::multiset<std::string>> heads_;
};

Judged& TheJudged() {
  static Judged& judged = *new Judged;
  return judged;
}

// Compares each call's head, and ends the call.
class Reporter final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    std::multiset<std::pair<std::string, std::string>> metadata;
    for (const auto& [name, value] : context->client_metadata()) {
      const std::string key(name.data(), name.size());
      if (!IsOfGrpc(key)) metadata.emplace(key, std::string(value.data(), value.size()));
    }
    TheJudged().Check(Written(context->method(), context->host(), metadata));
    class Ended final : public grpc::ServerGenericBidiReactor {
     public:
      Ended() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    return new Ended;
  }
};

grpc::Server& TheServer() {
  static grpc::Server* const server = [] {
    ::gpr_set_log_function([](gpr_log_func_args*) {});
    static auto& service = *new Reporter;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
    return builder.BuildAndStart().release();
  }();
  return *server;
}

// Reads the headers in what the server gets.
class Heads {
 public:
  void LetIn(Asked asked) { let_in_.push_back(std::move(asked)); }
  void Read(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      if (!in_.has_head() && !in_.TakeHead(bytes)) return;
      const bool is_headers =
          in_.frame().type == FrameType::kHeaders || in_.frame().type == FrameType::kContinuation;
      const std::span<const uint8_t> payload = in_.TakePayload(bytes);
      const bool ends = is_headers && in_.payload_left() == 0 && in_.frame().has(kEndHeaders);
      if (is_headers) QUIRE_CHECK(reader_.Read(payload, ends, 1 << 20)) << "the door's own HPACK";
      if (ends) {
        QUIRE_CHECK(!let_in_.empty()) << "headers that nobody judged";
        TheJudged().Add(Written(reader_.fields(), let_in_.front()));
        let_in_.pop_front();
      }
      if (in_.payload_left() > 0) return;
      in_.Next();
    }
  }

 private:
  std::deque<Asked> let_in_;
  FrameCursor in_;
  HeaderBlockReader reader_;
};

void SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void Run(std::span<const uint8_t> input) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  const base::UniqueFd ours(pair[0]);
  ::fcntl(pair[1], F_SETFL, O_NONBLOCK);
  TheJudged().Begin();
  grpc::AddInsecureChannelFromFd(&TheServer(), pair[1]);

  const Http2Limits limits;
  DoorCounters counters;
  Heads heads;
  const auto gate = [&heads](const RequestHead& head) -> std::optional<Refusal> {
    if (head.path.starts_with("/secret")) return Refusal{.code = 16};
    heads.LetIn({.path = std::string(head.path), .authorization = std::string(head.authorization)});
    return std::nullopt;
  };
  Http2Watch watch(limits, gate, counters);
  const std::string hello = std::string(kPreface) + std::string("\0\0\0\4\0\0\0\0\0", 9);
  std::vector<uint8_t> sent(hello.begin(), hello.end());
  sent.insert(sent.end(), input.begin(), input.end());
  std::span<const uint8_t> rest = sent;
  size_t preface_left = kPreface.size();
  while (!rest.empty() && !watch.verdict()) {
    std::string out;
    rest = rest.subspan(watch.FromClient(rest, Clock::time_point(), out));
    if (watch.verdict()) break;
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(out.data()), out.size());
    const size_t skipped = std::min(preface_left, bytes.size());
    preface_left -= skipped;
    heads.Read(bytes.subspan(skipped));
    SendAll(ours.get(), out);
  }
  ::shutdown(ours.get(), SHUT_WR);
  // gRPC closes its end when it has read everything.
  char buffer[4096];
  pollfd wait{.fd = ours.get(), .events = POLLIN, .revents = 0};
  while (::poll(&wait, 1, 5000) > 0 && ::recv(ours.get(), buffer, sizeof(buffer), 0) > 0) {
  }
}

}  // namespace
}  // namespace quire::server::door

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::server::door::Run({data, size});
  return 0;
}
