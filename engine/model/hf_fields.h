#pragma once

// Reads the members of one JSON object in a config.json. If a key is absent or null, the result is
// the fallback. A key without a fallback is required. Errors are InvalidArgument and name the file,
// the key, the wanted value and the value found.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace quire::engine {

class HfFields {
 public:
  // Borrows `object`. Error messages begin with `where`.
  HfFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json& object() const { return object_; }
  bool Has(const char* key) const;
  // Returns a null pointer when the key is absent or null.
  const nlohmann::json* Find(const char* key) const;
  absl::Status Error(std::string_view key, std::string_view wanted, std::string_view got) const;
  // Returns the error for the present value of `key`.
  absl::Status Wrong(std::string_view key, std::string_view wanted) const;

  absl::Status Int(const char* key, std::optional<int64_t> fallback, int64_t& out) const;
  absl::Status Float(const char* key, std::optional<double> fallback, double& out) const;
  absl::Status Bool(const char* key, bool fallback, bool& out) const;
  absl::Status String(const char* key, std::string_view fallback, std::string& out) const;
  // Returns nullopt when the key is absent or null.
  absl::StatusOr<std::optional<HfFields>> Object(const char* key) const;

  // WantFalse accepts a key with the value false, WantOne with 1, WantNull with null, and
  // WantNoLimit with null or 0: the values that turn the feature of the key off. Any other value is
  // an error. Absent keys are accepted.
  absl::Status WantFalse(std::initializer_list<const char*> keys) const;
  absl::Status WantOne(std::initializer_list<const char*> keys) const;
  absl::Status WantNoLimit(std::initializer_list<const char*> keys) const;
  absl::Status WantNull(std::initializer_list<const char*> keys) const;

 private:
  const nlohmann::json& object_;
  const std::string where_;
};

}  // namespace quire::engine
