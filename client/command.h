#pragma once

// The subcommands and what they share. Each takes the arguments after its name, prints, and returns
// the exit status of the process.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

#include "client/connection.h"
#include "client/flags.h"
#include "client/interrupt.h"

namespace quire::client {

enum ExitStatus : int {
  kExitOk = 0,
  kExitFailed = 1,         // the server, or what was asked of it
  kExitUsage = 2,          // the command line
  kExitInterrupted = 130,  // Ctrl-C, as shells have it
};

using Args = std::vector<std::string>;

int RunGenerate(const Args& args, Interrupt& interrupt);
int RunScore(const Args& args, Interrupt& interrupt);
int RunChat(const Args& args, Interrupt& interrupt);
int RunTokenize(const Args& args, Interrupt& interrupt);
int RunModels(const Args& args, Interrupt& interrupt);
int RunStats(const Args& args, Interrupt& interrupt);
int RunHealth(const Args& args, Interrupt& interrupt);
int RunBench(const Args& args, Interrupt& interrupt);

// What every subcommand takes: where the server is, and --json.
struct CommonFlags {
  ConnectionOptions connection;
  bool json = false;
};
void AddCommonFlags(FlagSet& flags, CommonFlags* common);

// Nothing: go on. Otherwise the exit status: help was printed, or what is wrong.
std::optional<int> ParseFlags(FlagSet& flags, const Args& args);

int FailUsage(const FlagSet& flags, const absl::Status& status);  // prints, returns kExitUsage
int Fail(const absl::Status& status);                             // prints, returns kExitFailed

// A connection whose calls Ctrl-C cancels; call interrupt.ClearHandler() before it goes.
absl::StatusOr<std::unique_ptr<Connection>> Connect(const CommonFlags& common,
                                                    Interrupt& interrupt);

// The end of what Connect() began: clears the handler, prints an error; the exit status.
int Finish(const absl::Status& status, Interrupt& interrupt);

// "-" is standard input. InvalidArgument when it cannot be read, or is not UTF-8.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// One line of proto3 JSON with the field names of the .proto files.
std::string ToJsonLine(const google::protobuf::Message& message);

// Writes to standard output now, so that a stream is seen as it comes.
void Print(std::string_view text);

}  // namespace quire::client
