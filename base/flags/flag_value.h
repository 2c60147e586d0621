#pragma once

// Reads the text of a flag's value. Every InvalidArgument has the form `want FORM, got "TEXT"`,
// without the flag's name.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::base {

absl::Status ParseValue(std::string_view text, std::string* value);
absl::Status ParseValue(std::string_view text, bool* value);
absl::Status ParseValue(std::string_view text, int32_t* value);
absl::Status ParseValue(std::string_view text, uint32_t* value);
absl::Status ParseValue(std::string_view text, int64_t* value);
absl::Status ParseValue(std::string_view text, uint64_t* value);
absl::Status ParseValue(std::string_view text, float* value);
absl::Status ParseValue(std::string_view text, double* value);
// Parses a time such as 500ms, 2s or 1m30s. A number without a unit is in seconds. The time must be
// 0 to 2^31 - 1 seconds.
absl::Status ParseValue(std::string_view text, absl::Duration* value);

template <typename T>
absl::Status ParseValue(std::string_view text, std::optional<T>* value) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  *value = std::move(parsed);
  return absl::OkStatus();
}

// Parses one use of a repeatable flag. Each use adds one value.
template <typename T>
absl::Status ParseValue(std::string_view text, std::vector<T>* values) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  values->push_back(std::move(parsed));
  return absl::OkStatus();
}

// Parses "1,2,3" to {1, 2, 3}. Spaces around the numbers are allowed.
absl::StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text);

// Parses the text of a flag's value and stores the result.
using Setter = std::function<absl::Status(std::string_view text)>;

// Returns a Setter that parses into `target`. `target` must outlive the Setter.
template <typename T>
Setter SetterOf(T* target) {
  return [target](std::string_view text) { return ParseValue(text, target); };
}
// Returns a Setter that takes an integer min .. max.
Setter IntegerSetter(int32_t* target, int64_t min, int64_t max);
Setter IntegerSetter(int64_t* target, int64_t min, int64_t max);
// Returns a Setter that takes one of `choices`.
Setter ChoiceSetter(std::string* target, std::vector<std::string> choices);

}  // namespace quire::base
