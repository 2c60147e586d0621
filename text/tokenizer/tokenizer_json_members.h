#pragma once

// Helpers that read the members of a tokenizer.json.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/regex.h"

namespace quire::text {

// These functions read a member of an object as one type. They return `fallback` for an absent or
// null member, and InvalidArgument for a member of another type.
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const char* key, bool fallback);
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const char* key,
                                       std::string fallback);
// Returns `value` if it is a whole number in [0, limit), else nothing.
std::optional<int32_t> JsonId(const nlohmann::json& value, size_t limit);
// Returns the member `key`. The result is null JSON when the member is absent or `object` is not an
// object.
const nlohmann::json& JsonMember(const nlohmann::json& object, const char* key);

// Returns InvalidArgument with the text "stage: what".
absl::Status InvalidStep(std::string_view stage, const std::string& what);
absl::Status UnsupportedStep(std::string_view stage, const std::string& type,
                             std::string_view known);

// StepType returns the type of a step. StepArray returns the array `key` of a step.
absl::StatusOr<std::string> StepType(const nlohmann::json& step, std::string_view stage);
absl::StatusOr<const nlohmann::json*> StepArray(const nlohmann::json& step, const char* key,
                                                std::string_view stage);

// The member "pattern" of a step: {"String": "x"} or {"Regex": "x"}. Exactly one of `text` and
// `regex` is filled.
struct StepPattern {
  std::string text;
  std::optional<Regex> regex;
};
absl::StatusOr<StepPattern> ReadStepPattern(const nlohmann::json& step, std::string_view stage);

}  // namespace quire::text
