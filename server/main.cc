// quire-server: reads its flags and serves a model.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/standard_files.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/config/listen_address.h"
#include "server/config/server_config.h"
#include "server/config/tls_files.h"
#include "server/door/door.h"
#include "server/gpu/gpu_watch.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/library_logs.h"
#include "server/health/health.h"
#include "server/health/health_watch.h"
#include "server/health/listener_probe.h"
#include "server/http/admin_server.h"
#include "server/http/metrics_exporter.h"
#include "server/http/process_memory.h"
#include "server/identity/file_watcher.h"
#include "server/identity/identity_store.h"
#include "server/service/cache_map_conversion.h"
#include "server/stop_signals.h"

namespace quire::server {
namespace {

using base::Log;
using base::LogLevel;

constexpr absl::Duration kLastWords = absl::Seconds(1);  // for short RPCs to end before the stop
constexpr absl::Duration kLastBytes = absl::Milliseconds(200);  // for the door to send them
constexpr std::chrono::seconds kCacheMapPatience{2};       // for the step thread to make a picture
constexpr absl::Duration kCallTimeout = absl::Seconds(3);  // for the server's calls to itself

constexpr rlim_t kLeastDescriptors = 64;  // without a client the server has about 40

// Raises the limit of descriptors as far as it goes, and looks whether that suffices.
absl::Status CheckDescriptors() {
  door::RaiseDescriptorLimit();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeastDescriptors) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "file descriptors: want a limit of at least %d, and more than --max_connections for as many "
      "clients, got %d; raise it (ulimit -n)",
      kLeastDescriptors, limit.rlim_cur));
}

// gRPC starts about ten threads when it begins, and ends the process without a word if it cannot.
constexpr int kThreadsOfGrpc = 16;

// Throws std::system_error if so many threads cannot be started.
void TryThreadsOfGrpc() {
  base::Mutex gate;
  std::vector<std::jthread> threads;
  base::MutexLock lock(gate);  // released first, so that the threads end before they are joined
  for (int i = 0; i < kThreadsOfGrpc; ++i) {
    threads.emplace_back([&gate] { base::MutexLock pass(gate); });
  }
}

absl::Status CheckAddresses(const ServerConfig& config) {
  using Flag = std::pair<const char*, const std::string&>;
  for (const auto& [flag, text] :
       {Flag("--listen", config.listen), Flag("--control_listen", config.control_listen),
        Flag("--admin_listen", config.admin_listen)}) {
    if (text.empty()) continue;
    ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(text));
    if (const absl::Status status = CheckCanListen(address); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrFormat("%s: %s; if another server runs there, give this one "
                                          "another address, such as %s 127.0.0.1:0",
                                          flag, status.message(), flag));
    }
  }
  return absl::OkStatus();
}

void LogExposure(const ServerConfig& config) {
  const auto address = ParseListenAddress(config.listen);
  if (AuthenticatesClients(config) || (address.ok() && IsLoopback(*address))) return;
  Log(LogLevel::kWarning, "server",
      "anyone who reaches this address may use the model: set --tls_client_ca or --auth_token_file",
      {{"listen", config.listen}});
  if (config.control_listen.empty()) {
    Log(LogLevel::kWarning, "server",
        "ControlService and reflection are not served there: authenticate clients, or set "
        "--control_listen 127.0.0.1:8102",
        {{"listen", config.listen}});
  }
}

void LogReady(const engine::Engine& engine, const GrpcServer& server, const AdminServer* admin,
              absl::Duration time_to_ready) {
  constexpr int64_t kMiB = 1 << 20;
  const engine::ModelInfo& model = engine.model_info();
  const engine::ServerInfo& info = engine.server_info();
  Log(LogLevel::kInfo, "server", "ready",
      {{"version", info.version},
       {"model", model.name},
       {"architecture", model.architecture},
       {"weight_type", model.weight_type},
       {"weight_mib", model.weight_bytes / kMiB},
       {"context", model.max_model_len},
       {"kv_cache_mib", info.kv_cache_bytes / kMiB},
       {"blocks", info.num_blocks},
       {"block_size", info.block_size},
       {"resident_mib", ResidentMemoryBytes() / kMiB},
       {"backend", info.backend},
       {"isa_path", info.isa_path},
       {"numerics", info.numerics},
       {"threads", info.num_threads},
       {"ready_ms", absl::ToInt64Milliseconds(time_to_ready)},
       {"listen", server.address()},
       {"control", server.control_address()},
       {"admin", admin == nullptr ? "" : admin->address()}});
}

// Announces the drain, and goes on serving for --drain_delay. During this time load balancers can
// notice the drain. A server without a device has nothing to serve with, and does not wait.
void LeaveService(const ServerConfig& config, StopSignals& signals, std::atomic<bool>& leaving,
                  GrpcServer& server) {
  const bool device_is_lost = signals.WaitForStop(absl::ZeroDuration());
  if (config.drain_delay <= absl::ZeroDuration() || device_is_lost) return;
  leaving = true;
  server.AnnounceDrain();
  Log(LogLevel::kInfo, "server", "leaving service",
      {{"delay", absl::FormatDuration(config.drain_delay)}});
  signals.WaitForStop(config.drain_delay);  // a second signal ends the process
}

// Sets health to NOT_SERVING, lets running requests finish within --drain_timeout, and cancels the
// rest. If the device is lost, all requests have ended, and their clients get kLastWords to read.
void DrainAndStop(const ServerConfig& config, engine::Engine& engine, const OpenCalls& calls,
                  HealthWatch& watch, GrpcServer& server) {
  server.Drain();
  const absl::Duration timeout = engine.liveness().device_lost
                                     ? std::min(kLastWords, config.drain_timeout)
                                     : config.drain_timeout;
  const absl::Time deadline = base::SteadyNow() + timeout;
  // Logs after Drain, so that new requests are refused when the message appears.
  Log(LogLevel::kInfo, "server", "draining",
      {{"open_calls", calls.Get()}, {"timeout", absl::FormatDuration(timeout)}});
  const absl::Status idle = engine.WaitIdle(timeout);
  const bool done = idle.ok() && calls.WaitUntilNone(deadline);
  if (!done) {
    Log(LogLevel::kWarning, "server", "cancelling what still runs", {{"open_calls", calls.Get()}});
  }
  watch.Stop();
  server.Stop(done ? absl::Now() + kLastWords : absl::Now());
  Log(LogLevel::kInfo, "server", "stopped");
}

absl::StatusOr<ListenerProbe> MakeListenerProbe(const ServerConfig& config, GrpcServer& server) {
  ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(server.address()));
  ListenerTls tls = ListenerTls::kNone;
  if (!config.tls_cert.empty()) tls = ListenerTls::kServer;
  if (!config.tls_client_ca.empty()) tls = ListenerTls::kMutual;
  return ListenerProbe::Create(address, tls,
                               [&server](uint16_t port) { server.ExpectSelfCall(port); });
}

// The contents of the files that the security flags name.
struct Credentials {
  std::unique_ptr<IdentityStore> identities;
  TlsFiles tls;
};

absl::StatusOr<Credentials> LoadCredentials(const ServerConfig& config) {
  Credentials credentials;
  ASSIGN_OR_RETURN(credentials.identities,
                   IdentityStore::Create(config.auth_token_file,
                                         {.certificates = !config.tls_client_ca.empty()}));
  ASSIGN_OR_RETURN(credentials.tls, LoadTlsFiles(config));
  return credentials;
}

std::vector<std::string> WatchedFiles(const ServerConfig& config) {
  std::vector<std::string> files = {config.auth_token_file, config.tls_cert, config.tls_key,
                                    config.tls_client_ca};
  std::erase(files, "");
  return files;
}

// The certificates of a server, which may change while it serves. Thread-safe.
class ServedTls {
 public:
  ServedTls(const ServerConfig& config, absl::Time not_after)
      : config_(config), not_after_(absl::ToUnixSeconds(not_after)) {}

  // Sets the server that Reload updates, or nullptr for none. Waits for a running Reload.
  void SetServer(GrpcServer* server) {
    base::MutexLock lock(mu_);
    server_ = server;
  }

  // Reads the files again. Files with an error change nothing.
  void Reload() {
    base::MutexLock lock(mu_);
    if (server_ == nullptr || config_.tls_cert.empty()) return;
    absl::StatusOr<TlsFiles> files = LoadTlsFiles(config_);
    const absl::Status status = files.ok() ? server_->SetTls(*files) : files.status();
    if (!status.ok()) {
      return Log(LogLevel::kError, "server", "the certificates stay as they were",
                 {{"error", std::string(status.message())}});
    }
    not_after_ = absl::ToUnixSeconds(files->not_after);
    Log(LogLevel::kInfo, "server", "certificates read again",
        {{"not_after",
          absl::FormatTime(absl::RFC3339_sec, files->not_after, absl::UTCTimeZone())}});
  }

  // Returns the time when the certificate in use expires.
  absl::Time not_after() const { return absl::FromUnixSeconds(not_after_); }

 private:
  const ServerConfig& config_;  // not owned
  std::atomic<int64_t> not_after_;
  base::Mutex mu_;
  GrpcServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;  // not owned
};

// Returns null if there is no GPU, or nothing to watch it with.
std::unique_ptr<GpuWatch> WatchGpu(const engine::ServerInfo& info) {
  if (info.pci_bus_id.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<GpuWatch>> watch = GpuWatch::Start(info.pci_bus_id);
  if (watch.ok()) return *std::move(watch);
  Log(LogLevel::kWarning, "server", "the metrics lack those of the GPU",
      {{"because", std::string(watch.status().message())}});
  return nullptr;
}

// The exit status of a server whose device is lost. A new process may find the device well again.
constexpr int kDeviceLostStatus = 3;

// Ends all calls with a status, and then the process, because a thread that waits for a device
// cannot be ended.
[[noreturn]] void EndWhileTheDeviceHangs(engine::Engine& engine, const OpenCalls& calls) {
  engine.FailAll(absl::UnavailableError(
      "the device hangs, and the server ends: send the request again, to another server or later"));
  calls.WaitUntilNone(base::SteadyNow() + kLastWords);
  absl::SleepFor(kLastBytes);
  base::LogLastWords("quire-server: the device hangs; see the server's log");
  std::_Exit(kDeviceLostStatus);
}

// Returns the exit status of the process.
absl::StatusOr<int> Serve(const ServerConfig& config, const Credentials& credentials,
                          StopSignals& signals) {
  const absl::Time start = base::SteadyNow();
  RETURN_IF_ERROR(CheckAddresses(config));
  LogExposure(config);

  // Each object outlives those that are declared after it.
  ServedTls served_tls(config, credentials.tls.not_after);
  FileWatcher watcher(WatchedFiles(config), [&] {
    credentials.identities->Reload();
    served_tls.Reload();
  });
  signals.OnHangUp([&] { watcher.Trigger(); });
  const absl::Cleanup no_more_hang_ups = [&] { signals.OnHangUp(nullptr); };
  Egress egress;
  RpcCounters counters;
  OpenCalls open_calls;
  door::DoorCounters door_counters;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<GpuWatch> gpu;  // set before `health` has the engine
  Health health(config.watchdog_timeout, egress);
  std::atomic<bool> leaving = false;
  std::atomic<engine::Engine*> engine_of_page = nullptr;
  std::unique_ptr<AdminServer> admin;
  if (!config.admin_listen.empty()) {
    // The admin server starts before the model is loaded, so that probes see a live process that is
    // not ready.
    ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(config.admin_listen));
    ASSIGN_OR_RETURN(
        admin,
        AdminServer::Start(
            address,
            {.why_not_live = [&] { return health.WhyNotLive(); },
             .why_not_ready =
                 [&] { return leaving ? "the server leaves service\n" : health.WhyNotReady(); },
             .metrics =
                 [&] {
                   const engine::Engine* e = health.engine();
                   return e == nullptr
                              ? std::string()
                              : MetricsExporter(*e, counters, open_calls, door_counters,
                                                served_tls.not_after(),
                                                gpu ? std::optional(gpu->readings()) : std::nullopt)
                                    .Text();
                 },
             .cache =
                 [&] {
                   engine::Engine* e = engine_of_page.load();
                   return e == nullptr ? std::string() : CacheMapJson(*e, kCacheMapPatience);
                 },
             .is_operator =
                 [&](const std::optional<std::string>& authorization) {
                   // Without a file of callers, all callers are operators; this port shows none.
                   if (config.auth_token_file.empty() || !authorization) return false;
                   const auto caller =
                       credentials.identities->Get()->Authenticate(*authorization, "");
                   return caller.ok() && (*caller)->is_operator;
                 }}));
  }
  engine::EngineConfig engine_config = config.engine;
  engine_config.on_device_lost = [&signals] { signals.Stop(); };
  ASSIGN_OR_RETURN(engine, engine::Engine::Create(engine_config));
  gpu = WatchGpu(engine->server_info());
  TryThreadsOfGrpc();
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                   GrpcServer::Start(config, credentials.tls,
                                     {.engine = *engine,
                                      .egress = egress,
                                      .counters = counters,
                                      .open_calls = open_calls,
                                      .door_counters = door_counters,
                                      .identities = *credentials.identities}));
  served_tls.SetServer(server.get());
  const absl::Cleanup no_more_tls = [&] { served_tls.SetServer(nullptr); };
  const FreeMemoryReturner memory_returner;
  signals.StartServing();
  health.SetEngine(engine.get());
  engine_of_page = engine.get();
  ASSIGN_OR_RETURN(const ListenerProbe probe, MakeListenerProbe(config, *server));
  HealthWatch watch(
      health, [&] { return probe.Call(kCallTimeout); },
      [&](bool serving) { server->SetHealthy(serving); },
      engine->server_info().backend == "cpu"
          ? std::function<void()>()
          : [&] { EndWhileTheDeviceHangs(*engine, open_calls); });
  LogReady(*engine, *server, admin.get(), base::SteadyNow() - start);
  signals.Wait();
  LeaveService(config, signals, leaving, *server);
  DrainAndStop(config, *engine, open_calls, watch, *server);
  return engine->liveness().device_lost ? kDeviceLostStatus : 0;
}

int Fail(const absl::Status& status, int code) {
  base::LogLastWords(absl::StrFormat("quire-server: %s", std::string(status.message())));
  return code;
}

// Ends the process when it lacks memory or threads, or when a library throws what nobody catches.
// Our code throws nothing, so no frame below has anything to undo.
[[noreturn]] void EndWithAWord() {
  const auto fail = [](const std::string& why) {
    Fail(absl::ResourceExhaustedError(why), 1);
    std::_Exit(EXIT_FAILURE);
  };
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    fail(
        "the memory is used up: lower --kv_cache_mib, serve a smaller model, or raise the limit of "
        "memory (ulimit -v, or the container's)");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      fail(
          "cannot start a thread: lower --threads, or raise the limit of threads (ulimit -u, or "
          "the container's pids limit) or of memory (ulimit -v)");
    }
    fail(error.what());
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
  }
  std::abort();
}

int Main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv + 1, argv + argc);
  size_t num_variables = 0;
  while (::environ[num_variables] != nullptr) ++num_variables;
  const auto command = ParseCommandLine(
      arguments, [](const char* name) { return std::getenv(name); },
      std::span<const char* const>(::environ, num_variables));
  if (!command.ok()) return Fail(command.status(), 2);
  if (command->help) return std::fputs(HelpText().c_str(), stdout) < 0 ? 1 : 0;
  if (command->version) return std::puts("quire-server " QUIRE_VERSION) < 0 ? 1 : 0;
  base::SetLogLevel(command->config.log_level);
  base::SetLogFormat(command->config.log_format == "json" ? base::LogFormat::kJson
                                                          : base::LogFormat::kText);
  for (const std::string& warning : command->warnings) {
    Log(LogLevel::kWarning, "config", warning);
  }
  const auto credentials = LoadCredentials(command->config);
  if (!credentials.ok()) return Fail(credentials.status(), 2);
  if (const absl::Status lacks = CheckDescriptors(); !lacks.ok()) return Fail(lacks, 1);
  StopSignals signals;
  TakeLibraryLogs();
  const base::LogThread log;  // writes the log, so that a slow reader of stderr delays no thread
  const absl::StatusOr<int> status = Serve(command->config, *credentials, signals);
  return status.ok() ? *status : Fail(status.status(), 1);
}

}  // namespace
}  // namespace quire::server

int main(int argc, char** argv) {
  quire::base::OpenStandardFiles();
  std::set_terminate(quire::server::EndWithAWord);
  // Turns Abseil's deadlock detection off. Debian builds Abseil with detection on, which makes
  // gRPC's locks several times slower.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return quire::server::Main(argc, argv);
}
