#include "text/tokenizer/tokenizer_json_members.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::text {

using base::ToAbsl;
using nlohmann::json;

const json& JsonMember(const json& object, const char* key) {
  static const json* const null = new json();
  if (!object.is_object()) return *null;
  const auto it = object.find(key);
  return it == object.end() ? *null : *it;
}

std::optional<int32_t> JsonId(const json& value, size_t limit) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<int64_t>();  // an unsigned number beyond int64 becomes negative
  if (id < 0 || id >= static_cast<int64_t>(limit)) return std::nullopt;
  return static_cast<int32_t>(id);
}

absl::StatusOr<bool> JsonBool(const json& object, const char* key, bool fallback) {
  const json& value = JsonMember(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": want a boolean, got ", value.type_name()));
  }
  return value.get<bool>();
}

absl::StatusOr<std::string> JsonString(const json& object, const char* key, std::string fallback) {
  const json& value = JsonMember(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": want a string, got ", value.type_name()));
  }
  return value.get<std::string>();
}

absl::Status InvalidStep(std::string_view stage, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(stage), ": ", what));
}

absl::Status UnsupportedStep(std::string_view stage, const std::string& type,
                             std::string_view known) {
  return InvalidStep(stage, absl::StrCat(type, " is not supported; supported are ", ToAbsl(known)));
}

absl::StatusOr<std::string> StepType(const json& step, std::string_view stage) {
  if (!step.is_object())
    return InvalidStep(stage, absl::StrCat("want an object, got ", step.type_name()));
  ASSIGN_OR_RETURN(std::string type, JsonString(step, "type", ""));
  if (type.empty()) return InvalidStep(stage, "a step has no type");
  return type;
}

absl::StatusOr<const json*> StepArray(const json& step, const char* key, std::string_view stage) {
  const json& list = JsonMember(step, key);
  if (!list.is_array()) {
    return InvalidStep(stage, absl::StrCat(key, ": want an array, got ", list.type_name()));
  }
  return &list;
}

absl::StatusOr<StepPattern> ReadStepPattern(const json& step, std::string_view stage) {
  const json& pattern = JsonMember(step, "pattern");
  ASSIGN_OR_RETURN(const std::string regex, JsonString(pattern, "Regex", ""));
  ASSIGN_OR_RETURN(std::string text, JsonString(pattern, "String", ""));
  if (regex.empty() == text.empty()) {
    return InvalidStep(stage,
                       "pattern: want either {\"String\": ...} or {\"Regex\": ...}, not empty");
  }
  if (regex.empty()) return StepPattern{.text = std::move(text)};
  ASSIGN_OR_RETURN(Regex compiled, Regex::Create(regex));
  StepPattern out;
  out.regex.emplace(std::move(compiled));
  return out;
}

}  // namespace quire::text
