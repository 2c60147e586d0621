#include "base/json.h"

#include <string>
#include <unordered_set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/utf8.h"

namespace quire::base {

namespace {

constexpr size_t kMaxMessageBytes = 300;  // of nlohmann's parser

// Returns true when lists and objects in `text` are nested deeper than `max_depth`. nlohmann's
// parser could check the depth in a callback for each value. On a tokenizer.json, this separate
// scan was measured to be twice as fast as that callback.
bool NestsDeeperThan(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<nlohmann::json> Parse(std::string_view text, std::string_view what, int max_depth,
                                     const nlohmann::json::parser_callback_t& callback) {
  if (NestsDeeperThan(text, max_depth)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: JSON nested deeper than %d levels", what, max_depth));
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end(), callback);
  } catch (const nlohmann::json::exception& e) {
    // The message ends with the whole token that it could not read.
    const std::string told = LossyUtf8(std::string_view(e.what()).substr(0, kMaxMessageBytes));
    return absl::InvalidArgumentError(absl::StrFormat("%s: not valid JSON: %s", what, told));
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                         int max_depth) {
  return Parse(text, what, max_depth, nullptr);
}

absl::StatusOr<nlohmann::json> ParseJsonOfUniqueKeys(std::string_view text, std::string_view what) {
  using nlohmann::json;
  std::unordered_set<std::string> keys;
  std::string twice;
  const auto note_key = [&](int depth, json::parse_event_t event, json& parsed) {
    const bool is_key = event == json::parse_event_t::key && depth == 1;
    if (is_key && !keys.insert(parsed.get<std::string>()).second && twice.empty()) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  ASSIGN_OR_RETURN(json value, Parse(text, what, kMaxJsonDepth, note_key));
  if (twice.empty()) return value;
  return absl::InvalidArgumentError(absl::StrFormat("%s: want each key once, got \"%s\" twice",
                                                    what,
                                                    absl::Utf8SafeCHexEscape(twice.substr(0, 96))));
}

std::string QuoteJson(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace quire::base
