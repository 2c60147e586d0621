#pragma once

// Makes one validated ServerConfig from the flags, the environment and the config file. No other
// code of the server reads these sources.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/logging.h"
#include "engine/request/engine_info.h"
#include "server/config/flag_sources.h"

namespace quire::server {

struct ServerConfig {
  engine::EngineConfig engine{.max_step_time = absl::Milliseconds(90)};

  std::string listen = "127.0.0.1:8100";
  std::string control_listen;                            // empty: at `listen`, where that is safe
  std::string admin_listen = "127.0.0.1:8101";           // empty: no admin HTTP
  int32_t max_message_bytes = 4 << 20;                   // of a request
  int64_t max_answer_mib = 64;                           // of an answer that is one message
  int32_t max_concurrent_streams = 128;                  // calls of one connection
  int32_t max_open_calls = 8192;                         // of all connections
  int32_t max_connections = 0;                           // 0: by the limit of file descriptors
  int32_t max_connections_per_address = 0;               // 0: dynamic; see door::Places
  int32_t max_header_bytes = 16 << 10;                   // of a request, as sent
  int64_t max_unfinished_mib = 64;                       // of requests that have not arrived whole
  absl::Duration handshake_timeout = absl::Seconds(5);   // from accept to HTTP/2's first frame
  absl::Duration message_timeout = absl::Seconds(30);    // for a request to arrive whole
  absl::Duration keepalive_time = absl::Seconds(60);     // silence before a keepalive ping
  absl::Duration keepalive_timeout = absl::Seconds(20);  // for the answer to that ping
  absl::Duration max_connection_age;                     // 0: no limit
  absl::Duration max_connection_age_grace;               // 0: until the calls have ended
  absl::Duration drain_delay;                            // how long to take calls while NOT_SERVING
  absl::Duration drain_timeout = absl::Seconds(30);

  absl::Duration max_prefix_ttl = absl::Hours(24);  // of a named prefix; at least a minute

  std::string tls_cert;  // PEM files
  std::string tls_key;
  std::string tls_client_ca;
  std::string auth_token_file;

  absl::Duration watchdog_timeout = absl::Seconds(120);  // for one piece of work of a thread

  base::LogLevel log_level = base::LogLevel::kInfo;
  std::string log_format = "text";  // text | json
  std::string access_log = "all";   // off | errors | all
};

// Returns true when callers prove their identity by a client certificate or a bearer token.
bool AuthenticatesClients(const ServerConfig& config);

// Returns true when ControlService and reflection are served on `config.listen`. They are served
// there if `config.control_listen` is empty and unknown callers cannot reach `config.listen`.
bool ServesControlOnListen(const ServerConfig& config);

struct CommandLine {
  ServerConfig config;
  bool help = false;                  // config is then not validated
  bool version = false;               // config is then not validated
  std::vector<std::string> warnings;  // lines for the log
};

// Parses the command line. Flags override environment variables, which override the --config file.
// An error is one line that names the flag, the variable, or the line of the file. `variables`
// ("NAME=value") is the whole environment. It is used only to warn of variables whose names begin
// with QUIRE_ but belong to no flag.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments,
                                             const Environment& environment,
                                             std::span<const char* const> variables = {});

// Returns the text of --help.
std::string HelpText();

}  // namespace quire::server
