#include "server/grpc/library_logs.h"

#include <string>
#include <string_view>

#include <grpc/support/log.h>

#include "google/protobuf/stubs/logging.h"

#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {
namespace {

using base::LogLevel;

constexpr size_t kMaxTextBytes = 500;

// A library's text can hold what a client sent, so it is a field, short, and limited.
void LogText(base::LogLimit& limit, LogLevel level, std::string_view library, std::string_view text,
             const char* file, int line) {
  base::LogLimited(limit, base::SteadyNow(), level, library, "the library says",
                   {{"text", text.substr(0, kMaxTextBytes)}, {"file", file}, {"line", line}});
}

void LogOfGrpc(gpr_log_func_args* args) {
  LogLevel level = LogLevel::kDebug;
  if (args->severity == GPR_LOG_SEVERITY_INFO) level = LogLevel::kInfo;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) level = LogLevel::kError;
  static base::LogLimit limit;
  LogText(limit, level, "grpc", args->message, args->file, args->line);
}

void LogOfProtobuf(google::protobuf::LogLevel severity, const char* file, int line,
                   const std::string& message) {
  LogLevel level = LogLevel::kInfo;
  if (severity == google::protobuf::LOGLEVEL_WARNING) level = LogLevel::kWarning;
  if (severity >= google::protobuf::LOGLEVEL_ERROR) level = LogLevel::kError;
  static base::LogLimit limit;
  LogText(limit, level, "protobuf", message, file, line);
}

}  // namespace

void TakeLibraryLogs() {
  ::gpr_set_log_function(&LogOfGrpc);
  google::protobuf::SetLogHandler(&LogOfProtobuf);
}

}  // namespace quire::server
