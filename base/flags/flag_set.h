#pragma once

// A FlagSet holds the flags of a command. Each flag is declared with the variable that it sets. The
// text of --help is generated from these declarations.
//
//   FlagSet flags("quire health [flags]", "Asks whether the server takes requests.");
//   flags.Add("service", "NAME", "which service (default: the whole server)", &service);
//   RETURN_IF_ERROR(flags.Parse(args));

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/flags/flag_value.h"

namespace quire::base {

struct Flag {
  std::string name;        // "kv_cache_mib": --kv_cache_mib or --kv-cache-mib
  std::string value_name;  // "MIB"; empty: a switch, which needs no value
  std::string help;
  std::string default_text;  // shown in --help; empty: none
  Setter set;
  bool command_line_only = false;  // no environment variable and no line of a file sets it
  std::string group = {};          // set by FlagSet
  bool is_set = false;             // set by FlagSet
};

// One setting of a flag, and where the setting came from.
struct Assignment {
  std::string flag;
  std::string value;
  std::string source;  // "--threads", "QUIRE_THREADS", "server.conf:3: threads"
};

class FlagSet {
 public:
  FlagSet(std::string usage, std::string summary);

  // Begins a group with this title in --help.
  void Section(std::string title);
  void Add(Flag flag);
  void Add(std::string name, std::string value_name, std::string help, Setter set);
  // `value` must outlive the FlagSet.
  template <typename T>
  void Add(std::string name, std::string value_name, std::string help, T* value) {
    Add(std::move(name), std::move(value_name), std::move(help), SetterOf(value));
  }
  // Adds a switch: --name, --name=true, --name=false.
  void AddSwitch(std::string name, std::string help, bool* value);
  void AddSwitch(std::string name, std::string help, Setter set);
  // Adds an operand: an argument that is not a flag. The operands on the command line set the
  // variables in the order of the AddOperand calls. The variable of an absent operand is left
  // unchanged.
  void AddOperand(std::string name, std::string help, std::string* value);
  // Adds names that users may type instead of `flag` because other programs use them. Such a name
  // is refused, and the error names `flag`.
  void AddHabits(std::string flag, std::initializer_list<std::string_view> names);
  // Sets the flag that the error message proposes when an argument is neither a flag nor an
  // expected operand.
  void SuggestForOperand(std::string flag) { for_operand_ = std::move(flag); }
  // Adds a text below the flags in --help.
  void SetEpilogue(std::string text) { epilogue_ = std::move(text); }

  // Parses "--name value", "--name=value", switches and operands. '-' and '_' are equal within a
  // name. If the set has operands, all arguments after "--" are operands. For any other argument,
  // returns InvalidArgument. For an unknown flag, the error message proposes the declared flag with
  // the nearest name, if there is one. --help and -h need no declaration, and end the parsing; see
  // help_requested(). Read sets the operands, but only Apply sets flags. Call Read once.
  absl::StatusOr<std::vector<Assignment>> Read(const std::vector<std::string>& args);
  // Sets the flags in order, so that a later assignment overrides an earlier one. The message of an
  // InvalidArgument names the source of the assignment.
  absl::Status Apply(std::span<const Assignment> assignments);
  // Reads and applies.
  absl::Status Parse(const std::vector<std::string>& args);

  bool help_requested() const { return help_requested_; }
  size_t num_operands() const { return num_operands_; }  // operands that were given
  bool IsSet(std::string_view name) const;
  // Returns nullptr when no flag has this name.
  const Flag* Find(std::string_view name) const;
  // Returns the declared name that is nearest to the mistyped `name`, or "" when none is near.
  std::string_view Nearest(std::string_view name) const;
  const std::vector<Flag>& flags() const { return flags_; }
  const std::string& usage() const { return usage_; }
  std::string Help() const;

 private:
  struct Operand {
    std::string name;
    std::string help;
    std::string* value;
  };
  struct Habit {
    std::string name;
    std::string flag;
  };

  absl::Status Unknown(std::string_view given, std::string_view name) const;
  absl::Status TakeOperand(const std::string& argument);

  std::string usage_;
  std::string summary_;
  std::string epilogue_;
  std::string group_;
  std::vector<Flag> flags_;
  std::vector<Operand> operands_;
  std::vector<Habit> habits_;
  std::string for_operand_;
  size_t num_operands_ = 0;
  bool help_requested_ = false;
};

}  // namespace quire::base
