#pragma once

// The commands of quire prefix and quire session, such as quire session create: their flags, and
// the way from the command line to the output.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/duration.pb.h"

#include "base/flags/flag_set.h"
#include "client/command.h"

namespace quire::client {

class Action {
 public:
  Action(std::string usage, std::string summary) : flags_(std::move(usage), std::move(summary)) {}

  base::FlagSet& flags() { return flags_; }
  // True if the output is JSON. Valid after the flags were parsed.
  bool json() const { return common_.json; }

  // Adds the operand that names what the command works on, such as a "session". Run then wants it.
  void AddName(std::string kind, std::string* name);
  // Adds a flag that calls `set` if it is given.
  void AddText(std::string flag, std::string help, std::function<void(std::string)> set);
  // Adds the flag --ttl. `ttl` is set if it is given.
  void AddTtl(std::string help, google::protobuf::Duration* ttl);

  // Parses the flags, calls `check`, connects, and calls `run`. Returns the exit status.
  int Run(const Args& args, Interrupt& interrupt, const std::function<absl::Status()>& check,
          const std::function<absl::Status(Connection&)>& run);
  int Run(const Args& args, Interrupt& interrupt,
          const std::function<absl::Status(Connection&)>& run) {
    return Run(args, interrupt, absl::OkStatus, run);
  }

 private:
  base::FlagSet flags_;
  CommonFlags common_;
  std::string kind_;  // what the operand names; empty: there is no operand
};

// Returns the number as a field of 32 bits, or the field's largest number if it cannot hold the
// number: the server refuses one as well as the other.
uint32_t Clamped(uint64_t number);

struct NamedAction {
  std::string_view name;
  int (*run)(const Args& args, Interrupt& interrupt);
};

// Runs the action that args[0] names, with the arguments after it. Without one, prints `usage`.
int RunAction(std::span<const NamedAction> actions, std::string_view usage, const Args& args,
              Interrupt& interrupt);

}  // namespace quire::client
