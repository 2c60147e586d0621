#include "server/http/admin_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <list>
#include <poll.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "base/status_macros.h"
#include "server/http/background_text.h"
#include "server/http/cache_page.h"
#include "server/http/http_connection.h"

namespace quire::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPlainText = "text/plain; charset=utf-8";
constexpr std::string_view kHtml = "text/html; charset=utf-8";
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kMaxConnections = 512;
constexpr int kMaxAcceptsATurn = 64;            // before the open connections have their turn
constexpr std::chrono::milliseconds kRest(50);  // pause of the listener when it cannot accept

base::UniqueFd OpenSpare() { return base::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

class AdminServer::Loop {
 public:
  Loop(ListenAddress address, base::UniqueFd listener, AdminHandlers handlers)
      : address_(std::move(address)),
        handlers_(std::move(handlers)),
        listener_(std::move(listener)),
        spare_(OpenSpare()),
        thread_([this] { Run(); }) {}
  ~Loop() {
    stopping_ = true;
    wakeup_.Wake();
    thread_.join();
  }

  const ListenAddress& address() const { return address_; }

 private:
  struct Connection {
    HttpConnection http;
    const BackgroundText* maker = nullptr;  // of the text that this connection waits for
    int64_t text = 0;                       // the text's number
  };

  void Run();
  // Waits until there is something to do. Returns one flag for the listener, followed by one for
  // each connection. A flag is true when poll(2) reported an event.
  std::vector<bool> Poll();
  void Advance(Connection& connection);
  void Answer(Connection& connection);
  void AnswerProbe(HttpConnection& http, const std::function<std::string()>& why_not);
  void AnswerMade(BackgroundText& maker, std::string_view content_type);
  // Returns the status that refuses the cache's data; 0 if the client may see it.
  int WhyNotCache(const HttpHead& head) const;
  void AcceptAll();
  // Returns an accepted socket, or none when no connection waits or no descriptor is free.
  base::UniqueFd Accept();
  // Drops the oldest idle connection, or else the oldest connection. Returns false when there is no
  // connection.
  bool DropOldest();
  void DropEnded();

  const ListenAddress address_;
  const AdminHandlers handlers_;
  const base::UniqueFd listener_;
  std::atomic<bool> stopping_ = false;
  Wakeup wakeup_;
  BackgroundText metrics_{handlers_.metrics, wakeup_};
  BackgroundText cache_{handlers_.cache, wakeup_};

  // Used by the thread only.
  std::list<Connection> connections_;  // oldest first
  base::UniqueFd spare_;               // closed to accept when no other descriptor is free
  Clock::time_point rest_until_;       // end of the listener's pause
  Clock::time_point now_;
  std::thread thread_;  // declared last, because it uses the other members
};

void AdminServer::Loop::Run() {
  while (!stopping_) {
    if (!spare_) spare_ = OpenSpare();
    const std::vector<bool> ready = Poll();
    now_ = Clock::now();
    auto connection = connections_.begin();
    for (size_t i = 1; i < ready.size(); ++i, ++connection) {
      if (ready[i]) Advance(*connection);
    }
    AnswerMade(metrics_, kPrometheusText);
    AnswerMade(cache_, kJson);
    DropEnded();
    if (ready[0]) AcceptAll();
  }
}

std::vector<bool> AdminServer::Loop::Poll() {
  const Clock::time_point before = Clock::now();
  const bool resting = before < rest_until_;
  Clock::time_point until = resting ? rest_until_ : before + std::chrono::minutes(1);
  std::vector<pollfd> watched = {
      {.fd = wakeup_.fd(), .events = POLLIN, .revents = 0},
      {.fd = listener_.get(), .events = static_cast<short>(resting ? 0 : POLLIN), .revents = 0}};
  for (const Connection& connection : connections_) {
    watched.push_back(
        {.fd = connection.http.fd(), .events = connection.http.events(), .revents = 0});
    until = std::min(until, connection.http.deadline());
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - before);
  ::poll(watched.data(), watched.size(), static_cast<int>(std::max<int64_t>(wait.count(), 0)));
  if (watched[0].revents != 0) wakeup_.Clear();
  std::vector<bool> ready;
  for (size_t i = 1; i < watched.size(); ++i) ready.push_back(watched[i].revents != 0);
  return ready;
}

void AdminServer::Loop::Advance(Connection& connection) {
  if (connection.http.Advance(now_)) Answer(connection);
}

void AdminServer::Loop::Answer(Connection& connection) {
  HttpConnection& http = connection.http;
  const HttpHead& head = http.head();
  if (head.error != 0) {
    return http.Answer(head.error, kPlainText, "want a GET or HEAD of at most 8 KiB\n", now_);
  }
  if (head.path == "/livez") return AnswerProbe(http, handlers_.why_not_live);
  if (head.path == "/readyz") return AnswerProbe(http, handlers_.why_not_ready);
  const auto ask = [&](BackgroundText& maker) {
    connection.maker = &maker;
    connection.text = maker.Ask();
  };
  if (head.path == "/metrics") return ask(metrics_);
  if (head.path == "/debug/cache") {
    return http.Answer(200, kHtml, CachePage(), now_, CachePageHeaders());
  }
  if (head.path == "/debug/cache.json") {
    const int status = WhyNotCache(head);
    if (status == 0) return ask(cache_);
    return http.Answer(status, kPlainText,
                       status == 401 ? "want the bearer token of an operator\n"
                                     : "want a Host of loopback, such as 127.0.0.1\n",
                       now_);
  }
  http.Answer(404, kPlainText, "want /livez, /readyz, /metrics or /debug/cache\n", now_);
}

void AdminServer::Loop::AnswerProbe(HttpConnection& http,
                                    const std::function<std::string()>& why_not) {
  const std::string why = why_not();
  http.Answer(why.empty() ? 200 : 503, kPlainText, why.empty() ? "ok\n" : why + "\n", now_);
}

int AdminServer::Loop::WhyNotCache(const HttpHead& head) const {
  if (!IsLoopback(address_)) return handlers_.is_operator(head.authorization) ? 0 : 401;
  std::string_view host = head.host;
  const size_t port = host.rfind(':');
  if (port != std::string_view::npos && !host.ends_with(']')) host = host.substr(0, port);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" ? 0 : 403;
}

void AdminServer::Loop::AnswerMade(BackgroundText& maker, std::string_view content_type) {
  const auto made = maker.Take();
  if (!made) return;
  const auto& [number, text] = *made;
  for (Connection& connection : connections_) {
    if (connection.maker != &maker || connection.text > number) continue;
    connection.maker = nullptr;
    if (text.empty()) {
      connection.http.Answer(503, kPlainText, "not ready\n", now_);
    } else {
      connection.http.Answer(200, content_type, text, now_);
    }
  }
}

void AdminServer::Loop::AcceptAll() {
  for (int i = 0; i < kMaxAcceptsATurn; ++i) {
    base::UniqueFd socket = Accept();
    if (!socket) return;
    if (connections_.size() >= kMaxConnections) DropOldest();
    connections_.push_back({.http = HttpConnection(std::move(socket), now_)});
    Advance(connections_.back());  // often the request has arrived already
  }
}

base::UniqueFd AdminServer::Loop::Accept() {
  const auto accept = [this] {
    return base::UniqueFd(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  };
  base::UniqueFd socket = accept();
  if (socket || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return socket;
  // The process has no free descriptor or no memory. accept4 reports this error even when no
  // connection waits.
  pollfd waiting{.fd = listener_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, 0) <= 0) return socket;
  // Closes a descriptor to make room, because answers to probes matter most in this state.
  if (!DropOldest()) spare_.Reset();
  socket = accept();
  if (!socket) rest_until_ = now_ + kRest;
  return socket;
}

bool AdminServer::Loop::DropOldest() {
  if (connections_.empty()) return false;
  auto oldest = std::ranges::find_if(
      connections_, [](const Connection& connection) { return connection.http.is_idle(); });
  connections_.erase(oldest == connections_.end() ? connections_.begin() : oldest);
  return true;
}

void AdminServer::Loop::DropEnded() {
  connections_.remove_if([this](const Connection& connection) {
    return connection.http.done() || connection.http.deadline() <= now_;
  });
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(ListenAddress address,
                                                                AdminHandlers handlers) {
  ASSIGN_OR_RETURN(std::vector<base::UniqueFd> listeners, Listen(address));
  auto loop =
      std::make_unique<Loop>(std::move(address), std::move(listeners.front()), std::move(handlers));
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(loop)));
}

AdminServer::AdminServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

AdminServer::~AdminServer() = default;

std::string AdminServer::address() const { return loop_->address().ToString(); }

}  // namespace quire::server
