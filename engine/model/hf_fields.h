#pragma once

// Reads the members of one JSON object of a config.json. A key that is absent or null takes the
// fallback; without one it is required. InvalidArgument names file, key, what was wanted and what
// was got.

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
  // Borrows `object`; `where` begins errors.
  HfFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json& object() const { return object_; }
  bool Has(const char* key) const;
  // A null pointer when the key is absent or null.
  const nlohmann::json* Find(const char* key) const;
  absl::Status Error(std::string_view key, std::string_view wanted, std::string_view got) const;
  // The error for the present value of `key`.
  absl::Status Wrong(std::string_view key, std::string_view wanted) const;

  absl::Status Int(const char* key, std::optional<int64_t> fallback, int64_t& out) const;
  absl::Status Float(const char* key, std::optional<double> fallback, double& out) const;
  absl::Status Bool(const char* key, bool fallback, bool& out) const;
  absl::Status String(const char* key, std::string_view fallback, std::string& out) const;
  // Nothing when absent or null.
  absl::StatusOr<std::optional<HfFields>> Object(const char* key) const;

  // Refuse members unless they have the value that turns their feature off.
  absl::Status WantFalse(std::initializer_list<const char*> keys) const;
  absl::Status WantOne(std::initializer_list<const char*> keys) const;
  absl::Status WantNull(std::initializer_list<const char*> keys) const;

 private:
  const nlohmann::json& object_;
  const std::string where_;
};

}  // namespace quire::engine
