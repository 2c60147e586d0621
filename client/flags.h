#pragma once

// The flags of one subcommand: each is declared with the variable it fills, and --help is made of
// the declarations.
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

// What one flag's text means; InvalidArgument says what was wanted and got.
absl::Status ParseValue(std::string_view text, std::string* value);
absl::Status ParseValue(std::string_view text, bool* value);
absl::Status ParseValue(std::string_view text, int32_t* value);
absl::Status ParseValue(std::string_view text, uint32_t* value);
absl::Status ParseValue(std::string_view text, int64_t* value);
absl::Status ParseValue(std::string_view text, uint64_t* value);
absl::Status ParseValue(std::string_view text, float* value);
absl::Status ParseValue(std::string_view text, double* value);
absl::Status ParseValue(std::string_view text,
                        absl::Duration* value);  // 500ms, 2s, 1m30s; bare: seconds

template <typename T>
absl::Status ParseValue(std::string_view text, std::optional<T>* value) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  *value = std::move(parsed);
  return absl::OkStatus();
}

// Repeatable: every occurrence adds one.
template <typename T>
absl::Status ParseValue(std::string_view text, std::vector<T>* values) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  values->push_back(std::move(parsed));
  return absl::OkStatus();
}

// "1,2,3" -> {1, 2, 3}; spaces around the numbers are allowed.
absl::StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text);

class FlagSet {
 public:
  using Setter = std::function<absl::Status(std::string_view)>;

  FlagSet(std::string usage, std::string summary);

  // Begins a titled group in --help.
  void Section(std::string title);
  // `name` without the dashes. `value_name` is what --help shows after it.
  void Add(std::string name, std::string value_name, std::string help, Setter setter);
  // A switch: --name, --name=true, --name=false.
  void AddSwitch(std::string name, std::string help, bool* value);
  void AddSwitch(std::string name, std::string help, Setter setter);
  // `value` must outlive Parse.
  template <typename T>
  void Add(std::string name, std::string value_name, std::string help, T* value) {
    Add(std::move(name), std::move(value_name), std::move(help),
        Setter([value](std::string_view text) { return ParseValue(text, value); }));
  }

  // Takes "--name value", "--name=value" and switches. InvalidArgument for anything else, naming
  // the flag and the nearest one there is. "--help" is always known; see help_requested().
  absl::Status Parse(const std::vector<std::string>& args);
  bool help_requested() const { return help_requested_; }
  const std::string& usage() const { return usage_; }
  bool IsSet(std::string_view name) const;
  // Every declared name, in order.
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
