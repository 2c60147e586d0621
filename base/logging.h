#pragma once

// Structured logs on stderr, one line each:
//   2026-01-02T03:04:05.678Z INFO engine: model loaded model="smollm2" blocks=1024
// Prompts and generated text are never logged.

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace quire::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// kInfo until set. Thread-safe.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

// One key=value pair of a log line; text values are quoted and escaped.
struct LogField {
  LogField(std::string_view name, std::string_view text);
  LogField(std::string_view name, const std::string& text)
      : LogField(name, std::string_view(text)) {}
  LogField(std::string_view name, const char* text) : LogField(name, std::string_view(text)) {}
  template <typename Number>
  requires std::is_arithmetic_v<Number> LogField(std::string_view name, Number number)
      : key(name), value(absl::StrCat(number)) {}

  std::string key;
  std::string value;
};

// Thread-safe; one write(2) a line, so that lines of several threads never mix.
void Log(LogLevel level, std::string_view component, std::string_view message,
         std::initializer_list<LogField> fields = {});

}  // namespace quire::base
