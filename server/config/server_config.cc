#include "server/config/server_config.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/flags/flag_set.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "server/config/flag_sources.h"
#include "server/config/listen_address.h"
#include "server/config/option.h"

namespace quire::server {
namespace {

using base::FlagSet;

constexpr int64_t kGiB = int64_t{1} << 30;

// The options in the order of --help. `config_file` receives the value of --config.
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
       .help = "Name of the model in requests and answers. Default: the file's own name, or the "
               "path's last part.",
       .target = &engine.served_model_name},
      {.name = "chat_template",
       .group = "Model",
       .placeholder = "FILE",
       .help = "A file with the chat template (Jinja) to take instead of the model's own.",
       .target = &engine.chat_template},
      {.name = "max_model_len",
       .group = "Model",
       .placeholder = "TOKENS",
       .help = "Most tokens of a prompt and its output together; 0: as many as the model was "
               "trained for.",
       .target = &engine.max_model_len},
      {.name = "max_prompt_bytes",
       .group = "Model",
       .placeholder = "BYTES",
       .help = "Longest text that is tokenized; a longer one is refused.",
       .target = &engine.max_prompt_bytes,
       .min = 1,
       .max = kGiB},

      {.name = "backend",
       .group = "Compute",
       .placeholder = "auto|cpu|cuda[:N]",
       .help = "Backend that computes; cuda: an NVIDIA GPU, the one with number N; auto: a GPU if "
               "there is one that can be used, else the CPU.",
       .target = &engine.backend},
      {.name = "dtype",
       .group = "Compute",
       .help = "Type of activations on a GPU; auto: f32 for F32 weights, f16 for F16, else bf16. "
               "The CPU computes in f32.",
       .target = &engine.dtype,
       .choices = {"auto", "f32", "f16", "bf16"}},
      {.name = "strict",
       .group = "Compute",
       .help = "Refuses to start where a plain kernel, many times slower, would have to replace a "
               "fast one. Without it, the log warns.",
       .target = &engine.strict},
      {.name = "cpu_isa",
       .group = "Compute",
       .help = "Instruction set of the CPU kernels; auto: the best that the machine has. Answers "
               "have the same bits with each of them.",
       .target = &engine.cpu_isa,
       .choices = {"auto", "portable", "avx2", "avx512", "amx"}},
      {.name = "cuda_experiments",
       .group = "Compute",
       .placeholder = "LIST",
       .help = "Kernels for GPUs that no GPU has run yet, with commas between them. "
               "wgmma_attention, wgmma_experts: prompts' attention and experts in the instructions "
               "of compute capability 9.0; shared_prefix: requests that start with the same long "
               "text read its keys together while they generate; fp8_products: with F8_E4M3 "
               "weights, round the activations to F8_E4M3, too, on compute capability 9.0; "
               "alibi_skip: leave out distant keys that provably weigh nothing under ALiBi.",
       .target = &engine.cuda_experiments},
      {.name = "deterministic",
       .group = "Compute",
       .help =
           "On a GPU, a request gets the same bits alone and beside others, in any chunks of "
           "its prompt and after preemption, at the cost of speed. The CPU always does this. Not "
           "with cuda_experiments.",
       .target = &engine.deterministic},
      {.name = "threads",
       .group = "Compute",
       .placeholder = "N",
       .help = "Compute threads; 0: one for each physical core within affinity and CPU quota.",
       .target = &engine.threads,
       .max = 1024},
      {.name = "weights",
       .group = "Compute",
       .help = "packed: weights are laid out in memory for the kernels; mapped: they are read from "
               "the file as they are. The answers are the same.",
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
       .help = "Size of the KV cache; 0: the smaller of 25 % of the available memory and "
               "max_num_seqs x max_model_len tokens; on a GPU all that gpu_memory_utilization "
               "leaves.",
       .target = &engine.kv_cache_mib,
       .max = int64_t{64} << 20},
      {.name = "gpu_memory_utilization",
       .group = "KV cache",
       .placeholder = "FRACTION",
       .help = "Part of a GPU's memory for weights, steps and KV cache together.",
       .target = &engine.gpu_memory_utilization,
       .max = 1},
      {.name = "max_pinned_share",
       .group = "KV cache",
       .placeholder = "FRACTION",
       .help = "Part of the KV cache's blocks that named prefixes may keep.",
       .target = &engine.max_pinned_share,
       .max = 1},
      {.name = "kv_disk_dir",
       .group = "KV cache",
       .placeholder = "PATH",
       .help = "Directory in which named prefixes outlive the server, for one server at a time and "
               "only its user (mode 0700). Prompts are stored in it in clear.",
       .target = &engine.kv_disk_dir},
      {.name = "kv_disk_mib",
       .group = "KV cache",
       .placeholder = "MIB",
       .help = "Most MiB of the KV cache in kv_disk_dir: blocks that were evicted, or computed "
               "before a restart, are read from it instead of computed again. Not on a GPU, "
               "nor for models with layers that have windows or chunks. 0: none.",
       .target = &engine.kv_disk_mib,
       .max = int64_t{64} << 20},
      {.name = "prefix_disk_mib",
       .group = "KV cache",
       .placeholder = "MIB",
       .help = "Most MiB of named prefixes in kv_disk_dir, whose file takes up to twice as much.",
       .target = &engine.prefix_disk_mib,
       .min = 1,
       .max = int64_t{64} << 20},
      {.name = "kv_dtype",
       .group = "KV cache",
       .help = "Type of the KV cache's elements; auto: that of 16-bit activations; on the CPU f32 "
               "for F32 weights, else f16. fp8 (fp8_e4m3) halves the cache, and rounds K and V to "
               "4 bits of precision.",
       .target = &engine.kv_dtype,
       .choices = {"auto", "f32", "f16", "bf16", "fp8", "fp8_e4m3"}},
      {.name = "block_size",
       .group = "KV cache",
       .placeholder = "TOKENS",
       .help = "Tokens in a KV block: a power of two from 16 to 256.",
       .target = &engine.block_size,
       .min = 16,
       .max = 256},
      {.name = "max_prefix_ttl",
       .group = "KV cache",
       .placeholder = "TIME",
       .help = "Longest time for which a named prefix may stay in memory, from its creation, its "
               "last update or its last use.",
       .target = &config.max_prefix_ttl,
       .least = absl::Seconds(60)},

      {.name = "max_num_seqs",
       .group = "Scheduling",
       .placeholder = "N",
       .help = "Most sequences that run at once; 0: 64, or 256 on a GPU.",
       .target = &engine.max_num_seqs,
       .max = 1 << 16},
      {.name = "max_num_batched_tokens",
       .group = "Scheduling",
       .placeholder = "TOKENS",
       .help = "Most tokens of one step, never below max_num_seqs. A new request may have to wait "
               "until a step ends, and a larger step takes longer; 0: the backend's default.",
       .target = &engine.max_num_batched_tokens,
       .max = 1 << 20},
      {.name = "max_step_time",
       .group = "Scheduling",
       .placeholder = "TIME",
       .help = "Limits a step in which streams decode: it takes as many prompt tokens as are "
               "expected to be computed within this time, so that no stream waits much longer for "
               "its next token. With a longer time, the first tokens of new prompts come sooner; "
               "0: no limit.",
       .target = &engine.max_step_time},
      {.name = "max_draft_tokens",
       .group = "Scheduling",
       .placeholder = "TOKENS",
       .help = "Most tokens that one stream guesses in one step, from what followed the same three "
               "tokens earlier in its prompt or answer. The step checks them all at once, so text "
               "that repeats itself comes faster, with the same tokens. A guess is checked only if "
               "it is "
               "expected to save more time than it takes; 0: no guesses; -1: 4 on the CPU, 0 on "
               "CUDA.",
       .target = &engine.max_draft_tokens,
       .min = -1,
       .max = engine::kMostDraftTokens},
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
       .help = "Texts that may wait for a frontend thread; more are refused at once with "
               "RESOURCE_EXHAUSTED.",
       .target = &engine.frontend_queue,
       .min = 1,
       .max = 1 << 20},
      {.name = "stalled_stream_timeout",
       .group = "Scheduling",
       .placeholder = "TIME",
       .help = "Ends a stream whose reader has taken nothing for this long.",
       .target = &engine.stalled_stream_timeout,
       .least = absl::Milliseconds(100)},

      {.name = "listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help = "Address of the gRPC services; port 0: any free one, which the log shows. On an "
               "address that is not loopback, GetStats, GetCacheMap, Drain, FlushPrefixCache, "
               "reflection and aborting others' requests are served only with --tls_client_ca or "
               "--auth_token_file; then they need the role operator.",
       .target = &config.listen},
      {.name = "control_listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help = "Separate address for operators' calls of ControlService and for reflection. On "
               "loopback it requires no role. Default: none; both are served at --listen.",
       .target = &config.control_listen},
      {.name = "admin_listen",
       .group = "Network",
       .placeholder = "HOST:PORT",
       .help = "Address of the HTTP endpoints /metrics, /livez and /readyz. Empty: off.",
       .target = &config.admin_listen},
      {.name = "max_message_bytes",
       .group = "Network",
       .placeholder = "BYTES",
       .help = "Largest request message.",
       .target = &config.max_message_bytes,
       .min = 1024,
       .max = kGiB},
      {.name = "max_answer_mib",
       .group = "Network",
       .placeholder = "MIB",
       .help = "Largest answer in one message. A request whose answer grows beyond it ends with "
               "RESOURCE_EXHAUSTED; streams have no such bound. A gRPC client takes 4 MiB unless "
               "it is told to take more.",
       .target = &config.max_answer_mib,
       .min = 1,
       .max = 2047},
      {.name = "max_concurrent_streams",
       .group = "Network",
       .placeholder = "N",
       .help = "Calls that one connection may have open at once.",
       .target = &config.max_concurrent_streams,
       .min = 1,
       .max = 1 << 20},
      {.name = "max_open_calls",
       .group = "Network",
       .placeholder = "N",
       .help = "Calls open at once over all connections; each takes about 12 KiB, waiting calls "
               "included. One connection gets no more than are free for others, so that many "
               "greedy ones leave room for the next.",
       .target = &config.max_open_calls,
       .min = 1,
       .max = 1 << 20},
      {.name = "max_connections",
       .group = "Network",
       .placeholder = "N",
       .help = "Connections open at once. A full server closes one without a call, of the address "
               "that has the most, or else turns new ones away. 0: as many as the limit of file "
               "descriptors allows, at most 4096.",
       .target = &config.max_connections,
       .max = 1 << 20},
      {.name = "max_connections_per_address",
       .group = "Network",
       .placeholder = "N",
       .help = "Connections open at once from one IPv4 address or IPv6 /64; 0: as many as are free "
               "for others, so at most half. All clients behind one proxy have one address.",
       .target = &config.max_connections_per_address,
       .max = 1 << 20},
      {.name = "handshake_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Closes a connection that has not finished the TLS handshake and sent the HTTP/2 "
               "preface within this time.",
       .target = &config.handshake_timeout,
       .least = absl::Milliseconds(100)},
      {.name = "message_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Ends a call with DEADLINE_EXCEEDED when its request message has not arrived whole "
               "within this time.",
       .target = &config.message_timeout,
       .least = absl::Milliseconds(100)},
      {.name = "max_header_bytes",
       .group = "Network",
       .placeholder = "BYTES",
       .help = "Largest headers of a request. Larger ones as sent end the connection; larger ones "
               "decoded, with 32 bytes for each header, are refused.",
       .target = &config.max_header_bytes,
       .min = 1024,
       .max = 1 << 20},
      {.name = "max_unfinished_mib",
       .group = "Network",
       .placeholder = "MIB",
       .help = "Memory for request messages that have not arrived whole, over all connections; one "
               "connection may use a quarter of it. When it is full, the largest such message is "
               "refused with RESOURCE_EXHAUSTED.",
       .target = &config.max_unfinished_mib,
       .min = 1,
       .max = 1 << 20},
      {.name = "keepalive_time",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Sends a keepalive ping on a connection that has been silent for this long.",
       .target = &config.keepalive_time,
       .least = absl::Seconds(1)},
      {.name = "keepalive_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Closes a connection that has not answered a keepalive ping within this time.",
       .target = &config.keepalive_timeout,
       .least = absl::Milliseconds(100)},
      {.name = "max_connection_age",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Asks the client of a connection of this age to leave it: its open calls finish, "
               "and the next ones use a new connection, which a load balancer may give to another "
               "server; 0: never.",
       .target = &config.max_connection_age},
      {.name = "max_connection_age_grace",
       .group = "Network",
       .placeholder = "TIME",
       .help = "Cancels the calls that are still open on such a connection after this time; 0: "
               "they may run to their end.",
       .target = &config.max_connection_age_grace},
      {.name = "drain_delay",
       .group = "Network",
       .placeholder = "TIME",
       .help = "After SIGTERM, the server answers NOT_SERVING to health checks and 503 at /readyz "
               "for this long while it still takes new requests, until load balancers have "
               "noticed. Then it refuses them.",
       .target = &config.drain_delay},
      {.name = "drain_timeout",
       .group = "Network",
       .placeholder = "TIME",
       .help = "After --drain_delay, running requests may finish for this long; then they are "
               "cancelled.",
       .target = &config.drain_timeout},

      {.name = "tls_cert",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Certificate chain of the server, PEM, leaf first. Needs --tls_key.",
       .target = &config.tls_cert},
      {.name = "tls_key",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Private key of the server's certificate, PEM.",
       .target = &config.tls_key},
      {.name = "tls_client_ca",
       .group = "Security",
       .placeholder = "FILE",
       .help = "CA certificates, PEM: a client must present a certificate that one of them signed. "
               "Without --auth_token_file, each name in such a certificate is a caller and a "
               "tenant of its own.",
       .target = &config.tls_client_ca},
      {.name = "auth_token_file",
       .group = "Security",
       .placeholder = "FILE",
       .help = "Callers, one on each line: TOKEN, token:SHA256, or cert:NAME (a name in a client "
               "certificate). The last two may be followed by name=, tenant= (callers of one "
               "tenant share cached prefixes, seats and queue; default: the name), "
               "roles=operator,any-tenant, and the tenant's limits: max_priority= (default 0), "
               "max_waiting= requests, max_running= sequences, max_blocks= of the KV cache, "
               "share= of the steps (default 1). "
               "'#' begins a comment. Clients send \"authorization: Bearer TOKEN\". The file is "
               "read again when it changes and at SIGHUP.",
       .target = &config.auth_token_file},

      {.name = "log_level",
       .group = "Other",
       .placeholder = "debug|info|warning|error",
       .help = "Lowest level that is logged to stderr. Prompts and answers are never logged.",
       .target = &config.log_level},
      {.name = "log_format",
       .group = "Other",
       .help = "Format of the log's lines; json: one object on each line.",
       .target = &config.log_format,
       .choices = {"text", "json"}},
      {.name = "access_log",
       .group = "Other",
       .help = "Calls that are logged. Of those that fail alike, at most 10 a second are, and "
               "another line counts the rest.",
       .target = &config.access_log,
       .choices = {"off", "errors", "all"}},
      {.name = "watchdog_timeout",
       .group = "Other",
       .placeholder = "TIME",
       .help = "A step, or the tokenizing of one text, that takes longer is taken to hang: /livez "
               "and /readyz then fail, so that the server is restarted. Set it above the longest "
               "step of the model on this machine; 0: never.",
       .target = &config.watchdog_timeout},
      {.name = "config",
       .group = "Other",
       .placeholder = "FILE",
       .help = "File of lines `name = value` with the names above; '#' begins a comment line. "
               "Flags override environment variables, which override this file.",
       .target = &config_file},
  };
}

// Declares every flag of the server. The flags set `command` and `config_file`.
FlagSet Flags(CommandLine& command, std::string& config_file) {
  FlagSet flags(
      "quire-server --model PATH [flags]",
      "Serves a language model over gRPC.\n\n"
      "A flag is written --name value or --name=value. Each can also be set by an environment "
      "variable (--model: QUIRE_MODEL) or in the file of --config. A flag overrides the variable, "
      "and the variable overrides the file.");
  AddOptions(OptionTable(command.config, config_file), flags);
  flags.Add({.name = "version",
             .help = "Prints the version.",
             .set = base::SetterOf(&command.version),
             .command_line_only = true});
  flags.SuggestForOperand("model");
  flags.AddHabits("model", {"m", "model_path"});
  flags.AddHabits("served_model_name", {"alias", "a"});
  flags.AddHabits("max_model_len", {"ctx_size", "c", "n_ctx", "max_seq_len", "context_length"});
  flags.AddHabits("backend", {"device", "n_gpu_layers", "ngl", "main_gpu"});
  flags.AddHabits("gpu_memory_utilization", {"mem_fraction_static", "gpu_memory_fraction"});
  flags.AddHabits("threads", {"t", "n_threads", "cpu_threads"});
  flags.AddHabits("kv_dtype", {"kv_cache_dtype", "cache_type_k", "cache_type_v"});
  flags.AddHabits("kv_cache_mib", {"kv_cache_memory", "kv_cache_memory_bytes", "cache_ram"});
  flags.AddHabits("max_num_seqs", {"parallel", "np", "max_batch_size"});
  flags.AddHabits("max_num_batched_tokens", {"batch_size", "b", "ubatch_size", "ub"});
  flags.AddHabits("max_draft_tokens", {"draft", "draft_max", "draft_n", "num_speculative_tokens",
                                       "speculative_config", "speculative_num_draft_tokens"});
  flags.AddHabits("listen", {"port", "host", "p", "grpc_port", "address"});
  flags.AddHabits("admin_listen", {"metrics_port", "http_port", "metrics"});
  flags.AddHabits("tls_cert", {"ssl_certfile", "ssl_cert_file", "cert"});
  flags.AddHabits("tls_key", {"ssl_keyfile", "ssl_key_file", "key"});
  flags.AddHabits("tls_client_ca", {"ssl_ca_certs", "ca"});
  flags.AddHabits("auth_token_file", {"api_key", "api_key_file"});
  flags.AddHabits("log_level", {"v", "verbose", "verbosity"});
  return flags;
}

absl::Status ValidateAddress(std::string_view flag, const std::string& address) {
  const auto parsed = ParseListenAddress(address);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(flag), ": ", parsed.status().message()));
}

// Checks the rules that an Option cannot express: rules for one value, such as a power of two, and
// rules between options.
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
  if (config.engine.deterministic && !config.engine.cuda_experiments.empty()) {
    return invalid("--deterministic: want no --cuda_experiments, whose results depend on the step");
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
  FlagSet flags = Flags(command, config_file);
  ASSIGN_OR_RETURN(const std::vector<base::Assignment> given,
                   flags.Read(std::vector<std::string>(arguments.begin(), arguments.end())));
  command.help = flags.help_requested();
  if (command.help) return command;
  RETURN_IF_ERROR(flags.Apply(given));
  if (command.version) return command;
  command.warnings = WarnOfVariables(flags, variables);
  const std::vector<base::Assignment> from_environment = ReadEnvironment(flags, environment);
  // The environment and the command line are applied twice: now, to find the path of the config
  // file, and again after the file, to override the file's values.
  RETURN_IF_ERROR(flags.Apply(from_environment));
  RETURN_IF_ERROR(flags.Apply(given));
  if (!config_file.empty()) {
    ASSIGN_OR_RETURN(const std::vector<base::Assignment> lines, ReadFlagFile(config_file, flags));
    RETURN_IF_ERROR(flags.Apply(lines));
    RETURN_IF_ERROR(flags.Apply(from_environment));
    RETURN_IF_ERROR(flags.Apply(given));
  }
  RETURN_IF_ERROR(Validate(command.config));
  return command;
}

std::string HelpText() {
  CommandLine command;
  std::string config_file;
  return Flags(command, config_file).Help();
}

}  // namespace quire::server
