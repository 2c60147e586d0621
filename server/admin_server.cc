#include "server/admin_server.h"

#include <atomic>
#include <httplib.h>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"

namespace quire::server {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kThreads = 2;  // a slow scrape does not hold up a probe

// SO_REUSEADDR alone. httplib's own choice, SO_REUSEPORT, lets two servers share a port silently.
void ReuseAddress(socket_t socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

void Answer(httplib::Response& response, int code, const char* text) {
  response.status = code;
  response.set_content(text, kPlainText);
}

void AddPaths(const AdminHandlers& handlers, httplib::Server& server) {
  server.Get("/livez", [](const httplib::Request&, httplib::Response& response) {
    Answer(response, 200, "ok\n");
  });
  server.Get("/readyz", [&handlers](const httplib::Request&, httplib::Response& response) {
    const bool ready = handlers.ready();
    Answer(response, ready ? 200 : 503, ready ? "ok\n" : "not ready\n");
  });
  server.Get("/metrics", [&handlers](const httplib::Request&, httplib::Response& response) {
    const std::string text = handlers.metrics();
    if (text.empty()) return Answer(response, 503, "not ready\n");
    response.set_content(text, kPrometheusText);
  });
}

}  // namespace

struct AdminServer::Http {
  AdminHandlers handlers;
  ListenAddress address;
  httplib::Server server;
  std::atomic<bool> ended = false;
  std::thread thread;  // last: it uses the others
};

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const ListenAddress& address,
                                                                AdminHandlers handlers) {
  auto http = std::make_unique<Http>();
  http->handlers = std::move(handlers);
  http->address = address;
  httplib::Server& server = http->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_socket_options(ReuseAddress);
  server.set_keep_alive_max_count(1);  // an idle connection would hold a thread
  server.set_payload_max_length(1024);
  server.set_read_timeout(5, 0);
  server.set_write_timeout(5, 0);
  AddPaths(http->handlers, server);
  int port = address.port;
  if (port == 0) {
    port = server.bind_to_any_port(address.host);
  } else if (!server.bind_to_port(address.host, port)) {
    port = -1;
  }
  if (port <= 0) {
    return absl::UnavailableError(
        absl::StrFormat("%s: cannot listen: the port is taken or the address is not this machine's",
                        address.ToString()));
  }
  http->address.port = static_cast<uint16_t>(port);
  http->thread = std::thread([&http = *http] {
    http.server.listen_after_bind();
    http.ended = true;
  });
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(http)));
}

AdminServer::AdminServer(std::unique_ptr<Http> http) : http_(std::move(http)) {}

AdminServer::~AdminServer() {
  // httplib forgets a stop() that comes before its thread has begun to listen.
  while (!http_->server.is_running() && !http_->ended) std::this_thread::yield();
  http_->server.stop();
  http_->thread.join();
}

std::string AdminServer::address() const { return http_->address.ToString(); }

}  // namespace quire::server
