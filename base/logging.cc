#include "base/logging.h"

#include <atomic>
#include <cstdio>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/strings.h"

namespace quire::base {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

}  // namespace

void SetLogLevel(LogLevel level) { minimum_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level >= minimum_level.load(std::memory_order_relaxed); }

LogField::LogField(std::string_view name, std::string_view text)
    : key(name), value(absl::StrCat("\"", absl::CHexEscape(ToAbsl(text)), "\"")) {}

void Log(LogLevel level, std::string_view component, std::string_view message,
         std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   LevelName(level), " ", ToAbsl(component), ": ", ToAbsl(message));
  for (const LogField& field : fields) absl::StrAppend(&line, " ", field.key, "=", field.value);
  line.push_back('\n');
  // A lost log line is no reason to fail a request.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace quire::base
