#include "client/command.h"

#include <cstdio>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/json_util.h"

#include "base/check.h"
#include "base/utf8.h"

namespace quire::client {

void AddCommonFlags(base::FlagSet& flags, CommonFlags* common) {
  ConnectionOptions& connection = common->connection;
  flags.Section("Server");
  flags.Add("server", "HOST:PORT",
            "address of the server (default 127.0.0.1:8100; without a port, 8100); with https:// "
            "before it, as with --tls",
            &connection.server);
  flags.AddHabits("server", {"host", "port", "url", "address", "addr"});
  flags.AddSwitch("tls", "use TLS, trusting the system's certificate authorities", &connection.tls);
  flags.Add("tls_ca", "FILE", "use TLS, trusting the authorities in this PEM file",
            &connection.tls_ca);
  flags.Add("tls_cert", "FILE", "client certificate in PEM, for a server with --tls_client_ca",
            &connection.tls_cert);
  flags.Add("tls_key", "FILE", "private key of --tls_cert, in PEM", &connection.tls_key);
  flags.Add("tls_server_name", "NAME",
            "name that the server's certificate must have (default: HOST)",
            &connection.tls_server_name);
  flags.Add("token_file", "FILE",
            "file of the bearer token, for a server with --auth_token_file (default: the token in "
            "the environment variable QUIRE_TOKEN)",
            &connection.token_file);
  flags.Add("timeout", "TIME",
            "give up after this time, e.g. 500ms, 30s, 2m (default: 10s; none for generating)",
            &connection.timeout);
  flags.AddSwitch("json",
                  "print each response as one line of JSON; a field at its default is left out",
                  &common->json);
}

std::optional<int> ParseFlags(base::FlagSet& flags, const Args& args) {
  if (const absl::Status status = flags.Parse(args); !status.ok()) return FailUsage(flags, status);
  if (!flags.help_requested()) return std::nullopt;
  Print(flags.Help());
  return kExitOk;
}

int FailUsage(const base::FlagSet& flags, const absl::Status& status) {
  std::cerr << "quire: " << status.message() << "\nusage: " << flags.usage()
            << "; --help shows all flags\n";
  return kExitUsage;
}

int Fail(const absl::Status& status) {
  std::cerr << "quire: " << absl::StatusCodeToString(status.code()) << ": " << status.message()
            << "\n";
  return kExitFailed;
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(const CommonFlags& common,
                                                    Interrupt& interrupt) {
  auto connection = Connection::Create(common.connection);
  if (connection.ok()) {
    interrupt.SetHandler([raw = connection->get()] { raw->CancelAll(); });
  }
  return connection;
}

int Finish(const absl::Status& status, Interrupt& interrupt) {
  const bool interrupted = interrupt.interrupted();
  interrupt.ClearHandler();
  if (interrupted) return kExitInterrupted;
  return status.ok() ? kExitOk : Fail(status);
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  char buffer[1 << 12];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
  }
  // The end of the file sets eofbit. A file that cannot be opened, and a directory, do not.
  if (!in.eof()) return absl::InvalidArgumentError(absl::StrFormat("cannot read %s", path));
  if (!base::IsValidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: want text in UTF-8", path));
  }
  return text;
}

std::string ToJsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  const auto status = google::protobuf::util::MessageToJsonString(message, &line, options);
  QUIRE_CHECK(status.ok()) << status.ToString();
  return line + "\n";
}

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace quire::client
