#pragma once

// Helpers to read the members of a tokenizer.json.

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

// Read a member of an object as one type. An absent or null member gives the fallback; a member of
// another type is InvalidArgument.
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const char* key, bool fallback);
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const char* key,
                                       std::string fallback);
// Nothing unless `value` is a whole number in [0, limit).
std::optional<int32_t> JsonId(const nlohmann::json& value, size_t limit);
// Null JSON when it is absent or `object` is not an object.
const nlohmann::json& JsonMember(const nlohmann::json& object, const char* key);

// InvalidArgument: "stage: what".
absl::Status InvalidStep(std::string_view stage, const std::string& what);
absl::Status UnsupportedStep(std::string_view stage, const std::string& type,
                             std::string_view known);

// The type of a step, and a list in it.
absl::StatusOr<std::string> StepType(const nlohmann::json& step, std::string_view stage);
absl::StatusOr<const nlohmann::json*> StepArray(const nlohmann::json& step, const char* key,
                                                std::string_view stage);

// {"String": "x"} or {"Regex": "x"}. Exactly one of the two is filled.
struct StepPattern {
  std::string text;
  std::optional<Regex> regex;
};
absl::StatusOr<StepPattern> ReadStepPattern(const nlohmann::json& step, std::string_view stage);

}  // namespace quire::text
