#pragma once

// The flags of one subcommand. Each is declared with the variable that it sets, and --help is made
// from the declarations.
//
//   FlagSet flags("quire health [flags]", "Asks whether the server takes requests.");
//   flags.Add("service", "NAME", "which service (default: the whole server)", &service);
//   RETURN_IF_ERROR(flags.Parse(args));

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::client {

// Parses the text of one flag. InvalidArgument names the wanted form and the text.
absl::Status ParseValue(std::string_view text, std::string* value);
absl::Status ParseValue(std::string_view text, bool* value);
absl::Status ParseValue(std::string_view text, int32_t* value);
absl::Status ParseValue(std::string_view text, uint32_t* value);
absl::Status ParseValue(std::string_view text, int64_t* value);
absl::Status ParseValue(std::string_view text, uint64_t* value);
absl::Status ParseValue(std::string_view text, float* value);
absl::Status ParseValue(std::string_view text, double* value);
absl::Status ParseValue(std::string_view text,
                        absl::Duration* value);  // 500ms, 2s, 1m30s; without a unit: seconds

template <typename T>
absl::Status ParseValue(std::string_view text, std::optional<T>* value) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  *value = std::move(parsed);
  return absl::OkStatus();
}

// A repeatable flag: every occurrence adds one value.
template <typename T>
absl::Status ParseValue(std::string_view text, std::vector<T>* values) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  values->push_back(std::move(parsed));
  return absl::OkStatus();
}

// Parses "1,2,3" to {1, 2, 3}. Spaces around the numbers are allowed.
absl::StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text);

class FlagSet {
 public:
  using Setter = std::function<absl::Status(std::string_view)>;

  FlagSet(std::string usage, std::string summary);

  // Begins a group with this title in --help.
  void Section(std::string title);
  // `name` has no dashes. --help shows `value_name` after it.
  void Add(std::string name, std::string value_name, std::string help, Setter setter);
  // Adds a switch: --name, --name=true, --name=false.
  void AddSwitch(std::string name, std::string help, bool* value);
  void AddSwitch(std::string name, std::string help, Setter setter);
  // `value` must outlive Parse.
  template <typename T>
  void Add(std::string name, std::string value_name, std::string help, T* value) {
    Add(std::move(name), std::move(value_name), std::move(help),
        Setter([value](std::string_view text) { return ParseValue(text, value); }));
  }

  // Takes "--name value", "--name=value" and switches. Anything else is an InvalidArgument that
  // names the flag and the nearest declared one. "--help" is always known; see help_requested().
  absl::Status Parse(const std::vector<std::string>& args);
  bool help_requested() const { return help_requested_; }
  const std::string& usage() const { return usage_; }
  bool IsSet(std::string_view name) const;
  // All declared names, in order.
  std::vector<std::string> names() const;
  std::string Help() const;

 private:
  struct Flag {
    std::string name;  // empty: a section title in `help`
    std::string value_name;
    std::string help;
    bool is_switch = false;
    Setter setter;
    bool is_set = false;
  };

  Flag* Find(std::string_view name);
  std::string Nearest(std::string_view name) const;

  std::string usage_;
  std::string summary_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

}  // namespace quire::client
