#include "server/server_config.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "server/listen_address.h"
#include "server/option.h"
#include "server/option_sources.h"

namespace quire::server {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// In the order of --help. `config_file` is where --config goes.
std::vector<Option> OptionTable(ServerConfig& config, std::string& config_file) {
  engine::EngineConfig& engine = config.engine;
  return {
      {.name = "model",
       .group = "Model",
       .placeholder = "PATH",
       .help = "A GGUF file or a Hugging Face directory. Required.",
       .target = &engine.model_path},
      {.name = "served_model_name",
       .group = "Model",
       .placeholder = "NAME",
       .help = "What requests call it. Default: the file's own name, or the path's last part.",
       .target = &engine.served_model_name},
      {.name = "max_model_len",
       .group = "Model",
       .placeholder = "TOKENS",
       .help =
           "Most tokens of a prompt and its output together; 0: what the model was trained for.",
       .target = &engine.max_model_len},
      {.name = "max_prompt_bytes",
       .group = "Model",
       .placeholder = "BYTES",
       .help = "Longest text that is tokenized; longer ones are refused first.",
       .target = &engine.max_prompt_bytes,
       .min = 1,
       .max = kGiB},

      {.name = "backend",
       .group = "Compute",
       .help = "What computes; auto takes a GPU when this build and machine have one.",
       .target = &engine.backend,
       .choices = {"auto", "cpu", "cuda"}},
      {.name = "cpu_isa",
       .group = "Compute",
       .help = "Kernels to use; auto takes the best that the machine has. Answers are equal to the "
               "bit within one of them.",
       .target = &engine.cpu_isa,
       .choices = {"auto", "portable", "avx2", "avx512", "amx"}},
      {.name = "threads",
       .group = "Compute",
       .placeholder = "N",
       .help = "Compute threads; 0: the physical cores within affinity and quota.",
       .target = &engine.threads,
       .max = 1024},
      {.name = "weights",
       .group = "Compute",
       .help = "packed: laid out for the kernels; mapped: read from the file as they are. The "
               "answers are the same.",
       .target = &engine.weights,
       .choices = {"packed", "mapped"}},
      {.name = "frontend_threads",
       .group = "Compute",
       .placeholder = "N",
       .help = "Threads that render templates and tokenize.",
       .target = &engine.frontend_threads,
       .min = 1,
       .max = 256},

      {.name = "kv_cache_mib",
       .group = "KV cache",
       .placeholder = "MIB",
       .help = "Memory of the KV cache; 0: the smaller of 25 % of the available memory and "
               "max_num_seqs x max_model_len.",
       .target = &engine.kv_cache_mib,
       .max = int64_t{64} << 20},
      {.name = "kv_dtype",
       .group = "KV cache",
       .help = "Type of its elements; auto: f32 for F32 weights, else f16.",
       .target = &engine.kv_dtype,
       .choices = {"auto", "f32", "f16", "bf16"}},
      {.name = "block_size",
       .group = "KV cache",
       .placeholder = "TOKENS",
       .help = "Tokens of a KV block, a power of two from 16 to 256.",
       .target = &engine.block_size,
       .min = 16,
       .max = 256},

      {.name = "max_num_seqs",
       .group = "Scheduling",
       .placeholder = "N",
       .help = "Most sequences that run at once.",
       .target = &engine.max_num_seqs,
       .min = 1,
       .max = 1 << 16},
      {.name = "max_num_batched_tokens",
       .group = "Scheduling",
       .placeholder = "TOKENS",
       .help = "Most tokens of one step, never below max_num_seqs. A new request may have to wait "
               "for a step to end; 0: the backend's own.",
       .target = &engine.max_num_batched_tokens,
       .max = 1 << 20},
      {.name = "max_step_time",
       .group = "Scheduling",
       .placeholder = "TIME",
       .help = "While streams decode, prompts get as much of a step as is expected to end within "
               "this time, so that no stream waits much longer for its next token. A longer one "
               "brings prompts' first tokens sooner; 0: no limit.",
       .target = &engine.max_step_time},
      {.name = "max_queue",
       .group = "Scheduling",
       .placeholder = "N",
       .help = "Requests that may wait; more are refused at once with RESOURCE_EXHAUSTED.",
       .target = &engine.max_queue,
       .min = 1,
       .max = 1 << 20},
      {.name = "frontend_queue",
       .group = "Scheduling",
       .placeholder = "N",
       .help = "Texts that may wait for a frontend thread; more are refused likewise.",
       .target = &engine.frontend_queue,
       .min = 1,
       .max = 1 << 20},
      {.name = "stalled_stream_timeout",
       .group = "Scheduling",
       .placeholder = "TIME",
       .help = "A stream whose reader takes nothing for so long is ended.",
       .target = &engine.stalled_stream_timeout},

      {.name = "listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help =
           "gRPC. On an address that others can reach, ControlService and reflection are served "
           "only with --tls_client_ca or --auth_token_file; then GetStats, Drain, reflection and "
           "aborting others' requests want the role operator. Port 0: any free one, logged.",
       .target = &config.listen},
      {.name = "control_listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help = "An address of their own for ControlService and reflection; on loopback it asks for "
               "no role. Default: none, they are served with --listen.",
       .target = &config.control_listen},
      {.name = "admin_listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help = "HTTP: /metrics, /livez, /readyz. Empty: off.",
       .target = &config.admin_listen},
      {.name = "max_message_bytes",
       .group = "Network",
       .placeholder = "BYTES",
       .help = "Largest request message.",
       .target = &config.max_message_bytes,
       .min = 1024,
       .max = kGiB},
      {.name = "max_concurrent_streams",
       .group = "Network",
       .placeholder = "N",
       .help = "Calls that one connection may have open.",
       .target = &config.max_concurrent_streams,
       .min = 1,
       .max = 1 << 20},
      {.name = "max_connections",
       .group = "Network",
       .placeholder = "N",
       .help = "Connections at once; a full server ends the one that has been without a call for "
               "longest, or else turns newcomers away. 0: as many as there are file descriptors "
               "for, at most 4096.",
       .target = &config.max_connections,
       .max = 1 << 20},
      {.name = "max_connections_per_address",
       .group = "Network",
       .placeholder = "N",
       .help = "Connections at once of one IPv4 address or IPv6 /64; 0: half of max_connections. "
               "Behind a proxy all clients have one address.",
       .target = &config.max_connections_per_address,
       .max = 1 << 20},
      {.name = "handshake_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "A connection that has not finished TLS and said HTTP/2's first words after this is "
               "closed.",
       .target = &config.handshake_timeout},
      {.name = "message_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "A request message that is not there whole after this ends with DEADLINE_EXCEEDED.",
       .target = &config.message_timeout},
      {.name = "max_header_bytes",
       .group = "Network",
       .placeholder = "BYTES",
       .help = "Largest headers of a request, as sent; more ends the connection.",
       .target = &config.max_header_bytes,
       .min = 1024,
       .max = 1 << 20},
      {.name = "max_unfinished_mib",
       .group = "Network",
       .placeholder = "MIB",
       .help = "Memory for request messages whose end has not come, of all connections; one of "
               "them may hold a quarter. Beyond it the largest is refused with "
               "RESOURCE_EXHAUSTED.",
       .target = &config.max_unfinished_mib,
       .min = 1,
       .max = 1 << 20},
      {.name = "keepalive_time",
       .group = "Network",
       .placeholder = "TIME",
       .help = "A connection silent for so long is asked whether it lives.",
       .target = &config.keepalive_time},
      {.name = "keepalive_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "It is closed when it has not answered after this.",
       .target = &config.keepalive_timeout},
      {.name = "max_connection_age",
       .group = "Network",
       .placeholder = "TIME",
       .help =
           "A connection of this age is asked to go: its calls finish, the client's next ones take "
           "a new connection, which a load balancer may give to another server; 0: never.",
       .target = &config.max_connection_age},
      {.name = "max_connection_age_grace",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Calls on such a connection are cut after this; 0: they may end by themselves.",
       .target = &config.max_connection_age_grace},
      {.name = "drain_delay",
       .group = "Network",
       .placeholder = "TIME",
       .help =
           "After SIGTERM, health is NOT_SERVING and /readyz 503 for so long while new requests "
           "are still taken, until load balancers have seen it; then they are refused.",
       .target = &config.drain_delay},
      {.name = "drain_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "After that, what runs may finish for so long; then it is cancelled.",
       .target = &config.drain_timeout},

      {.name = "tls_cert",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Certificate chain of the server, PEM, leaf first. With --tls_key.",
       .target = &config.tls_cert},
      {.name = "tls_key",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Its private key, PEM.",
       .target = &config.tls_key},
      {.name = "tls_client_ca",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Clients must show a certificate signed by one of these, PEM. Without "
               "--auth_token_file each name of one is a caller and a tenant of its own.",
       .target = &config.tls_client_ca},
      {.name = "auth_token_file",
       .group = "Security",
       .placeholder = "FILE",
       .help =
           "Who may call, one a line: TOKEN, token:SHA256 or cert:NAME (of a client certificate). "
           "Behind the last two may stand name=, tenant= (callers of one tenant share cached "
           "prefixes, seats and queue; default: the name), roles=operator,any-tenant, and the "
           "tenant's limits: max_priority= (default 0), max_waiting= requests, max_running= "
           "sequences, share= of the steps (default 1). '#' begins a comment. Clients send "
           "\"authorization: Bearer TOKEN\". Read again when it changes and at SIGHUP.",
       .target = &config.auth_token_file},

      {.name = "log_level",
       .group = "Other",
       .placeholder = "debug|info|warning|error",
       .help = "What goes to stderr. Prompts and answers never do.",
       .target = &config.log_level},
      {.name = "log_format",
       .group = "Other",
       .help = "Of its lines; json: an object a line.",
       .target = &config.log_format,
       .choices = {"text", "json"}},
      {.name = "access_log",
       .group = "Other",
       .help = "The calls that leave a line: of those that fail alike at most 10 a second do, and "
               "another line tells how many did not.",
       .target = &config.access_log,
       .choices = {"off", "errors", "all"}},
      {.name = "watchdog_timeout",
       .group = "Other",
       .placeholder = "TIME",
       .help = "A step, or a text being tokenized, that takes longer is said to hang: /livez and "
               "/readyz turn red, so that the server is restarted. More than the longest step of "
               "the model takes on this machine; 0: never.",
       .target = &config.watchdog_timeout},
      {.name = "config",
       .group = "Other",
       .placeholder = "FILE",
       .help = "Lines `name = value` with the names above; '#' begins a comment line. Flags and "
               "environment go before it.",
       .target = &config_file},
  };
}

absl::Status ValidateAddress(std::string_view flag, const std::string& address) {
  const auto parsed = ParseListenAddress(address);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(flag), ": ", parsed.status().message()));
}

// What one option alone cannot say.
absl::Status Validate(const ServerConfig& config) {
  const auto invalid = [](std::string_view text) {
    return absl::InvalidArgumentError(base::ToAbsl(text));
  };
  if (config.engine.model_path.empty()) {
    return invalid("--model: want a GGUF file or a Hugging Face directory");
  }
  if (!base::IsValidUtf8(config.engine.served_model_name)) {
    return invalid("--served_model_name: want UTF-8, which every answer holds it in");
  }
  if ((config.engine.block_size & (config.engine.block_size - 1)) != 0) {
    return invalid(
        absl::StrFormat("--block_size: want a power of two, got %d", config.engine.block_size));
  }
  if (config.max_message_bytes < config.engine.max_prompt_bytes) {
    return invalid(
        absl::StrFormat("--max_message_bytes: want at least --max_prompt_bytes (%d), got %d",
                        config.engine.max_prompt_bytes, config.max_message_bytes));
  }
  if (config.max_unfinished_mib << 20 < int64_t{2} * config.max_message_bytes) {
    return invalid(absl::StrFormat(
        "--max_unfinished_mib: want room for two messages of --max_message_bytes (%d), got %d",
        config.max_message_bytes, config.max_unfinished_mib));
  }
  if (config.handshake_timeout < absl::Milliseconds(100)) {
    return invalid("--handshake_timeout: want at least 100ms");
  }
  if (config.message_timeout < absl::Milliseconds(100)) {
    return invalid("--message_timeout: want at least 100ms");
  }
  if (config.keepalive_time < absl::Seconds(1)) {
    return invalid("--keepalive_time: want at least 1s");
  }
  if (config.keepalive_timeout < absl::Milliseconds(100)) {
    return invalid("--keepalive_timeout: want at least 100ms");
  }
  RETURN_IF_ERROR(ValidateAddress("--listen", config.listen));
  if (!config.admin_listen.empty()) {
    RETURN_IF_ERROR(ValidateAddress("--admin_listen", config.admin_listen));
  }
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return invalid("--tls_cert, --tls_key: want both or none");
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    return invalid("--tls_client_ca: want --tls_cert and --tls_key with it");
  }
  if (!config.control_listen.empty()) {
    RETURN_IF_ERROR(ValidateAddress("--control_listen", config.control_listen));
    if (!IsLoopback(*ParseListenAddress(config.control_listen)) && !AuthenticatesClients(config)) {
      return invalid(absl::StrFormat(
          "--control_listen: %s is not loopback; set --tls_client_ca or --auth_token_file",
          config.control_listen));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool AuthenticatesClients(const ServerConfig& config) {
  return !config.tls_client_ca.empty() || !config.auth_token_file.empty();
}

bool ServesControlOnListen(const ServerConfig& config) {
  if (!config.control_listen.empty()) return false;
  const auto address = ParseListenAddress(config.listen);
  return AuthenticatesClients(config) || (address.ok() && IsLoopback(*address));
}

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments,
                                             const Environment& environment,
                                             std::span<const char* const> variables) {
  CommandLine command;
  std::string config_file;
  const std::vector<Option> options = OptionTable(command.config, config_file);
  ASSIGN_OR_RETURN(const Arguments flags, ReadArguments(arguments, options));
  command.help = flags.help;
  command.version = flags.version;
  if (command.help || command.version) return command;
  command.warnings = WarnOfVariables(options, variables);
  const std::vector<Assignment> from_environment = ReadEnvironment(options, environment);
  // Once to find the file and once to go before it.
  RETURN_IF_ERROR(Apply(from_environment));
  RETURN_IF_ERROR(Apply(flags.assignments));
  if (!config_file.empty()) {
    ASSIGN_OR_RETURN(const std::vector<Assignment> lines, ReadOptionFile(config_file, options));
    RETURN_IF_ERROR(Apply(lines));
    RETURN_IF_ERROR(Apply(from_environment));
    RETURN_IF_ERROR(Apply(flags.assignments));
  }
  RETURN_IF_ERROR(Validate(command.config));
  return command;
}

std::string HelpText() {
  ServerConfig config;
  std::string config_file;
  return absl::StrCat(
      "Usage: quire-server --model PATH [flags]\n"
      "Serves a language model over gRPC.\n"
      "\n"
      "Flags are --name value or --name=value. Each can also be set by an environment variable of "
      "the\n"
      "same name in capitals with QUIRE_ in front (QUIRE_MODEL), or in the file of --config.\n",
      DescribeOptions(OptionTable(config, config_file)),
      "  --version\n      Prints the version.\n"
      "  --help\n      Prints this.\n");
}

}  // namespace quire::server
