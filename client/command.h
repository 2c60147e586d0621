#pragma once

// The subcommands and their common parts. Each subcommand takes the arguments after its name,
// prints, and returns the exit status of the process.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

#include "base/flags/flag_set.h"
#include "client/connection.h"
#include "client/interrupt.h"

namespace quire::client {

enum ExitStatus : int {
  kExitOk = 0,
  kExitFailed = 1,         // the server cannot be reached, or the request failed
  kExitUsage = 2,          // the command line is wrong
  kExitInterrupted = 130,  // Ctrl-C; shells use the same number
};

using Args = std::vector<std::string>;

int RunGenerate(const Args& args, Interrupt& interrupt);
int RunBatch(const Args& args, Interrupt& interrupt);
int RunScore(const Args& args, Interrupt& interrupt);
int RunChat(const Args& args, Interrupt& interrupt);
int RunPrefix(const Args& args, Interrupt& interrupt);
int RunSession(const Args& args, Interrupt& interrupt);
int RunTokenize(const Args& args, Interrupt& interrupt);
int RunModels(const Args& args, Interrupt& interrupt);
int RunStats(const Args& args, Interrupt& interrupt);
int RunTenants(const Args& args, Interrupt& interrupt);
int RunCache(const Args& args, Interrupt& interrupt);
int RunTop(const Args& args, Interrupt& interrupt);
int RunHealth(const Args& args, Interrupt& interrupt);
int RunBench(const Args& args, Interrupt& interrupt);

// The flags of every subcommand: the connection to the server, and --json.
struct CommonFlags {
  ConnectionOptions connection;
  bool json = false;
};
void AddCommonFlags(base::FlagSet& flags, CommonFlags* common);

// Returns nullopt if the command should run. Otherwise prints the help or an error, and returns the
// exit status.
std::optional<int> ParseFlags(base::FlagSet& flags, const Args& args);

// FailUsage and Fail print `status`. FailUsage returns kExitUsage, and Fail returns kExitFailed.
int FailUsage(const base::FlagSet& flags, const absl::Status& status);
int Fail(const absl::Status& status);

// Creates a connection, and makes Ctrl-C cancel its calls. Call interrupt.ClearHandler() before the
// connection is destroyed.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const CommonFlags& common,
                                                    Interrupt& interrupt);

// Ends a command that called Connect(): clears the handler, prints an error, and returns the exit
// status.
int Finish(const absl::Status& status, Interrupt& interrupt);

// Reads a file; "-" is standard input. Returns InvalidArgument when the file cannot be read, or is
// not UTF-8.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Returns one line of proto3 JSON with the field names of the .proto files.
std::string ToJsonLine(const google::protobuf::Message& message);

// Writes to standard output and flushes it, so that a stream is seen as it arrives.
void Print(std::string_view text);

}  // namespace quire::client
