#include "server/door/greeter.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "server/door/tls.h"

namespace quire::server::door {
namespace {

// The pause after file descriptors have run out, and the pause between two tries to find a place
// for the client in `lobby_`.
constexpr std::chrono::milliseconds kRest(20);
constexpr int kLobbyTries = 25;
constexpr int kAcceptsInTurn = 64;
// HTTP/2's preface and the head of the SETTINGS frame that must follow it.
constexpr size_t kHelloBytes = kPreface.size() + kFrameHeadBytes;
constexpr std::string_view kWrongProtocol =
    "HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c\r\nConnection: close, Upgrade\r\n"
    "Content-Type: text/plain\r\nContent-Length: 57\r\n\r\n"
    "This port speaks gRPC, over HTTP/2 with prior knowledge.\n";

bool IsHttp1(std::string_view text) {
  return std::ranges::any_of(
      std::array<std::string_view, 5>{"GET ", "POST ", "HEAD ", "PUT ", "OPTIONS "},
      [text](std::string_view method) { return text.starts_with(method); });
}

// Returns a random prefix for the names of local sockets. These abstract names are shared by all
// processes of the machine. They must be hard to guess, or another process could take the next
// name.
std::string RandomPrefix() {
  std::random_device random;
  return absl::StrCat("quire-", absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8), "-");
}

// Returns the two ends of a local connection. Binds the first end to `name`. gRPC gets the second
// end and sees `name` as the name of its peer.
std::optional<std::array<base::UniqueFd, 2>> NamedPair(std::string_view name) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    return std::nullopt;
  }
  std::array<base::UniqueFd, 2> ends = {base::UniqueFd(pair[0]), base::UniqueFd(pair[1])};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path + 1);  // the leading NUL makes the name abstract
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(pair[0], reinterpret_cast<sockaddr*>(&address), size) != 0) return std::nullopt;
  return ends;
}

}  // namespace

struct Greeter::Newcomer {
  ClientSocket client;
  std::string address;
  Places::Place place;
  Clock::time_point deadline;
  std::shared_ptr<SSL_CTX> tls;  // the context when the client was accepted
  bool shook_hands = false;
  bool is_self = false;  // a connection of the server to itself, which takes no place
  bool is_gone = false;
  std::string hello;
  uint32_t armed = 0;
  std::list<Newcomer>::iterator self;
};

Greeter::Greeter(std::vector<base::UniqueFd> listeners, std::chrono::milliseconds handshake_time,
                 std::shared_ptr<SSL_CTX> tls, PeerGate gate, HandOver hand_over, Places& places,
                 PeerDirectory& peers, Relay& relay, DoorCounters& counters)
    : listeners_(std::move(listeners)),
      handshake_time_(handshake_time),
      gate_(std::move(gate)),
      hand_over_(std::move(hand_over)),
      places_(places),
      peers_(peers),
      relay_(relay),
      counters_(counters),
      acceptor_(counters),
      tls_(std::move(tls)),
      listeners_armed_(listeners_.size()),
      name_prefix_(RandomPrefix()) {
  thread_ = std::thread([this] { Run(); });
}

Greeter::~Greeter() { Stop(); }

void Greeter::SetTls(std::shared_ptr<SSL_CTX> tls) {
  base::MutexLock lock(mu_);
  tls_ = std::move(tls);
}

void Greeter::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  epoll_.Wake();
  thread_.join();
}

void Greeter::Run() {
  StartDoorThread("door-greeter");
  while (!stop_.load(std::memory_order_acquire)) {
    TryLobby();
    ListenOrRest();
    const Clock::time_point now = Clock::now();
    std::optional<std::chrono::milliseconds> timeout;
    const auto wake_at = [&](Clock::time_point when) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - now);
      timeout = timeout ? std::min(*timeout, left) : left;
    };
    if (now < rest_until_) wake_at(rest_until_);
    if (!newcomers_.empty()) wake_at(newcomers_.front().deadline);
    for (const epoll_event& event : epoll_.Wait(timeout)) {
      void* const data = event.data.ptr;  // a copy, because epoll_event is packed
      const auto listener = std::ranges::find_if(
          listeners_, [data](const base::UniqueFd& fd) { return &fd == data; });
      if (listener != listeners_.end()) {
        Accept(listener->get());
      } else if (auto& newcomer = *static_cast<Newcomer*>(data); !newcomer.is_gone) {
        Greet(newcomer);
      }
    }
    while (!newcomers_.empty() && newcomers_.front().deadline <= Clock::now()) {
      TurnAway(newcomers_.front(), Turned::kHello);
    }
    gone_.clear();
  }
  while (!newcomers_.empty()) Forget(newcomers_.front());
  gone_.clear();
}

void Greeter::ListenOrRest() {
  const bool rests = Clock::now() < rest_until_;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    // epoll's data pointer is not const. The pointer is only used to read the listener.
    void* const data = const_cast<base::UniqueFd*>(&listeners_[i]);
    epoll_.Arm(listeners_[i].get(), rests ? 0U : uint32_t{EPOLLIN}, listeners_armed_[i], data);
  }
}

void Greeter::Accept(int listener) {
  for (int i = 0; i < kAcceptsInTurn && !lobby_; ++i) {
    AcceptedClient accepted;
    switch (acceptor_.Accept(listener, accepted)) {
      case Acceptor::Outcome::kNobody:
        return;
      case Acceptor::Outcome::kNoDescriptors:
        rest_until_ = Clock::now() + kRest;
        return;
      case Acceptor::Outcome::kAccepted:
        break;
    }
    if (LetIn(accepted)) continue;
    lobby_ = std::move(accepted);
    lobby_tries_ = kLobbyTries;
    rest_until_ = Clock::now() + kRest;
    return;
  }
}

void Greeter::TryLobby() {
  if (!lobby_ || Clock::now() < rest_until_) return;
  if (LetIn(*lobby_)) {
    lobby_.reset();
  } else if (--lobby_tries_ == 0) {
    counters_.turned.Add(Turned::kFull);
    lobby_.reset();
  } else {
    rest_until_ = Clock::now() + kRest;
  }
}

// When the server is full, LetIn makes room at the cost of the addresses that have the most places.
// It first turns away a newcomer that has not sent HTTP/2's first frame. If there is still no
// place, it ends a connection that has no call.
bool Greeter::LetIn(AcceptedClient& client) {
  Turned why{};
  const bool is_self = self_calls_.Take(client.fd.get());
  std::optional<Places::Place> place =
      is_self ? Places::Place() : places_.Take(client.address_key, why);
  if (!place && why == Turned::kFull && !newcomers_.empty()) {
    const auto of_address = [](const Newcomer& newcomer) {
      return newcomer.place.num_of_address();
    };
    const auto newcomer = std::ranges::max_element(newcomers_, {}, of_address);
    if (of_address(*newcomer) > 0) TurnAway(*newcomer, Turned::kHello);
    place = places_.Take(client.address_key, why);
  }
  // The client waits in `lobby_` for the place of the connection that EndIdlest ends. The place
  // becomes free only when gRPC has closed that connection.
  if (!place && why == Turned::kFull &&
      (counters_.idle.load(std::memory_order_relaxed) > 0 || lobby_)) {
    relay_.EndIdlest();
    return false;
  }
  if (!place) {
    counters_.turned.Add(why);
    client.fd.Reset();
    return true;
  }
  std::shared_ptr<SSL_CTX> tls;
  {
    base::MutexLock lock(mu_);
    tls = tls_;
  }
  counters_.open.fetch_add(1, std::memory_order_relaxed);
  newcomers_.push_back({.client = ClientSocket(std::move(client.fd), tls.get()),
                        .address = std::move(client.address),
                        .place = *std::move(place),
                        .deadline = Clock::now() + handshake_time_,
                        .tls = tls,
                        .is_self = is_self});
  Newcomer& newcomer = newcomers_.back();
  newcomer.self = std::prev(newcomers_.end());
  epoll_.Arm(newcomer.client.fd(), EPOLLIN, newcomer.armed, &newcomer);
  return true;
}

void Greeter::Greet(Newcomer& newcomer) {
  if (!newcomer.shook_hands) {
    switch (newcomer.client.DoHandshake()) {
      case ClientSocket::Handshake::kFailed:
        return TurnAway(newcomer, Turned::kHandshake);
      case ClientSocket::Handshake::kWantsRead:
        return epoll_.Arm(newcomer.client.fd(), EPOLLIN, newcomer.armed, &newcomer);
      case ClientSocket::Handshake::kWantsWrite:
        return epoll_.Arm(newcomer.client.fd(), EPOLLOUT, newcomer.armed, &newcomer);
      case ClientSocket::Handshake::kDone:
        newcomer.shook_hands = true;
        epoll_.Arm(newcomer.client.fd(), EPOLLIN, newcomer.armed, &newcomer);
    }
  }
  if (ReadHello(newcomer)) Welcome(newcomer);
}

bool Greeter::ReadHello(Newcomer& newcomer) {
  std::array<uint8_t, 4096> buffer;
  const ssize_t size = newcomer.client.Read(buffer);
  if (size == ClientSocket::kAgain) return false;
  if (size == ClientSocket::kClosed) {
    TurnAway(newcomer, Turned::kHello);
    return false;
  }
  newcomer.hello.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(size));
  const std::string_view hello = newcomer.hello;
  if (hello.substr(0, kPreface.size()) != kPreface.substr(0, hello.size())) {
    if (IsHttp1(hello)) {
      (void)newcomer.client.Write(kWrongProtocol);
      newcomer.client.EndWrites();
    }
    TurnAway(newcomer, Turned::kHello);
    return false;
  }
  if (hello.size() < kHelloBytes) return false;
  const auto first_type = static_cast<FrameType>(hello[kPreface.size() + 3]);
  if (first_type == FrameType::kSettings) return true;
  TurnAway(newcomer, Turned::kHello);
  return false;
}

void Greeter::Welcome(Newcomer& newcomer) {
  Peer peer{.address = newcomer.address};
  if (const SSL* tls = newcomer.client.tls()) peer.certificate_name = CertificateName(tls);
  const std::string name = absl::StrCat(name_prefix_, ++num_handed_over_);
  std::optional<std::array<base::UniqueFd, 2>> pair = NamedPair(name);
  if (!pair) return TurnAway(newcomer, Turned::kDescriptors);
  epoll_.Arm(newcomer.client.fd(), 0, newcomer.armed, nullptr);
  const std::string peer_name = absl::StrCat("unix-abstract:", name);
  Gate gate = [this, peer](const RequestHead& head) { return gate_(head, peer); };
  peers_.Add(peer_name, std::move(peer));
  const LentSocket lent((*pair)[1].get());
  hand_over_(std::move((*pair)[1]));
  relay_.Add({.client = std::move(newcomer.client),
              .grpc = std::move((*pair)[0]),
              .lent = lent,
              .peer_name = peer_name,
              .address = newcomer.address,
              .first_bytes = std::move(newcomer.hello),
              .gate = std::move(gate),
              .place = std::move(newcomer.place)});
  newcomer.is_gone = true;
  gone_.splice(gone_.end(), newcomers_, newcomer.self);
}

void Greeter::TurnAway(Newcomer& newcomer, Turned why) {
  if (newcomer.is_self) return Forget(newcomer);
  counters_.turned.Add(why);
  static base::LogLimit limit;
  base::LogLimited(
      limit, base::SteadyNow(), base::LogLevel::kDebug, "door", "connection turned away",
      {{"peer", newcomer.address}, {"reason", kTurnedNames[static_cast<size_t>(why)]}});
  Forget(newcomer);
}

void Greeter::Forget(Newcomer& newcomer) {
  epoll_.Arm(newcomer.client.fd(), 0, newcomer.armed, nullptr);
  counters_.open.fetch_sub(1, std::memory_order_relaxed);
  newcomer.place = {};
  newcomer.is_gone = true;
  gone_.splice(gone_.end(), newcomers_, newcomer.self);
}

}  // namespace quire::server::door
