// quire batch: answers the requests of a file, one line of JSON each.

#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/json_util.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "client/command.h"
#include "client/request_flags.h"

namespace quire::client {
namespace {

// The most requests of one call, and about the most bytes. A server takes 4 MiB by default.
constexpr int kMostRequests = 1024;
constexpr size_t kMostBytes = 3 << 20;

struct BatchFlags {
  CommonFlags common;
  std::string input = "-";
  uint32_t max_in_flight = 32;
};

// Returns the requests of `text`, one for each line that is not blank. A request has the fields of
// `defaults` that its line does not set.
absl::StatusOr<std::vector<v1::GenerateRequest>> ReadRequests(std::string_view text,
                                                              const v1::GenerateRequest& defaults) {
  std::vector<v1::GenerateRequest> requests;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(base::ToAbsl(text), '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    v1::GenerateRequest given;
    const auto parsed = google::protobuf::util::JsonStringToMessage(std::string(line), &given);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d: want a GenerateRequest in JSON, such as {\"text\": \"Once\"}: %s", number,
          parsed.ToString()));
    }
    requests.push_back(defaults);
    requests.back().MergeFrom(given);
  }
  if (requests.empty()) return absl::InvalidArgumentError("want at least one line, got none");
  return requests;
}

// Prints on standard error how far the batch is: at most twice a second on a terminal, otherwise
// every ten seconds.
class Progress {
 public:
  explicit Progress(size_t num_requests) : num_requests_(num_requests) {}

  void Take(const v1::GenerateBatchResponse& answer) {
    ++num_answered_;
    num_failed_ += answer.has_error() ? 1 : 0;
    num_tokens_ += answer.response().usage().completion_tokens();
    const absl::Time now = absl::Now();
    if (now < next_) return;
    next_ = now + (is_terminal_ ? absl::Milliseconds(500) : absl::Seconds(10));
    std::cerr << (is_terminal_ ? "\r\x1b[K" : "") << Line() << (is_terminal_ ? "" : "\n")
              << std::flush;
  }
  void Finish() const { std::cerr << (is_terminal_ ? "\r\x1b[K" : "") << Line() << "\n"; }

  size_t num_failed() const { return num_failed_; }

 private:
  std::string Line() const {
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin_);
    return absl::StrFormat("%d of %d answered, %d failed; %d tokens, %.1f tokens/s", num_answered_,
                           num_requests_, num_failed_, num_tokens_,
                           seconds > 0 ? static_cast<double>(num_tokens_) / seconds : 0.0);
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const size_t num_requests_;
  const absl::Time begin_ = absl::Now();
  absl::Time next_ = begin_ + absl::Milliseconds(500);
  size_t num_answered_ = 0;
  size_t num_failed_ = 0;
  uint64_t num_tokens_ = 0;
};

// JSON of a proto leaves out a 0, but a reader of the lines should find an index in each.
std::string AnswerLine(const v1::GenerateBatchResponse& answer) {
  std::string line = ToJsonLine(answer);
  if (answer.index() == 0) line.replace(0, 1, "{\"index\":0,");
  return line;
}

absl::Status Run(Connection& connection, const BatchFlags& given,
                 const std::vector<v1::GenerateRequest>& requests) {
  Progress progress(requests.size());
  absl::Status status;
  for (size_t first = 0; first < requests.size() && status.ok();) {
    v1::GenerateBatchRequest batch;
    batch.set_max_in_flight(given.max_in_flight);
    size_t num_bytes = 0;
    size_t end = first;
    while (end < requests.size() && batch.requests_size() < kMostRequests) {
      num_bytes += requests[end].ByteSizeLong();
      if (num_bytes > kMostBytes && end > first) break;
      *batch.add_requests() = requests[end++];
    }
    status = connection.GenerateBatch(batch, [&](v1::GenerateBatchResponse answer) {
      answer.set_index(answer.index() + static_cast<uint32_t>(first));
      Print(AnswerLine(answer));
      progress.Take(answer);
    });
    first = end;
  }
  progress.Finish();
  RETURN_IF_ERROR(status);
  if (progress.num_failed() == 0) return absl::OkStatus();
  return absl::UnknownError(
      absl::StrFormat("%d requests failed; their lines have an \"error\"", progress.num_failed()));
}

}  // namespace

int RunBatch(const Args& args, Interrupt& interrupt) {
  BatchFlags given;
  v1::GenerateRequest defaults;
  base::FlagSet flags(
      "quire batch [FILE] [flags]",
      "Answers the requests of a file. Each line of the file is a GenerateRequest in "
      "JSON, such as {\"text\": \"Once upon a time\"}. Each line of the output is the "
      "answer or the error of one of them, with its index, as soon as it is there.");
  flags.AddOperand("FILE", "the requests, a line of JSON each; - is standard input (default -)",
                   &given.input);
  flags.Section("Batch");
  flags.Add("max_in_flight", "N", "the most requests at a time, 1..256 (default 32)",
            &given.max_in_flight);
  AddRequestFlags(flags, &defaults, {"request_id"});
  flags.SetEpilogue(
      "The flags of a request are for lines that do not set the field. Lists, such as stop texts, "
      "are "
      "joined.");
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (given.common.json && !defaults.output().has_token_ids()) {
    defaults.mutable_output()->set_token_ids(true);
  }
  const absl::StatusOr<std::string> text = ReadTextFile(given.input);
  if (!text.ok()) return FailUsage(flags, text.status());
  const auto requests = ReadRequests(*text, defaults);
  if (!requests.ok()) return FailUsage(flags, requests.status());

  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  return Finish(Run(**connection, given, *requests), interrupt);
}

}  // namespace quire::client
