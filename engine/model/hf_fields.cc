#include "engine/model/hf_fields.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "files/printable.h"

namespace quire::engine {

using nlohmann::json;

bool HfFields::Has(const char* key) const { return object_.contains(key); }

const json* HfFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status HfFields::Error(std::string_view key, std::string_view wanted,
                             std::string_view got) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: want %s, got %s", where_, files::Printable(key), wanted, got));
}

absl::Status HfFields::Wrong(std::string_view key, std::string_view wanted) const {
  const json* value = Find(std::string(key).c_str());
  return Error(key, wanted, value == nullptr ? "nothing" : files::Printable(value->dump()));
}

absl::Status HfFields::Int(const char* key, std::optional<int64_t> fallback, int64_t& out) const {
  const json* value = Find(key);
  if (value == nullptr && fallback) {
    out = *fallback;
    return absl::OkStatus();
  }
  const bool fits =
      value != nullptr && value->is_number_integer() &&
      !(value->is_number_unsigned() &&
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits) return Wrong(key, "an integer");
  out = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status HfFields::Float(const char* key, std::optional<double> fallback, double& out) const {
  const json* value = Find(key);
  if (value == nullptr && fallback) {
    out = *fallback;
    return absl::OkStatus();
  }
  if (value == nullptr || !value->is_number()) return Wrong(key, "a number");
  out = value->get<double>();
  return absl::OkStatus();
}

absl::Status HfFields::Bool(const char* key, bool fallback, bool& out) const {
  const json* value = Find(key);
  if (value != nullptr && !value->is_boolean()) return Wrong(key, "true or false");
  out = value != nullptr ? value->get<bool>() : fallback;
  return absl::OkStatus();
}

absl::Status HfFields::String(const char* key, std::string_view fallback, std::string& out) const {
  const json* value = Find(key);
  if (value != nullptr && !value->is_string()) return Wrong(key, "a string");
  out = value != nullptr ? value->get<std::string>() : std::string(fallback);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<HfFields>> HfFields::Object(const char* key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return Wrong(key, "an object or null");
  return HfFields(*value, absl::StrFormat("%s: %s", where_, files::Printable(key)));
}

absl::Status HfFields::WantFalse(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    bool on = false;
    RETURN_IF_ERROR(Bool(key, false, on));
    if (on) return Wrong(key, "false");
  }
  return absl::OkStatus();
}

absl::Status HfFields::WantOne(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    double factor = 1.0;
    RETURN_IF_ERROR(Float(key, 1.0, factor));
    if (factor != 1.0) return Wrong(key, "1");
  }
  return absl::OkStatus();
}

absl::Status HfFields::WantNoLimit(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    const json* value = Find(key);
    if (value != nullptr && *value != 0) return Wrong(key, "null or 0");
  }
  return absl::OkStatus();
}

absl::Status HfFields::WantNull(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    if (Find(key) != nullptr) return Wrong(key, "null");
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
