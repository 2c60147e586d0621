#include "server/config/server_config.h"

#include <map>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/config/listen_address.h"
#include "server/config/tls_files.h"
#include "tests/server/certificates.h"
#include "tests/server/temp_file.h"

namespace quire::server {
namespace {

using quire::testing::Identity;
using quire::testing::MakeAuthority;
using quire::testing::MakeIdentity;
using quire::testing::WriteTempFile;
using ::testing::EndsWith;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> arguments,
                                  std::map<std::string, std::string> environment = {}) {
  return ParseCommandLine(arguments, [&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

ServerConfig ParseOk(std::vector<const char*> arguments,
                     std::map<std::string, std::string> environment = {}) {
  arguments.insert(arguments.begin(), {"--model", "m.gguf"});
  const auto command = Parse(std::move(arguments), std::move(environment));
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? command->config : ServerConfig{};
}

std::string ParseError(std::vector<const char*> arguments,
                       std::map<std::string, std::string> environment = {}) {
  arguments.insert(arguments.begin(), {"--model", "m.gguf"});
  const auto command = Parse(std::move(arguments), std::move(environment));
  EXPECT_FALSE(command.ok());
  return std::string(command.status().message());
}

TEST(ServerConfigTest, DefaultsAreSafe) {
  const ServerConfig config = ParseOk({});
  EXPECT_EQ(config.engine.model_path, "m.gguf");
  EXPECT_EQ(config.listen, "127.0.0.1:8100");
  EXPECT_EQ(config.admin_listen, "127.0.0.1:8101");
  EXPECT_EQ(config.engine.max_num_seqs, 0);  // the backend's default
  EXPECT_EQ(config.engine.max_queue, 1024);
  EXPECT_EQ(config.engine.stalled_stream_timeout, absl::Seconds(30));
  EXPECT_EQ(config.engine.max_step_time, absl::Milliseconds(90));
  EXPECT_TRUE(ServesControlOnListen(config));
}

TEST(ServerConfigTest, DeterministicExcludesWhatDependsOnTheStep) {
  EXPECT_THAT(ParseError({"--deterministic", "--cuda_experiments=shared_prefix"}),
              HasSubstr("--deterministic: want no --cuda_experiments"));
  ParseOk({"--deterministic"});
}

TEST(ServerConfigTest, TakesEveryFormOfAFlag) {
  const ServerConfig config =
      ParseOk({"--threads=3", "--kv-cache-mib", "512", "--drain_timeout", "1m30s",
               "--stalled_stream_timeout=5", "--log_level", "debug",
               "--admin_listen=", "--watchdog_timeout=0", "--log_format=json"});
  EXPECT_EQ(config.engine.threads, 3);
  EXPECT_EQ(config.engine.kv_cache_mib, 512);
  EXPECT_EQ(config.drain_timeout, absl::Seconds(90));
  EXPECT_EQ(config.engine.stalled_stream_timeout, absl::Seconds(5));
  EXPECT_EQ(config.log_level, base::LogLevel::kDebug);
  EXPECT_EQ(config.admin_listen, "");
  EXPECT_EQ(config.watchdog_timeout, absl::ZeroDuration());
  EXPECT_EQ(config.log_format, "json");
}

TEST(ServerConfigTest, FlagGoesBeforeEnvironmentBeforeFile) {
  const std::string file = WriteTempFile("conf",
                                         "# three values\n\n threads = 1\nblock_size=32\n"
                                         "max_num_seqs = 8  \n");
  const ServerConfig config = ParseOk({"--config", file.c_str(), "--threads", "3"},
                                      {{"QUIRE_THREADS", "2"}, {"QUIRE_BLOCK_SIZE", "64"}});
  EXPECT_EQ(config.engine.threads, 3);
  EXPECT_EQ(config.engine.block_size, 64);
  EXPECT_EQ(config.engine.max_num_seqs, 8);
}

TEST(ServerConfigTest, FileMayBeNamedByTheEnvironment) {
  const std::string file = WriteTempFile("conf", "threads = 7\n");
  EXPECT_EQ(ParseOk({}, {{"QUIRE_CONFIG", file}}).engine.threads, 7);
}

TEST(ServerConfigTest, ErrorsNameTheirSource) {
  EXPECT_EQ(ParseError({"--modle", "x"}), "--modle: unknown flag; did you mean --model?");
  EXPECT_EQ(ParseError({"--zzzzzzzz"}), "--zzzzzzzz: unknown flag; see --help");
  EXPECT_EQ(ParseError({"--threads"}), "--threads: want a value: --threads N");
  EXPECT_EQ(ParseError({"--threads", "--listen", "a:1"}), "--threads: want a value: --threads N");
  EXPECT_EQ(ParseError({"--threads=-1"}), "--threads: want an integer 0..1024, got \"-1\"");
  EXPECT_EQ(ParseError({"--threads", "2x"}), "--threads: want an integer 0..1024, got \"2x\"");
  EXPECT_EQ(ParseError({"--drain_timeout", "soon"}),
            "--drain_timeout: want a time such as 500ms, 2s or 1m30s, got \"soon\"");
  EXPECT_EQ(ParseError({"--weights", "zipped"}), "--weights: want packed | mapped, got \"zipped\"");
  EXPECT_EQ(ParseError({"--log_level", "loud"}),
            "--log_level: want debug | info | warning | error, got \"loud\"");
  EXPECT_EQ(ParseError({"model.gguf"}),
            "unexpected argument \"model.gguf\"; did you mean --model model.gguf?");
  EXPECT_EQ(ParseError({"--port", "80"}), "--port: unknown flag; use --listen HOST:PORT");
  EXPECT_EQ(ParseError({"-m", "x"}), "-m: unknown flag; use --model PATH");
  EXPECT_EQ(ParseError({}, {{"QUIRE_THREADS", "many"}}),
            "QUIRE_THREADS: want an integer 0..1024, got \"many\"");
}

TEST(ServerConfigTest, ErrorsNameTheLineOfTheFile) {
  const std::string bad_value = WriteTempFile("value", "\nthreads = x\n");
  EXPECT_THAT(ParseError({"--config", bad_value.c_str()}),
              EndsWith(":2: threads: want an integer 0..1024, got \"x\""));
  const std::string bad_name = WriteTempFile("name", "treads = 1\n");
  EXPECT_THAT(ParseError({"--config", bad_name.c_str()}),
              EndsWith(":1: unknown name \"treads\"; did you mean threads?"));
  const std::string no_flag = WriteTempFile("no_flag", "version = true\n");
  EXPECT_THAT(ParseError({"--config", no_flag.c_str()}),
              EndsWith(":1: unknown name \"version\"; see --help"));
  const std::string bad_line = WriteTempFile("line", "threads\n");
  EXPECT_THAT(ParseError({"--config", bad_line.c_str()}), EndsWith(":1: want name = value"));
  EXPECT_EQ(ParseError({"--config", "/nonexistent/conf"}),
            "--config: /nonexistent/conf: cannot read: No such file or directory");
  const std::string itself = WriteTempFile("itself", "config = other\n");
  EXPECT_THAT(ParseError({"--config", itself.c_str()}),
              EndsWith(":1: config: a file names no other file"));
}

TEST(ServerConfigTest, AFileIsAFileOfBoundedLength) {
  const std::string directory = ::testing::TempDir();
  EXPECT_THAT(ParseError({"--config", directory.c_str()}), HasSubstr("got a directory"));
  const std::string pipe = WriteTempFile("pipe", "");
  ASSERT_EQ(::unlink(pipe.c_str()), 0);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const char* endless : {pipe.c_str(), "/dev/zero"}) {
    EXPECT_THAT(ParseError({"--config", endless}), HasSubstr("got a pipe, a socket or a device"));
  }
  ::unlink(pipe.c_str());
  const std::string large = WriteTempFile("large", std::string((16 << 20) + 1, '#'));
  EXPECT_THAT(ParseError({"--config", large.c_str()}), HasSubstr("want at most 16777216 bytes"));
  ::unlink(large.c_str());
}

TEST(ServerConfigTest, VariablesThatAreNoneOfOursAreNamed) {
  const std::vector<const char*> arguments = {"--model", "m.gguf"};
  const std::vector<const char*> variables = {
      "QUIRE_TREADS=2",          "QUIRE_NOSUCHTHING=1", "QUIRE_THREADS=2", "QUIRE_TOKEN=secret",
      "QUIRE_SERVICE_HOST=10.1", "QUIRE_PORT=tcp://",   "PATH=/bin",       "QUIRE_VERSION=1"};
  const auto command = ParseCommandLine(
      arguments, [](const char*) { return nullptr; }, variables);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(command->warnings,
              ::testing::ElementsAre(
                  "QUIRE_TREADS is set, but there is no such flag; did you mean QUIRE_THREADS?",
                  "QUIRE_NOSUCHTHING is set, but there is no such flag",
                  "QUIRE_VERSION is set, but there is no such flag"));
}

TEST(ServerConfigTest, RefusesWhatDoesNotGoTogether) {
  EXPECT_THAT(std::string(Parse({}).status().message()), HasSubstr("--model: want a GGUF file"));
  EXPECT_EQ(ParseError({"--block_size", "24"}), "--block_size: want a power of two, got 24");
  // ParseCommandLine refuses a value that no backend takes, before the model is opened.
  EXPECT_EQ(ParseError({"--block_size", "8"}), "--block_size: want an integer 16..256, got \"8\"");
  EXPECT_EQ(ParseError({"--tls_cert", "c"}), "--tls_cert, --tls_key: want both or none");
  EXPECT_EQ(ParseError({"--tls_client_ca", "c"}),
            "--tls_client_ca: want --tls_cert and --tls_key with it");
  EXPECT_THAT(ParseError({"--served_model_name", "\xff"}), HasSubstr("want UTF-8"));
  EXPECT_THAT(ParseError({"--listen", "8100"}), HasSubstr("--listen: want HOST:PORT"));
  EXPECT_THAT(ParseError({"--max_answer_mib", "0"}), HasSubstr("--max_answer_mib"));
  EXPECT_THAT(ParseError({"--max_answer_mib", "2048"}), HasSubstr("2047"));
  EXPECT_THAT(ParseError({"--max_message_bytes", "4096"}),
              HasSubstr("want at least --max_prompt_bytes (4194304), got 4096"));
  EXPECT_THAT(ParseError({"--control_listen", "0.0.0.0:9"}),
              HasSubstr("0.0.0.0:9 is not loopback; set --tls_client_ca or --auth_token_file"));
}

TEST(ServerConfigTest, TimesThatEndConnectionsHaveALeastValue) {
  for (const char* flag : {"--stalled_stream_timeout", "--handshake_timeout", "--message_timeout",
                           "--keepalive_timeout"}) {
    EXPECT_EQ(ParseError({flag, "99ms"}),
              absl::StrCat(flag, ": want at least 100ms, got \"99ms\""));
    ParseOk({flag, "100ms"});
  }
  EXPECT_EQ(ParseError({"--keepalive_time", "0"}), "--keepalive_time: want at least 1s, got \"0\"");
  ParseOk({"--keepalive_time", "1"});
}

TEST(ServerConfigTest, ControlIsServedOnlyWhereStrangersCannotReachIt) {
  EXPECT_TRUE(ServesControlOnListen(ParseOk({"--listen", "[::1]:1"})));
  EXPECT_TRUE(ServesControlOnListen(ParseOk({"--listen", "localhost:1"})));
  EXPECT_FALSE(ServesControlOnListen(ParseOk({"--listen", "0.0.0.0:1"})));
  EXPECT_FALSE(ServesControlOnListen(ParseOk({"--listen", "[::]:1"})));
  // TLS alone encrypts the connection but does not authenticate the client.
  EXPECT_FALSE(ServesControlOnListen(
      ParseOk({"--listen", "0.0.0.0:1", "--tls_cert", "c", "--tls_key", "k"})));
  EXPECT_TRUE(ServesControlOnListen(ParseOk(
      {"--listen", "0.0.0.0:1", "--tls_cert", "c", "--tls_key", "k", "--tls_client_ca", "a"})));
  EXPECT_TRUE(ServesControlOnListen(ParseOk({"--listen", "0.0.0.0:1", "--auth_token_file", "t"})));
  EXPECT_FALSE(ServesControlOnListen(ParseOk({"--control_listen", "127.0.0.1:2"})));
}

TEST(ServerConfigTest, HelpNamesEveryFlagOfTheCommandTable) {
  const std::string help = HelpText();
  for (const char* flag : {"--model ",
                           "--served_model_name ",
                           "--listen ",
                           "--control_listen ",
                           "--admin_listen ",
                           "--backend auto|cpu|cuda[:N]",
                           "--dtype auto|f32|f16|bf16",
                           "--strict",
                           "--gpu_memory_utilization ",
                           "--cpu_isa ",
                           "--cuda_experiments LIST",
                           "--deterministic ",
                           "--threads ",
                           "--kv_cache_mib ",
                           "--max_pinned_share ",
                           "--kv_disk_dir PATH",
                           "--kv_disk_mib ",
                           "--prefix_disk_mib ",
                           "--block_size ",
                           "--max_num_seqs ",
                           "--max_queue ",
                           "--max_num_batched_tokens ",
                           "--max_model_len ",
                           "--drain_timeout ",
                           "--drain_delay ",
                           "--max_connection_age ",
                           "--max_connection_age_grace ",
                           "--tls_cert ",
                           "--tls_key ",
                           "--tls_client_ca ",
                           "--auth_token_file ",
                           "--log_level ",
                           "--log_format text|json",
                           "--access_log off|errors|all",
                           "--watchdog_timeout ",
                           "--config ",
                           "--stalled_stream_timeout ",
                           "--max_prompt_bytes "}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
  EXPECT_THAT(help, HasSubstr("(default 127.0.0.1:8100)"));
  size_t begin = 0;
  for (size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
  }
}

TEST(ServerConfigTest, ThePinnedShareHasItsBounds) {
  EXPECT_EQ(ParseOk({}).max_prefix_ttl, absl::Hours(24));
  EXPECT_EQ(ParseOk({"--max_prefix_ttl", "60s"}).max_prefix_ttl, absl::Seconds(60));
  EXPECT_FALSE(Parse({"--model", "m", "--max_prefix_ttl", "59s"}).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--max_prefix_ttl", "59999ms"}).ok());
  EXPECT_EQ(ParseOk({}).engine.max_pinned_share, 0.5);
  EXPECT_EQ(ParseOk({"--max_pinned_share", "1"}).engine.max_pinned_share, 1.0);
  EXPECT_FALSE(Parse({"--model", "m", "--max_pinned_share", "1.0001"}).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--max_pinned_share", "0"}).ok());
}

TEST(ServerConfigTest, TheDiskHasItsBounds) {
  EXPECT_EQ(ParseOk({}).engine.kv_disk_dir, "");
  EXPECT_EQ(ParseOk({"--kv_disk_dir", "/state"}).engine.kv_disk_dir, "/state");
  EXPECT_EQ(ParseOk({}).engine.kv_disk_mib, 0);
  EXPECT_EQ(ParseOk({"--kv_disk_mib", "67108864"}).engine.kv_disk_mib, 67108864);
  EXPECT_FALSE(Parse({"--model", "m", "--kv_disk_mib", "-1"}).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--kv_disk_mib", "67108865"}).ok());
  EXPECT_EQ(ParseOk({}).engine.prefix_disk_mib, 1024);
  EXPECT_EQ(ParseOk({"--prefix_disk_mib", "1"}).engine.prefix_disk_mib, 1);
  EXPECT_FALSE(Parse({"--model", "m", "--prefix_disk_mib", "0"}).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--prefix_disk_mib", "67108865"}).ok());
}

TEST(ServerConfigTest, FlagsOfAGpuHaveTheirBounds) {
  const engine::EngineConfig config = ParseOk({"--backend", "cuda:3", "--dtype", "bf16", "--strict",
                                               "--gpu_memory_utilization", "1"})
                                          .engine;
  EXPECT_EQ(config.backend, "cuda:3");
  EXPECT_EQ(config.dtype, "bf16");
  EXPECT_TRUE(config.strict);
  EXPECT_EQ(config.gpu_memory_utilization, 1.0);
  EXPECT_EQ(ParseOk({"--gpu_memory_utilization", "0.001"}).engine.gpu_memory_utilization, 0.001);
  EXPECT_FALSE(ParseOk({"--strict=false"}).engine.strict);
  for (const char* bad : {"0", "-0.1", "1.0001", "nan", "inf", "90%", ""}) {
    EXPECT_THAT(
        std::string(Parse({"--model", "m", "--gpu_memory_utilization", bad}).status().message()),
        HasSubstr("want a number above 0 and at most 1, got"))
        << bad;
  }
  EXPECT_FALSE(Parse({"--model", "m", "--dtype", "fp8"}).ok());
}

TEST(ServerConfigTest, HelpAndVersionNeedNothingElse) {
  EXPECT_TRUE(Parse({"--help"})->help);
  EXPECT_TRUE(Parse({"-h"})->help);
  EXPECT_TRUE(Parse({"--version"})->version);
}

TEST(ListenAddressTest, ParsesAndPrints) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:80")->ToString(), "127.0.0.1:80");
  EXPECT_EQ(ParseListenAddress("[::1]:0")->ToString(), "[::1]:0");
  EXPECT_EQ(ParseListenAddress("host.name:65535")->port, 65535);
  for (const char* bad : {"", ":80", "80", "a:", "a:65536", "a:-1", "a:x", "::1:80", "[::1]",
                          "unix:/x", "a:1 ", "[]:1"}) {
    EXPECT_FALSE(ParseListenAddress(bad).ok()) << bad;
  }
}

TEST(ListenAddressTest, KnowsLoopback) {
  for (const char* yes : {"127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1"}) {
    EXPECT_TRUE(IsLoopback(*ParseListenAddress(yes))) << yes;
  }
  for (const char* no : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "128.0.0.1:1", "example.com:1",
                         "127.evil.example:1"}) {
    EXPECT_FALSE(IsLoopback(*ParseListenAddress(no))) << no;
  }
}

TEST(TlsFilesTest, ChecksTheFilesBeforeListening) {
  const Identity authority = MakeAuthority("authority");
  const Identity server = MakeIdentity("localhost", authority);
  ServerConfig config;
  EXPECT_FALSE(LoadTlsFiles(config)->enabled());

  config.tls_cert = WriteTempFile("cert", server.cert);
  config.tls_key = WriteTempFile("key", server.key);
  config.tls_client_ca = WriteTempFile("ca", authority.cert);
  const auto files = LoadTlsFiles(config);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(files->enabled());
  EXPECT_EQ(files->client_ca, authority.cert);
  EXPECT_GT(files->not_after, absl::Now() + absl::Hours(23));
  EXPECT_LT(files->not_after, absl::Now() + absl::Hours(25));

  const auto error = [](const ServerConfig& bad) {
    return std::string(LoadTlsFiles(bad).status().message());
  };
  ServerConfig bad = config;
  bad.tls_key = WriteTempFile("other_key", authority.key);
  EXPECT_THAT(error(bad), HasSubstr("--tls_key: "));
  EXPECT_THAT(error(bad), HasSubstr("is not the key of the first certificate"));
  bad = config;
  bad.tls_cert = config.tls_key;
  EXPECT_THAT(error(bad), HasSubstr("holds no PEM certificate"));
  bad = config;
  bad.tls_key = config.tls_cert;
  EXPECT_THAT(error(bad), HasSubstr("holds no unencrypted PEM private key"));
  bad = config;
  bad.tls_client_ca = "/nonexistent";
  EXPECT_EQ(error(bad), "--tls_client_ca: /nonexistent: cannot read: No such file or directory");
}

}  // namespace
}  // namespace quire::server
