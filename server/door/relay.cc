#include "server/door/relay.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/socket.h>

#include "base/clock.h"
#include "base/logging.h"
#include "server/door/http2_frames.h"
#include "server/door/tls.h"

namespace quire::server::door {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsInTurn = 8;  // from one end, before other connections have their turn
constexpr std::chrono::seconds kLinger(2);
constexpr std::chrono::milliseconds kSweepEvery(100);
constexpr std::chrono::seconds kLastWords(1);

bool IsAgain() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

struct Relay::Connection {
  Connection(RelayedClient taken, const Http2Limits& limits, DoorCounters& counters)
      : client(std::move(taken.client)),
        grpc(std::move(taken.grpc)),
        lent(taken.lent),
        peer_name(std::move(taken.peer_name)),
        address(std::move(taken.address)),
        unjudged(std::move(taken.first_bytes)),
        place(std::move(taken.place)),
        watch(limits, std::move(taken.gate), counters) {}

  // kLingering: the relay has told gRPC that no more bytes follow, and the client still reads the
  // last bytes. kLeaving: the client's socket is closed, but gRPC has not closed its end yet.
  enum class Stage { kRelaying, kLingering, kLeaving, kDead };

  Stage stage = Stage::kRelaying;
  ClientSocket client;
  base::UniqueFd grpc;
  const LentSocket lent;
  const std::string peer_name;
  const std::string address;
  std::string unjudged;  // read from the client, and not yet shown to the watch
  Places::Place place;
  Http2Watch watch;
  std::string to_grpc, to_client;  // read and not yet written
  bool client_ended = false;       // the client sends nothing more
  bool grpc_ended = false;
  bool told_grpc_end = false;
  bool told_client_end = false;
  uint32_t client_armed = 0, grpc_armed = 0;
  bool is_idle = false;  // counted in DoorCounters::idle
  bool is_timed = false;
  Clock::time_point idle_since;
  Clock::time_point linger_until;
  End client_end{this, false}, grpc_end{this, true};
};

Relay::Relay(const Http2Limits& limits, PeerDirectory& peers, DoorCounters& counters)
    : limits_(limits), peers_(peers), counters_(counters), buffer_(kReadBytes) {
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() { Stop(); }

void Relay::Add(RelayedClient client) {
  {
    base::MutexLock lock(mu_);
    new_.push_back(std::move(client));
  }
  epoll_.Wake();
}

void Relay::SetTls(std::shared_ptr<SSL_CTX> context) {
  {
    base::MutexLock lock(mu_);
    new_tls_ = std::move(context);
  }
  tls_is_new_.store(true, std::memory_order_release);
  epoll_.Wake();
}

void Relay::EndIdlest() {
  end_wanted_.store(true, std::memory_order_relaxed);
  epoll_.Wake();
}

void Relay::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  epoll_.Wake();
  thread_.join();
}

void Relay::Run() {
  StartDoorThread("door-relay");
  Clock::time_point next_sweep = Clock::now();
  std::optional<Clock::time_point> last_words;
  while (true) {
    const Clock::time_point now = Clock::now();
    if (stop_.load(std::memory_order_acquire)) {
      if (!last_words) last_words = now + kLastWords;
      const bool all_said = std::ranges::all_of(connections_, [](const auto& c) {
        return c.first->stage != Connection::Stage::kRelaying && c.first->to_client.empty();
      });
      if (all_said || now >= *last_words) break;
    }
    std::optional<std::chrono::milliseconds> timeout;
    if (num_timed_ > 0 || last_words) timeout = kSweepEvery;
    if (!unfinished_.empty()) timeout = std::chrono::milliseconds(0);
    const auto events = epoll_.Wait(timeout);
    // Before the events, which may be calls of clients that are no longer accepted.
    if (tls_is_new_.exchange(false, std::memory_order_acquire)) EndUnacceptedNow();
    for (const epoll_event& event : events) {
      const End& end = *static_cast<const End*>(event.data.ptr);
      Serve(*end.connection, event.events, end.is_grpc);
    }
    for (Connection* c : std::exchange(unfinished_, {})) {
      PumpToGrpc(*c);
      PumpToClient(*c);
      Settle(*c);
    }
    TakeNew();
    if (end_wanted_.exchange(false, std::memory_order_relaxed)) EndIdlestNow();
    if (num_timed_ > 0 && Clock::now() >= next_sweep) {
      Sweep(Clock::now());
      next_sweep = Clock::now() + kSweepEvery;
    }
    Bury();
  }
  for (auto& [c, owned] : connections_) Close(*c);
  counters_.open.fetch_sub(static_cast<int64_t>(connections_.size()), std::memory_order_relaxed);
  connections_.clear();
}

void Relay::TakeNew() {
  std::vector<RelayedClient> taken;
  {
    base::MutexLock lock(mu_);
    taken.swap(new_);
  }
  for (RelayedClient& client : taken) {
    auto owned = std::make_unique<Connection>(std::move(client), limits_, counters_);
    Connection& c = *owned;
    connections_.emplace(&c, std::move(owned));
    EndIfUnaccepted(c);
    PumpToGrpc(c);
    Settle(c);
  }
}

// Does only the work that `events` calls for. Trying more would cost a system call for each try.
void Relay::Serve(Connection& c, uint32_t events, bool is_grpc) {
  if (c.stage == Connection::Stage::kDead) return;
  if (is_grpc && c.stage != Connection::Stage::kRelaying) {
    AwaitGrpc(c);
  } else if (c.stage == Connection::Stage::kLingering) {
    SayLastWords(c);
    Discard(c);
  } else if (c.stage == Connection::Stage::kRelaying) {
    const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
    // A client whose connection is broken cannot receive the bytes that are left.
    if (!is_grpc && broken) return Close(c);
    const bool readable = (events & EPOLLIN) != 0 || broken;
    const bool writable = (events & EPOLLOUT) != 0;
    if (is_grpc ? writable : readable) PumpToGrpc(c);
    if (is_grpc ? readable : writable) PumpToClient(c);
  }
  Settle(c);
}

// Sends the door's own frames, and updates the connection's epoll events and counts. Must be called
// after any work on a connection.
void Relay::Settle(Connection& c) {
  if (c.to_client.size() > kReadBytes + limits_.unread_bytes) {
    c.watch.CutOff(Cut::kUnread, "refusals are not read");
  }
  if (c.stage == Connection::Stage::kRelaying && c.watch.verdict()) CutOff(c);
  if (c.stage == Connection::Stage::kRelaying) {
    if (const std::string frames = c.watch.TakeForClient(); !frames.empty())
      SendToClient(c, frames);
  }
  if (c.stage == Connection::Stage::kRelaying) {
    c.to_grpc += c.watch.TakeForServer();
    FlushToGrpc(c);
  }
  NoteState(c);
  if (c.stage != Connection::Stage::kDead) Arm(c);
}

void Relay::PumpToGrpc(Connection& c) {
  for (int turn = 0; c.stage == Connection::Stage::kRelaying; ++turn) {
    if (!FlushToGrpc(c) || c.told_grpc_end) return;
    if (turn == kReadsInTurn) return unfinished_.push_back(&c);
    std::span<const uint8_t> bytes;
    const std::string unjudged = std::exchange(c.unjudged, {});
    if (!unjudged.empty()) {
      bytes = {reinterpret_cast<const uint8_t*>(unjudged.data()), unjudged.size()};
    } else if (!c.client_ended) {
      const ssize_t size = c.client.Read(buffer_);
      if (size == ClientSocket::kAgain) return;
      if (size == ClientSocket::kClosed) c.client_ended = true;
      bytes = std::span(buffer_).first(static_cast<size_t>(size));
    }
    if (c.client_ended) {
      ::shutdown(c.grpc.get(), SHUT_WR);
      c.told_grpc_end = true;
      return;
    }
    judged_.clear();
    const size_t num_judged = c.watch.FromClient(bytes, Clock::now(), judged_);
    if (c.watch.verdict()) return CutOff(c);
    c.unjudged = Text(bytes.subspan(num_judged));
    if (!judged_.empty()) {
      const ssize_t sent = ::send(c.grpc.get(), judged_.data(), judged_.size(), MSG_NOSIGNAL);
      c.to_grpc = judged_.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
    }
    MakeRoom();
    // The read did not fill the buffer, so there are most likely no more bytes to read.
    if (unjudged.empty() && c.unjudged.empty() && c.client.tls() == nullptr &&
        bytes.size() < kReadBytes)
      return;
  }
}

void Relay::PumpToClient(Connection& c) {
  for (int turn = 0; c.stage == Connection::Stage::kRelaying; ++turn) {
    if (!FlushToClient(c)) return;
    if (c.grpc_ended) return Linger(c);
    if (turn == kReadsInTurn) return unfinished_.push_back(&c);
    const ssize_t size = ::recv(c.grpc.get(), buffer_.data(), buffer_.size(), 0);
    if (size < 0 && IsAgain()) return;
    if (size <= 0) {
      c.grpc_ended = true;
      continue;
    }
    const auto bytes = std::span(std::as_const(buffer_)).first(static_cast<size_t>(size));
    std::string spliced;
    const bool is_spliced = c.watch.FromServer(bytes, Clock::now(), spliced);
    if (c.watch.verdict()) return CutOff(c);
    SendToClient(c, is_spliced ? std::string_view(spliced) : Text(bytes));
    if (bytes.size() < kReadBytes / 2) return;
  }
}

// Writes to gRPC. Returns false while bytes are left.
bool Relay::FlushToGrpc(Connection& c) {
  while (!c.to_grpc.empty()) {
    const ssize_t sent = ::send(c.grpc.get(), c.to_grpc.data(), c.to_grpc.size(), MSG_NOSIGNAL);
    if (sent < 0 && IsAgain()) return false;
    if (sent < 0) {  // gRPC has closed its end; its last bytes can still be read
      c.to_grpc.clear();
      c.client_ended = c.told_grpc_end = true;
      return true;
    }
    c.to_grpc.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

// Writes to the client. Returns false while bytes are left, or when the connection has broken.
bool Relay::FlushToClient(Connection& c) {
  while (!c.to_client.empty()) {
    const ssize_t sent = c.client.Write(c.to_client);
    if (sent == ClientSocket::kAgain) return false;
    if (sent == ClientSocket::kClosed) {
      Close(c);
      return false;
    }
    c.to_client.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

void Relay::SendToClient(Connection& c, std::string_view bytes) {
  if (bytes.empty()) return;
  if (!c.to_client.empty()) {
    c.to_client += bytes;
    return;
  }
  const ssize_t sent = c.client.Write(bytes);
  if (sent == ClientSocket::kClosed) return Close(c);
  c.to_client = bytes.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  if (!c.to_client.empty()) FlushToClient(c);
}

// Refuses streams until the unfinished messages of all connections have at most total_bytes. Each
// round takes the connection with the most unfinished bytes and refuses its largest stream. The
// bytes of a client that has disconnected count until gRPC has closed its end, because gRPC still
// has these bytes in memory.
void Relay::MakeRoom() {
  while (static_cast<size_t>(counters_.unfinished_bytes.load(std::memory_order_relaxed)) >
         limits_.total_bytes) {
    const auto largest = std::ranges::max_element(connections_, {}, [](const auto& c) {
      return c.first->stage == Connection::Stage::kRelaying ? c.first->watch.unfinished_bytes() : 0;
    });
    if (largest == connections_.end() || largest->first->watch.unfinished_bytes() == 0 ||
        largest->first->stage != Connection::Stage::kRelaying) {
      return;
    }
    Connection& c = *largest->first;
    c.watch.RefuseLargest();
    unfinished_.push_back(&c);  // its next turn sends the refusal
  }
}

// Keeps reading from the client for a while. Closing a socket that has unread bytes would discard
// the last bytes that were written to it.
void Relay::Linger(Connection& c) {
  if (c.stage != Connection::Stage::kRelaying) return;
  c.stage = Connection::Stage::kLingering;
  c.linger_until = Clock::now() + kLinger;
  LeaveGrpc(c);
  SayLastWords(c);
}

void Relay::SayLastWords(Connection& c) {
  if (!FlushToClient(c)) return;
  if (!std::exchange(c.told_client_end, true)) c.client.EndWrites();
  if (c.client_ended) Close(c);
}

// Discards the bytes that still arrive, without decrypting them.
void Relay::Discard(Connection& c) {
  for (int turn = 0; turn < kReadsInTurn && c.stage == Connection::Stage::kLingering; ++turn) {
    const ssize_t size = ::recv(c.client.fd(), buffer_.data(), buffer_.size(), 0);
    if (size < 0 && IsAgain()) return;
    if (size <= 0) Close(c);
  }
}

void Relay::CutOff(Connection& c) {
  counters_.cut.Add(*c.watch.verdict());
  static base::LogLimit limit;
  base::LogLimited(limit, base::SteadyNow(), base::LogLevel::kWarning, "door", "connection cut",
                   {{"peer", c.address}, {"reason", c.watch.why()}});
  // GOAWAY cannot be sent in the middle of another frame. In that case the client only sees the
  // connection end.
  c.to_client = c.to_client.empty() && c.watch.can_speak() ? c.watch.Goaway() : "";
  Linger(c);
}

void Relay::EndIdlestNow() {
  if (making_room_ != nullptr) return;  // ends one connection at a time
  Connection* ended = nullptr;
  // The number of places that the address of `ended` has, and the time that `ended` has been idle.
  std::pair<size_t, Clock::duration> most;
  const Clock::time_point now = Clock::now();
  for (const auto& [c, owned] : connections_) {
    if (!c->is_idle) continue;
    const std::pair has(c->place.num_of_address(), now - c->idle_since);
    if (ended != nullptr && has <= most) continue;
    ended = c;
    most = has;
  }
  if (ended == nullptr) return;
  ended->watch.CutOff(Cut::kIdle, "idle, and the server is full");
  CutOff(*ended);
  Close(*ended);  // without lingering, because another client waits for the place
  making_room_ = ended;
}

void Relay::EndUnacceptedNow() {
  {
    base::MutexLock lock(mu_);
    tls_ = new_tls_;
  }
  for (auto& [c, owned] : connections_) {
    EndIfUnaccepted(*c);
    Settle(*c);
  }
}

void Relay::EndIfUnaccepted(Connection& c) {
  if (c.stage != Connection::Stage::kRelaying || tls_ == nullptr) return;
  if (AcceptsClient(tls_.get(), c.client.tls())) return;
  c.watch.CutOff(Cut::kCertificate, "the certificate's authority is no longer accepted");
  CutOff(c);
}

// Tells gRPC that no more bytes follow. The connection keeps its place until gRPC has closed its
// end. Otherwise clients could come and go faster than gRPC closes connections, and gRPC would hold
// more connections than the door counts.
void Relay::LeaveGrpc(Connection& c) {
  // The client is removed from the PeerDirectory before gRPC sees the end of the connection. If a
  // call does not find its client there, the client has disconnected.
  peers_.Remove(c.peer_name);
  ::shutdown(c.grpc.get(), SHUT_WR);
  if (c.grpc_ended) CloseGrpc(c);
}

// Reads and drops the bytes that gRPC still sends.
void Relay::AwaitGrpc(Connection& c) {
  for (int turn = 0; turn < kReadsInTurn; ++turn) {
    const ssize_t size = ::recv(c.grpc.get(), buffer_.data(), buffer_.size(), 0);
    if (size < 0 && IsAgain()) return;
    if (size <= 0) return CloseGrpc(c);
  }
}

void Relay::CloseGrpc(Connection& c) {
  if (!c.grpc) return;
  epoll_.Arm(c.grpc.get(), 0, c.grpc_armed, nullptr);
  c.grpc.Reset();
  if (c.stage == Connection::Stage::kLeaving) BuryWhenLeft(c);
}

void Relay::Close(Connection& c) {
  if (c.stage == Connection::Stage::kLeaving || c.stage == Connection::Stage::kDead) return;
  if (c.stage == Connection::Stage::kRelaying) LeaveGrpc(c);
  epoll_.Arm(c.client.fd(), 0, c.client_armed, nullptr);
  c.client.Close();
  c.to_client.clear();
  c.stage = Connection::Stage::kLeaving;
  BuryWhenLeft(c);
  if (c.stage == Connection::Stage::kLeaving) Arm(c);
}

// Marks the connection as dead once gRPC has closed its end. A shutdown of that end is not enough,
// because a busy gRPC server shuts it down long before closing it.
void Relay::BuryWhenLeft(Connection& c) {
  if (!c.grpc && !c.lent.is_open()) {
    c.stage = Connection::Stage::kDead;
    dead_.push_back(&c);
  }
  NoteState(c);
}

void Relay::Bury() {
  if (dead_.empty()) return;
  for (Connection* c : std::exchange(dead_, {})) {
    std::erase(unfinished_, c);
    if (c == making_room_) making_room_ = nullptr;
    connections_.erase(c);
    counters_.open.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Relay::Arm(Connection& c) {
  const bool relaying = c.stage == Connection::Stage::kRelaying;
  if (c.stage != Connection::Stage::kLeaving) {
    uint32_t client = 0;
    if (!c.client_ended && (!relaying || c.to_grpc.empty())) client |= EPOLLIN;
    if (!c.to_client.empty()) client |= EPOLLOUT;
    epoll_.Arm(c.client.fd(), client, c.client_armed, &c.client_end);
  }
  if (!c.grpc) return;
  uint32_t grpc = 0;
  if (!c.grpc_ended && (!relaying || c.to_client.empty())) grpc |= EPOLLIN;
  if (relaying && !c.to_grpc.empty()) grpc |= EPOLLOUT;
  epoll_.Arm(c.grpc.get(), grpc, c.grpc_armed, &c.grpc_end);
}

void Relay::NoteState(Connection& c) {
  const bool relaying = c.stage == Connection::Stage::kRelaying;
  const bool idle = relaying && c.watch.num_streams() == 0;
  if (idle != c.is_idle) {
    c.is_idle = idle;
    c.idle_since = Clock::now();
    counters_.idle.fetch_add(idle ? 1 : -1, std::memory_order_relaxed);
  }
  const bool timed = c.stage == Connection::Stage::kLingering || (relaying && c.watch.waits()) ||
                     (c.stage == Connection::Stage::kLeaving && !c.grpc);
  if (timed != c.is_timed) {
    c.is_timed = timed;
    num_timed_ += timed ? 1 : -1;
  }
}

void Relay::Sweep(Clock::time_point now) {
  for (auto& [c, owned] : connections_) {
    if (!c->is_timed) continue;
    if (c->stage == Connection::Stage::kLingering) {
      if (now >= c->linger_until) Close(*c);
      continue;
    }
    if (c->stage == Connection::Stage::kLeaving) {
      BuryWhenLeft(*c);
      continue;
    }
    c->watch.Expire(now);
    Settle(*c);
  }
}

}  // namespace quire::server::door
