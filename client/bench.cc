// quire bench: sends a load of a given shape, and reports latencies, throughput and errors.

#include <algorithm>
#include <iostream>
#include <random>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "client/bench_load.h"
#include "client/command.h"
#include "client/request_flags.h"

namespace quire::client {
namespace {

struct BenchFlags {
  CommonFlags common;
  WorkloadConfig workload;
  std::optional<uint32_t> concurrency;
  std::optional<uint64_t> num_requests;
  std::optional<absl::Duration> duration;
  uint64_t warmup = 0;
  std::string prompt_file;
  uint32_t connections = 4;
};

void AddLengthFlag(base::FlagSet& flags, const char* name, const char* help, LengthMix* mix) {
  flags.Add(name, "LENGTHS", help, [mix](std::string_view text) -> absl::Status {
    ASSIGN_OR_RETURN(*mix, ParseLengthMix(text));
    return absl::OkStatus();
  });
}

void AddBenchFlags(base::FlagSet& flags, BenchFlags* given) {
  WorkloadConfig& workload = given->workload;
  flags.Section("Load (--rate or --concurrency; --num_requests, --duration or both)");
  flags.Add("rate", "R", "open loop: send R requests a second, at random times (Poisson)",
            &workload.rate);
  flags.Add("concurrency", "N", "closed loop: keep N requests running (default 1)",
            &given->concurrency);
  flags.Add("num_requests", "N", "send N requests (default: 100 without --duration)",
            &given->num_requests);
  flags.Add("duration", "TIME", "send for this long, then let running requests finish",
            &given->duration);
  flags.Add("warmup", "N", "send N requests first, which are not counted (default 0)",
            &given->warmup);
  AddLengthFlag(
      flags, "prompt_tokens",
      "lengths of random prompts: 128, 64..512 or a mix such as 16,100..200 (default 128)",
      &workload.prompt_tokens);
  AddLengthFlag(flags, "output_tokens",
                "lengths of answers, in the same form (default 64); see --ignore_eos",
                &workload.output_tokens);
  flags.Add("prompt_file", "FILE", "draw prompts from the lines of this file instead",
            &given->prompt_file);
  flags.Add("shared_prefix_tokens", "N",
            "begin prompts with N tokens that other prompts share (default 0)",
            &workload.shared_prefix_tokens);
  flags.Add("shared_prefix_fraction", "F",
            "fraction of the requests whose prompt begins so, 0..1 (default 1)",
            &workload.shared_prefix_fraction);
  flags.Add("num_shared_prefixes", "N", "number of different shared beginnings (default 1)",
            &workload.num_shared_prefixes);
  flags.Add("cancel_rate", "F",
            "fraction of the requests to cancel after some of their tokens, 0..1 (default 0)",
            &workload.cancel_rate);
  flags.Add("seed", "S", "the same seed gives the same load (default 0)", &workload.seed);
  flags.Add("connections", "N", "spread the requests over N connections, in turn (default 4)",
            &given->connections);
}

absl::Status Validate(const base::FlagSet& flags, BenchFlags* given) {
  const auto is_fraction = [](double value) { return value >= 0 && value <= 1; };
  if (flags.IsSet("rate") && given->concurrency.has_value()) {
    return absl::InvalidArgumentError(
        "--rate is open loop, --concurrency closed: give one of them");
  }
  if (flags.IsSet("rate") && !(given->workload.rate > 0)) {
    return absl::InvalidArgumentError("--rate: want more than 0");
  }
  if (given->concurrency == 0u) return absl::InvalidArgumentError("--concurrency: want at least 1");
  if (given->connections < 1 || given->connections > 1024) {
    return absl::InvalidArgumentError("--connections: want 1..1024");
  }
  if (!is_fraction(given->workload.shared_prefix_fraction)) {
    return absl::InvalidArgumentError("--shared_prefix_fraction: want 0..1");
  }
  if (given->workload.num_shared_prefixes < 1) {
    return absl::InvalidArgumentError("--num_shared_prefixes: want at least 1");
  }
  if (!is_fraction(given->workload.cancel_rate)) {
    return absl::InvalidArgumentError("--cancel_rate: want 0..1");
  }
  if (!given->num_requests && !given->duration) given->num_requests = 100;
  if (given->prompt_file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(given->prompt_file));
  given->workload.prompts = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (given->workload.prompts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt_file: no text in ", given->prompt_file));
  }
  return absl::OkStatus();
}

// Asks for the token ids from which random prompts are drawn.
absl::Status AskVocabulary(Connection& connection, const v1::GenerateRequest& request,
                           WorkloadConfig* workload) {
  v1::GetModelInfoRequest query;
  if (request.has_model()) query.set_model(request.model());
  v1::GetModelInfoResponse response;
  RETURN_IF_ERROR(connection.GetModelInfo(query, &response));
  const v1::ModelInfo& model = response.model();
  workload->vocab_size = model.vocab_size();
  workload->excluded_ids.assign(model.end_ids().begin(), model.end_ids().end());
  if (model.has_bos_id()) workload->excluded_ids.push_back(model.bos_id());
  if (workload->vocab_size <= workload->excluded_ids.size()) {
    return absl::FailedPreconditionError("the model's vocabulary holds nothing to make prompts of");
  }
  return absl::OkStatus();
}

std::map<std::string, int64_t> Growth(const v1::GetStatsResponse& before,
                                      const v1::GetStatsResponse& after) {
  const auto growth = [](uint64_t from, uint64_t to) { return static_cast<int64_t>(to - from); };
  return {
      {"prompt_computed",
       growth(before.tokens().prompt_computed(), after.tokens().prompt_computed())},
      {"prompt_cached", growth(before.tokens().prompt_cached(), after.tokens().prompt_cached())},
      {"generated", growth(before.tokens().generated(), after.tokens().generated())},
      {"recomputed", growth(before.tokens().recomputed(), after.tokens().recomputed())},
      {"preemptions", growth(before.sequences().preemptions(), after.sequences().preemptions())},
      {"steps", growth(before.sequences().steps(), after.sequences().steps())},
  };
}

// Draws a progress bar in place; does nothing when standard error is not a terminal.
void ShowProgress(const LoadOptions& options, const LoadProgress& progress) {
  static const bool is_terminal = isatty(STDERR_FILENO) != 0;
  if (!is_terminal) return;
  double share = 0;
  if (options.num_requests) {
    share = static_cast<double>(progress.num_done) /
            static_cast<double>(std::max<uint64_t>(1, *options.num_requests));
  }
  if (options.duration)
    share = std::max(share, absl::FDivDuration(progress.elapsed, *options.duration));
  constexpr size_t kWidth = 30;
  const size_t filled = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kWidth);
  const double seconds = std::max(1e-9, absl::ToDoubleSeconds(progress.elapsed));
  std::cerr << absl::StrFormat("\r[%s%s] %d sent, %d done, %d failed, %.0f tokens/s, %.0f s \x1b[K",
                               std::string(filled, '#'), std::string(kWidth - filled, '.'),
                               progress.num_sent, progress.num_done, progress.num_failed,
                               static_cast<double>(progress.num_tokens) / seconds, seconds)
            << std::flush;
}

void ClearProgress() {
  if (isatty(STDERR_FILENO) != 0) std::cerr << "\r\x1b[K" << std::flush;
}

std::vector<RequestRecord> RunLoad(const LoadOptions& options, const WorkloadConfig& workload,
                                   const std::vector<Connection*>& connections,
                                   Interrupt& interrupt, absl::Duration* wall) {
  Load load(options, Workload(workload), connections);
  interrupt.SetHandler([&load] { load.Stop(); });
  auto records = load.Run([&](const LoadProgress& progress) { ShowProgress(options, progress); });
  interrupt.ClearHandler();
  *wall = load.wall();
  ClearProgress();
  return records;
}

// Sends the load and returns its report. If Ctrl-C stops the load, the report covers the requests
// sent until then, and may count no successful request. Returns CANCELLED after Ctrl-C during the
// warm-up.
absl::StatusOr<BenchReport> Measure(const BenchFlags& given, const v1::GenerateRequest& request,
                                    const std::vector<Connection*>& connections,
                                    Interrupt& interrupt) {
  WorkloadConfig workload = given.workload;
  if (workload.prompts.empty()) RETURN_IF_ERROR(AskVocabulary(*connections[0], request, &workload));
  LoadOptions options{.concurrency = given.concurrency.value_or(1),
                      .open_loop = workload.rate > 0,
                      .num_requests = given.num_requests,
                      .duration = given.duration,
                      .request = request,
                      .first_sampling_seed = workload.seed};
  absl::Duration wall;
  if (given.warmup > 0) {
    LoadOptions warmup = options;
    warmup.open_loop = false;
    warmup.num_requests = given.warmup;
    warmup.duration.reset();
    WorkloadConfig other = workload;
    other.rate = 0;
    other.seed = ~workload.seed;
    RunLoad(warmup, other, connections, interrupt, &wall);
    if (interrupt.interrupted()) return absl::CancelledError("stopped while warming up");
  }
  // GetStats fails when the server serves ControlService at another address. The report then lacks
  // the server's counters.
  v1::GetStatsResponse before, after;
  const bool has_stats = connections[0]->GetStats({}, &before).ok();
  const std::vector<RequestRecord> records =
      RunLoad(options, workload, connections, interrupt, &wall);
  BenchReport report = MakeReport(records, wall);
  if (has_stats && connections[0]->GetStats({}, &after).ok()) report.server = Growth(before, after);
  return report;
}

}  // namespace

int RunBench(const Args& args, Interrupt& interrupt) {
  BenchFlags given;
  v1::GenerateRequest request;
  base::FlagSet flags(
      "quire bench [flags]",
      "Load-tests the server. Exits with 0 when every request succeeded. TTFT runs from the time "
      "at which a request was to be sent. A token gap is the time between two messages of one "
      "stream. Unless --cache_salt is given, a run shares no cached prefix with an earlier one.");
  AddBenchFlags(flags, &given);
  AddRequestFlags(flags, &request,
                  {"request_id", "session", "seed", "n", "best_of", "beam_width",
                   "beam_length_penalty", "beam_early_stopping", "beam_return", "max_tokens",
                   "return_token_ids", "logprobs", "prompt_logprobs", "echo", "usage_per_chunk"});
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (const absl::Status status = Validate(flags, &given); !status.ok())
    return FailUsage(flags, status);
  if (!request.cache().has_salt()) {
    std::random_device random;
    request.mutable_cache()->set_salt(absl::StrFormat("bench-%08x%08x", random(), random()));
  }

  std::vector<std::unique_ptr<Connection>> owned;
  std::vector<Connection*> connections;
  for (uint32_t i = 0; i < given.connections; ++i) {
    auto connection = Connection::Create(given.common.connection);
    if (!connection.ok()) return FailUsage(flags, connection.status());
    connections.push_back(connection->get());
    owned.push_back(std::move(*connection));
  }
  const auto report = Measure(given, request, connections, interrupt);
  if (!report.ok()) return Fail(report.status());
  Print(given.common.json ? absl::StrCat(ToJson(*report).dump(), "\n") : FormatReport(*report));
  if (interrupt.interrupted()) return kExitInterrupted;
  return report->failures.empty() ? kExitOk : kExitFailed;
}

}  // namespace quire::client
