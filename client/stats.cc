// quire stats: shows the server's counters, once or repeatedly.

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/pause.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

struct StatsFlags {
  CommonFlags common;
  bool watch = false;
  absl::Duration interval = absl::Seconds(1);
  std::optional<uint64_t> count;
};

std::string Describe(const v1::GetServerInfoResponse& info, const v1::GetStatsResponse& stats) {
  std::string out = absl::StrFormat(
      "server     %s, %s backend, %s kernels, %s numerics, %d threads%s\n",
      ForTerminal(info.version()), ForTerminal(info.backend()), ForTerminal(info.isa_path()),
      ForTerminal(info.numerics()), info.num_threads(), stats.draining() ? ", draining" : "");
  absl::StrAppendFormat(
      &out, "limits     %d sequences and %d tokens a step, %d blocks of %d tokens (%.1f MiB)\n",
      info.max_num_seqs(), info.max_num_batched_tokens(), info.num_blocks(), info.block_size(),
      static_cast<double>(info.kv_cache_bytes()) / (1 << 20));
  absl::StrAppendFormat(&out, "now        %d sequences running, %d requests waiting\n",
                        stats.queue().num_running(), stats.queue().num_waiting());
  absl::StrAppendFormat(&out, "blocks     %d free, %d cached, %d held, of %d\n",
                        stats.blocks().free(), stats.blocks().cached(), stats.blocks().held(),
                        stats.blocks().total());
  absl::StrAppendFormat(
      &out, "tokens     %d of prompts computed, %d cached; %d generated; %d recomputed\n",
      stats.tokens().prompt_computed(), stats.tokens().prompt_cached(), stats.tokens().generated(),
      stats.tokens().recomputed());
  if (info.max_draft_tokens() > 0) {
    absl::StrAppendFormat(&out, "drafts     %d tokens guessed, %d of them right\n",
                          stats.tokens().drafted(), stats.tokens().accepted());
  }
  absl::StrAppendFormat(&out, "sequences  %d ended by a stop, %d by length, %d cut short\n",
                        stats.sequences().finished_stop(), stats.sequences().finished_length(),
                        stats.sequences().finished_abort());
  absl::StrAppendFormat(
      &out, "engine     %d steps, %d preemptions, %d blocks copied, %d requests refused\n",
      stats.sequences().steps(), stats.sequences().preemptions(), stats.sequences().block_copies(),
      stats.sequences().requests_rejected());
  return out;
}

constexpr char kWatchTitle[] =
    " running waiting |    free  cached    held | prompt/s cached/s generated/s recomputed/s\n";

std::string WatchLine(const v1::GetStatsResponse& before, const v1::GetStatsResponse& now,
                      double seconds) {
  const auto rate = [seconds](uint64_t from, uint64_t to) {
    return seconds > 0 ? static_cast<double>(to - from) / seconds : 0.0;
  };
  return absl::StrFormat("%8d %7d | %7d %7d %7d | %8.1f %8.1f %11.1f %12.1f\n",
                         now.queue().num_running(), now.queue().num_waiting(), now.blocks().free(),
                         now.blocks().cached(), now.blocks().held(),
                         rate(before.tokens().prompt_computed(), now.tokens().prompt_computed()),
                         rate(before.tokens().prompt_cached(), now.tokens().prompt_cached()),
                         rate(before.tokens().generated(), now.tokens().generated()),
                         rate(before.tokens().recomputed(), now.tokens().recomputed()));
}

absl::Status ShowOnce(Connection& connection, bool json) {
  v1::GetStatsResponse stats;
  RETURN_IF_ERROR(connection.GetStats({}, &stats));
  if (json) {
    Print(ToJsonLine(stats));
    return absl::OkStatus();
  }
  v1::GetServerInfoResponse info;
  RETURN_IF_ERROR(connection.GetServerInfo({}, &info));
  Print(Describe(info, stats));
  return absl::OkStatus();
}

// Prints `count` lines. Without a count, prints until Ctrl-C, which is not an error.
absl::Status Watch(Connection& connection, const StatsFlags& given, Interrupt& interrupt) {
  Pause pause(interrupt);
  if (!given.common.json) Print(kWatchTitle);
  v1::GetStatsResponse before;
  absl::Time before_time = absl::InfinitePast();
  for (uint64_t line = 0; !given.count.has_value() || line < *given.count; ++line) {
    if (line > 0 && !pause.Until(before_time + given.interval)) break;
    v1::GetStatsResponse now;
    RETURN_IF_ERROR(connection.GetStats({}, &now));
    const absl::Time time = absl::Now();
    const double seconds = line == 0 ? 0.0 : absl::ToDoubleSeconds(time - before_time);
    Print(given.common.json ? ToJsonLine(now) : WatchLine(before, now, seconds));
    before = now;
    before_time = time;
  }
  return absl::OkStatus();
}

}  // namespace

int RunStats(const Args& args, Interrupt& interrupt) {
  StatsFlags given;
  base::FlagSet flags("quire stats [--watch] [flags]",
                      "Shows the server's load now, and totals since it started.");
  flags.Section("Watching");
  flags.AddSwitch("watch", "print a line every --interval, with rates, until Ctrl-C", &given.watch);
  flags.Add("interval", "TIME", "time between two lines of --watch (default 1s)", &given.interval);
  flags.Add("count", "N", "end --watch after N lines", &given.count);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  const absl::Status status = given.watch ? Watch(**connection, given, interrupt)
                                          : ShowOnce(**connection, given.common.json);
  interrupt.ClearHandler();
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace quire::client
