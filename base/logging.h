#pragma once

// Structured logs on stderr, one line each:
//   2026-01-02T03:04:05.678Z INFO engine: model loaded model="smollm2" blocks=1024
// or, as JSON:
//   {"time":"2026-01-02T03:04:05.678Z","level":"INFO","component":"engine",
//    "message":"model loaded","model":"smollm2","blocks":1024}
// Prompts and generated text are never logged. No text makes a second line, or moves a terminal's
// cursor: all but printable ASCII is escaped.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/mutex.h"

namespace quire::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// The level is kInfo until set. Thread-safe.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// The format is kText until set. Thread-safe.
void SetLogFormat(LogFormat format);

// One key=value pair of a log line. Text values are quoted and escaped in the line. Text of clients
// and libraries belongs here, since a message stands without quotes.
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

// Thread-safe. On a pipe, a line of at most PIPE_BUF bytes is written whole by one write(2), so
// such lines of several threads never mix. Does not block while a LogThread exists.
void Log(LogLevel level, std::string_view component, std::string_view message,
         std::initializer_list<LogField> fields = {});

// The limit of one kind of lines that clients can cause: kMaxLines in each second. Thread-safe.
class LogLimit {
 public:
  static constexpr int64_t kMaxLines = 10;

  // Counts a line at `now`, a time of base::SteadyNow(). Returns nullopt if the line must be left
  // out. Otherwise returns the number of lines that were left out since the last one.
  std::optional<int64_t> Take(absl::Time now);

 private:
  Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_);         // the start of the second that is being counted
  int64_t num_lines_ ABSL_GUARDED_BY(mu_) = 0;     // lines of that second
  int64_t num_left_out_ ABSL_GUARDED_BY(mu_) = 0;  // since the last line
};

// Logs within `limit`. If lines were left out before this one, its last field is their number,
// `lines_left_out`. Every line that a client can cause at no cost is logged in this way.
void LogLimited(LogLimit& limit, absl::Time now, LogLevel level, std::string_view component,
                std::string_view message, std::initializer_list<LogField> fields);

// While a LogThread exists, Log only queues lines, and the thread of the LogThread writes them. So
// no other thread waits for a slow reader of stderr. The queue is bounded. When the queue is full,
// new lines are dropped and counted. When there is room again, a line with the number of dropped
// lines follows. At most one LogThread may exist at a time.
class LogThread {
 public:
  LogThread();
  // Waits at most a second for the queued lines to be written. When the reader is stuck, the rest
  // is lost.
  ~LogThread();
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;

 private:
  std::thread thread_;
};

// The number of lines dropped because stderr took them too slowly or not at all.
int64_t NumLogLinesDropped();

// Writes `text` after the queued lines, and returns when it is written: as JSON in a line of level
// ERROR with the field `error`, as text as it is, with a line's end. If a LogThread exists, returns
// after a second at the latest. Meant for the last line before the process ends.
void LogLastWords(std::string_view text);

}  // namespace quire::base
