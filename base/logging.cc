#include "base/logging.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <poll.h>
#include <span>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "base/mutex.h"
#include "base/strings.h"

namespace quire::base {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{1} << 20;  // some thousands of lines
// The longest wait for queued lines to be written before the process ends.
constexpr std::chrono::seconds kLastWords(1);

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::atomic<LogFormat> line_format{LogFormat::kText};
std::atomic<int64_t> num_dropped = 0;

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

// Returns `text` in JSON's quotes, with all but printable ASCII escaped.
std::string QuoteAscii(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

// Appends `message` without quotes. Only its own quotes and backslashes stay as they are.
void AppendMessage(std::string_view message, std::string& line) {
  for (const char c : message) {
    const bool is_printable = c >= 0x20 && c < 0x7f;
    line += is_printable ? std::string(1, c) : absl::CHexEscape(absl::string_view(&c, 1));
  }
}

std::string FormatLine(LogLevel level, std::string_view component, std::string_view message,
                       std::span<const LogField> fields) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  if (line_format.load(std::memory_order_relaxed) == LogFormat::kText) {
    std::string line = absl::StrCat(time, " ", LevelName(level), " ", ToAbsl(component), ": ");
    AppendMessage(message, line);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", field.key, "=");
      if (field.is_text) {
        absl::StrAppend(&line, "\"", absl::CHexEscape(field.value), "\"");
      } else {
        line += field.value;
      }
    }
    return line + "\n";
  }
  std::string line = absl::StrCat("{\"time\":\"", time, "\",\"level\":\"", LevelName(level),
                                  "\",\"component\":", QuoteAscii(component),
                                  ",\"message\":", QuoteAscii(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",", QuoteAscii(field.key), ":",
                    field.is_text ? QuoteAscii(field.value) : field.value);
  }
  return line + "}\n";
}

// Writes all of `text`, and blocks while stderr is full. Returns false when a write fails.
bool WriteToStderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // our parent process made stderr non-blocking
      pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Returns how many bytes of `lines` to write next: as many whole lines as fit in PIPE_BUF bytes,
// because a write(2) of at most PIPE_BUF bytes to a pipe is never split. If the first line alone
// does not fit, returns the size of that line.
size_t WholeLines(std::string_view lines) {
  if (lines.size() <= PIPE_BUF) return lines.size();
  const size_t end = lines.rfind('\n', PIPE_BUF - 1);
  return (end == std::string_view::npos ? lines.find('\n') : end) + 1;
}

void WriteLines(std::string_view lines) {
  while (!lines.empty()) {
    const size_t size = WholeLines(lines);
    if (!WriteToStderr(lines.substr(0, size))) {
      num_dropped += std::count(lines.begin(), lines.end(), '\n');
      return;
    }
    lines.remove_prefix(size);
  }
}

// The queue between Log and the thread that writes.
class LogQueue {
 public:
  void Start() {
    MutexLock lock(mu_);
    running_ = true;
    stopping_ = false;
  }

  // Returns true when everything was written in time.
  bool Stop() {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    WaitUntilWritten();
    return !running_;
  }

  // Returns false when there is no thread to write the line.
  bool Push(std::string_view line) {
    MutexLock lock(mu_);
    if (!running_) return false;
    if (lines_.size() + line.size() > kMaxQueuedBytes) {
      ++num_unreported_;
      ++num_dropped;
      return true;
    }
    if (lines_.empty()) changed_.NotifyAll();
    lines_ += line;
    return true;
  }

  bool PushLastWords(std::string_view line) {
    MutexLock lock(mu_);
    if (!running_) return false;
    lines_ += line;  // even when the queue is full
    changed_.NotifyAll();
    WaitUntilWritten();
    return true;
  }

  // Runs on the thread that writes.
  void Run() {
    for (std::string lines; Take(lines); lines.clear()) WriteLines(lines);
  }

 private:
  // Waits for queued lines, and moves them to `lines`. Also tells the threads in WaitUntilWritten
  // that the lines of the previous call were written. Returns false when the queue is stopping and
  // has no more lines.
  bool Take(std::string& lines) {
    MutexLock lock(mu_);
    writing_ = false;
    changed_.NotifyAll();
    while (lines_.empty()) {
      if (stopping_) {
        running_ = false;
        return false;
      }
      changed_.WaitFor(mu_, std::chrono::minutes(1));
    }
    lines.swap(lines_);
    if (const int64_t dropped = std::exchange(num_unreported_, 0); dropped > 0) {
      const LogField fields[] = {{"lines", dropped}};
      lines += FormatLine(LogLevel::kWarning, "log",
                          "lines dropped: whoever reads stderr was too slow", fields);
    }
    writing_ = true;
    return true;
  }

  void WaitUntilWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + kLastWords;
    while (running_ && (!lines_.empty() || writing_ || stopping_)) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return;
      changed_.WaitFor(mu_, left);
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::string lines_ ABSL_GUARDED_BY(mu_);
  int64_t num_unreported_ ABSL_GUARDED_BY(mu_) = 0;  // dropped lines that no line has reported yet
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

// The queue is never destroyed, because a thread that waits for the reader of stderr may outlive
// main.
LogQueue& Queue() {
  static LogQueue& queue = *new LogQueue;
  return queue;
}

void QueueLine(std::string_view line) {
  if (!Queue().Push(line)) WriteLines(line);
}

}  // namespace

void SetLogLevel(LogLevel level) { minimum_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level >= minimum_level.load(std::memory_order_relaxed); }

void SetLogFormat(LogFormat format) { line_format.store(format, std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view component, std::string_view message,
         std::initializer_list<LogField> fields) {
  if (LogEnabled(level)) QueueLine(FormatLine(level, component, message, fields));
}

std::optional<int64_t> LogLimit::Take(absl::Time now) {
  MutexLock lock(mu_);
  if (now - second_ >= absl::Seconds(1) || now < second_) {
    second_ = now;
    num_lines_ = 0;
  }
  if (num_lines_ == kMaxLines) {
    ++num_left_out_;
    return std::nullopt;
  }
  ++num_lines_;
  return std::exchange(num_left_out_, 0);
}

void LogLimited(LogLimit& limit, absl::Time now, LogLevel level, std::string_view component,
                std::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  const std::optional<int64_t> num_left_out = limit.Take(now);
  if (!num_left_out) return;
  std::vector<LogField> all = fields;
  if (*num_left_out > 0) all.emplace_back("lines_left_out", *num_left_out);
  QueueLine(FormatLine(level, component, message, all));
}

LogThread::LogThread() {
  Queue().Start();
  thread_ = std::thread([] { Queue().Run(); });
}

LogThread::~LogThread() {
  if (Queue().Stop()) {
    thread_.join();
  } else {
    thread_.detach();  // it waits in write(2) for a reader that does not read
  }
}

int64_t NumLogLinesDropped() { return num_dropped; }

void LogLastWords(std::string_view text) {
  std::string line(text);
  if (line_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    const LogField fields[] = {{"error", text}};
    line = FormatLine(LogLevel::kError, "log", "the process ends", fields);
  } else {
    line += '\n';
  }
  if (!Queue().PushLastWords(line)) WriteLines(line);
}

}  // namespace quire::base
