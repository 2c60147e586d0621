#include "base/flags/flag_value.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/strings.h"

namespace quire::base {
namespace {

absl::Status Wrong(std::string_view want, std::string_view got) {
  return absl::InvalidArgumentError(absl::StrFormat("want %s, got \"%s\"", want, got));
}

template <typename T>
bool IsInteger(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename T>
absl::Status ParseInteger(std::string_view text, const char* form, T* value) {
  return IsInteger(text, value) ? absl::OkStatus() : Wrong(form, text);
}

template <typename T>
Setter IntegerOf(T* target, int64_t min, int64_t max) {
  return [=](std::string_view text) {
    int64_t value = 0;
    if (!IsInteger(text, &value) || value < min || value > max) {
      return Wrong(absl::StrCat("an integer ", min, "..", max), text);
    }
    *target = static_cast<T>(value);
    return absl::OkStatus();
  };
}

}  // namespace

absl::Status ParseValue(std::string_view text, std::string* value) {
  *value = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseValue(std::string_view text, bool* value) {
  return absl::SimpleAtob(ToAbsl(text), value) ? absl::OkStatus() : Wrong("true or false", text);
}

absl::Status ParseValue(std::string_view text, int32_t* value) {
  return ParseInteger(text, "a whole number of 32 bits", value);
}

absl::Status ParseValue(std::string_view text, uint32_t* value) {
  return ParseInteger(text, "a whole number from 0 to 4294967295", value);
}

absl::Status ParseValue(std::string_view text, int64_t* value) {
  return ParseInteger(text, "a whole number", value);
}

absl::Status ParseValue(std::string_view text, uint64_t* value) {
  return ParseInteger(text, "a whole number, not negative", value);
}

absl::Status ParseValue(std::string_view text, float* value) {
  return absl::SimpleAtof(ToAbsl(text), value) ? absl::OkStatus() : Wrong("a number", text);
}

absl::Status ParseValue(std::string_view text, double* value) {
  return absl::SimpleAtod(ToAbsl(text), value) ? absl::OkStatus() : Wrong("a number", text);
}

absl::Status ParseValue(std::string_view text, absl::Duration* value) {
  constexpr int64_t kMostSeconds = std::numeric_limits<int32_t>::max();
  double seconds = 0;
  absl::Duration parsed;
  if (absl::SimpleAtod(ToAbsl(text), &seconds)) {
    parsed = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(ToAbsl(text), &parsed)) {
    return Wrong("a time such as 500ms, 2s or 1m30s", text);
  }
  if (parsed < absl::ZeroDuration() || parsed > absl::Seconds(kMostSeconds)) {
    return Wrong(absl::StrCat("a time from 0 to ", kMostSeconds, "s"), text);
  }
  *value = parsed;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text) {
  std::vector<int32_t> ids;
  for (const absl::string_view field : absl::StrSplit(ToAbsl(text), ',')) {
    int32_t id = 0;
    if (!ParseValue(ToStd(absl::StripAsciiWhitespace(field)), &id).ok() || id < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("want token ids such as 1,2,3, got \"%s\"", field));
    }
    ids.push_back(id);
  }
  return ids;
}

Setter IntegerSetter(int32_t* target, int64_t min, int64_t max) {
  return IntegerOf(target, min, std::min<int64_t>(max, std::numeric_limits<int32_t>::max()));
}

Setter IntegerSetter(int64_t* target, int64_t min, int64_t max) {
  return IntegerOf(target, min, max);
}

Setter ChoiceSetter(std::string* target, std::vector<std::string> choices) {
  return [target, choices = std::move(choices)](std::string_view text) {
    if (std::ranges::find(choices, text) == choices.end()) {
      return Wrong(absl::StrJoin(choices, " | "), text);
    }
    *target = std::string(text);
    return absl::OkStatus();
  };
}

}  // namespace quire::base
