#include "server/grpc/library_logs.h"

#include <string>

#include <grpc/support/log.h>

#include "google/protobuf/stubs/logging.h"

#include "base/logging.h"

namespace quire::server {
namespace {

using base::Log;
using base::LogLevel;

void LogOfGrpc(gpr_log_func_args* args) {
  LogLevel level = LogLevel::kDebug;
  if (args->severity == GPR_LOG_SEVERITY_INFO) level = LogLevel::kInfo;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) level = LogLevel::kError;
  Log(level, "grpc", args->message, {{"file", args->file}, {"line", args->line}});
}

void LogOfProtobuf(google::protobuf::LogLevel severity, const char* file, int line,
                   const std::string& message) {
  LogLevel level = LogLevel::kInfo;
  if (severity == google::protobuf::LOGLEVEL_WARNING) level = LogLevel::kWarning;
  if (severity >= google::protobuf::LOGLEVEL_ERROR) level = LogLevel::kError;
  Log(level, "protobuf", message, {{"file", file}, {"line", line}});
}

}  // namespace

void TakeLibraryLogs() {
  ::gpr_set_log_function(&LogOfGrpc);
  google::protobuf::SetLogHandler(&LogOfProtobuf);
}

}  // namespace quire::server
