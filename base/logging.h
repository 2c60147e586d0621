#pragma once

// Structured logs on stderr, one line each:
//   2026-01-02T03:04:05.678Z INFO engine: model loaded model="smollm2" blocks=1024
// or, as JSON:
//   {"time":"2026-01-02T03:04:05.678Z","level":"INFO","component":"engine",
//    "message":"model loaded","model":"smollm2","blocks":1024}
// Prompts and generated text are never logged.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace quire::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// kInfo until set. Thread-safe.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// kText until set. Thread-safe.
void SetLogFormat(LogFormat format);

// One key=value pair of a log line; text values are quoted and escaped in it.
struct LogField {
  LogField(std::string_view name, std::string_view text) : key(name), value(text), is_text(true) {}
  LogField(std::string_view name, const std::string& text)
      : LogField(name, std::string_view(text)) {}
  LogField(std::string_view name, const char* text) : LogField(name, std::string_view(text)) {}
  template <typename Number>
  requires std::is_arithmetic_v<Number> LogField(std::string_view name, Number number)
      : key(name), value(absl::StrCat(number)) {}

  std::string key;
  std::string value;
  bool is_text = false;
};

// Thread-safe; a line is never split between two write(2), so that lines of several threads never
// mix. Does not block while a LogThread lives.
void Log(LogLevel level, std::string_view component, std::string_view message,
         std::initializer_list<LogField> fields = {});

// While one lives, Log only queues, and a thread writes: whoever reads stderr may stop, and nobody
// else does. The queue is bounded; lines that find it full are dropped and counted, and a line says
// how many once there is room again. At most one at a time.
class LogThread {
 public:
  LogThread();
  // Gives what is queued a second to be written; what a stuck reader leaves is lost.
  ~LogThread();
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;

 private:
  std::thread thread_;
};

// Lines that were dropped because nobody read the others.
int64_t NumLogLinesDropped();

// Writes `line` as it is, behind what is queued, and returns when that is done, or after a second
// of a LogThread. For what is said right before the process ends.
void LogLastWords(std::string_view line);

}  // namespace quire::base
