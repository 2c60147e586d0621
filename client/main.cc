// quire: the command-line client.

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

#include "base/edit_distance.h"
#include "base/standard_files.h"
#include "client/command.h"

namespace quire::client {
namespace {

struct Command {
  std::string_view name;
  const char* summary;
  int (*run)(const Args& args, Interrupt& interrupt);
};

constexpr Command kCommands[] = {
    {"generate", "generate text from a prompt", RunGenerate},
    {"batch", "answer the requests of a file", RunBatch},
    {"chat", "talk with a chat model", RunChat},
    {"score", "log probabilities of given continuations of a prompt", RunScore},
    {"prefix", "keep the start of prompts in the server's memory, for any number of requests",
     RunPrefix},
    {"session", "keep a conversation's tokens on the server, and fork it", RunSession},
    {"tokenize", "turn text into tokens, and tokens into text", RunTokenize},
    {"models", "show the models that are served", RunModels},
    {"stats", "show load and totals, once or with --watch", RunStats},
    {"cache", "show the blocks of the KV cache, and the prefix tree", RunCache},
    {"top", "watch load, KV blocks and tenants on one screen", RunTop},
    {"tenants", "show the limits of tenants, and what they have used", RunTenants},
    {"health", "ask whether the server takes requests", RunHealth},
    {"bench", "load-test the server", RunBench},
};

std::string Usage() {
  std::string out =
      "usage: quire COMMAND [flags]\n\nThe client of quire-server.\n\n"
      "Commands (quire COMMAND --help shows its flags; quire --version shows the version):\n";
  for (const Command& command : kCommands) {
    absl::StrAppendFormat(&out, "  %-10s %s\n", command.name, command.summary);
  }
  return out;
}

// Returns "; did you mean X?" for the command X nearest to the mistyped `given`; empty when none is
// near.
std::string Proposal(std::string_view given) {
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  const std::string_view nearest = base::NearestName(given, names);
  return nearest.empty() ? "" : absl::StrFormat("; did you mean %s?", nearest);
}

int Main(const Args& args) {
  if (args.empty()) {
    std::cerr << Usage();
    return kExitUsage;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    Print(Usage());
    return kExitOk;
  }
  if (args[0] == "--version" || args[0] == "version") {
    Print("quire " QUIRE_VERSION "\n");
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (command.name != args[0]) continue;
    Interrupt interrupt;
    return command.run(Args(args.begin() + 1, args.end()), interrupt);
  }
  std::cerr << "quire: unknown command \"" << args[0] << "\"" << Proposal(args[0]) << "\n\n"
            << Usage();
  return kExitUsage;
}

}  // namespace
}  // namespace quire::client

int main(int argc, char** argv) {
  quire::base::OpenStandardFiles();
  // Turns off Abseil's lock-order checks. Debian's build of Abseil has them on, and they slow down
  // gRPC's locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return quire::client::Main(quire::client::Args(argv + 1, argv + argc));
}
