#include "tools/sim/sim_command.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "base/flags/flag_set.h"
#include "base/status_macros.h"
#include "tools/progress.h"
#include "tools/sim/bounds.h"
#include "tools/sim/cache_policies.h"
#include "tools/sim/report.h"
#include "tools/sim/router.h"

namespace quire::tools {
namespace {

constexpr int kBadFile = 1;
constexpr int kBadArguments = 2;
constexpr double kMebi = 1024.0 * 1024.0;

struct Options {
  std::string command;
  std::string trace_path;
  TreeConfig tree;
  int64_t skip = 0;
  std::vector<double> sizes = {1, 2, 4, 8, 16};
  std::vector<std::string> policies;
  FleetConfig fleet;
  std::vector<std::string> routers = {"least_loaded"};
  std::vector<std::string> evictions = {"reuse"};
  std::vector<std::string> victims = {"cheapest"};
  std::vector<std::string> bench_paths;
  std::string pressure;
  std::string svg_path;
  bool bounds = false;
  bool json = false;
};

absl::Status ParseSizes(std::string_view text, std::vector<double>* sizes) {
  sizes->clear();
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ',');
  for (const std::string& part : parts) {
    double size = 0.0;
    if (!absl::SimpleAtod(part, &size) || !(size > 0.0) || size > 1e6) {
      return absl::InvalidArgumentError(
          absl::StrCat("want numbers such as 1,2,4, got \"", part, "\""));
    }
    sizes->push_back(size);
  }
  return absl::OkStatus();
}

template <typename Names>
base::Setter NamesSetter(std::vector<std::string>* target, const Names& known) {
  return [target, &known](std::string_view text) -> absl::Status {
    target->clear();
    const std::vector<std::string> names = absl::StrSplit(std::string(text), ',');
    for (const std::string& name : names) {
      if (std::ranges::find(known, name) == known.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("want some of ", absl::StrJoin(known, ","), ", got \"", name, "\""));
      }
      target->push_back(name);
    }
    return absl::OkStatus();
  };
}

base::FlagSet Flags(Options& options) {
  static const std::vector<std::string> kEvictions = {"recency", "reuse"};
  static const std::vector<std::string> kVictims = {"youngest", "cheapest"};
  base::FlagSet flags(
      "quire-sim hits [TRACE] [flags]\n"
      "       quire-sim serve [TRACE] [flags]\n"
      "       quire-sim fit --bench FILE [--bench FILE ..]",
      "Runs Quire's scheduler and prefix cache on a virtual clock. `hits` compares policies of "
      "eviction, requests one after another; `serve` predicts latencies of one or more servers; "
      "`fit` fits the time of a step to measurements of `quire bench`.");
  flags.AddOperand("COMMAND", "hits, serve or fit", &options.command);
  flags.AddOperand("TRACE",
                   "Mooncake's JSON lines (.jsonl) or Azure's table (.csv); without it, "
                   "conversations are generated",
                   &options.trace_path);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();
  const auto add64 = [&](std::string name, std::string help, int64_t* target, int64_t min,
                         int64_t max) {
    flags.Add(std::move(name), "N", std::move(help), base::IntegerSetter(target, min, max));
  };
  const auto add32 = [&](std::string name, std::string help, int32_t* target, int64_t min,
                         int64_t max) {
    flags.Add(std::move(name), "N", std::move(help), base::IntegerSetter(target, min, max));
  };
  add64("skip", "pass over the first N requests (default 0)", &options.skip, 0, kMost);
  flags.AddSwitch("json", "print JSON instead of tables", &options.json);
  flags.Section("Generated conversations");
  TreeConfig& tree = options.tree;
  add64("requests", "number of requests (default 10000)", &tree.num_requests, 1, kMost);
  flags.Add("rate", "R", "requests a second, at random times (Poisson; default 4)", &tree.rate);
  flags.Add("burst", "F", "for a fifth of the time the rate is F times as high (default 1: never)",
            &tree.burst);
  flags.Add("burst_seconds", "S", "length of a burst (default 30)", &tree.burst_seconds);
  add32("systems", "number of system prompts, used by Zipf's law (default 8)", &tree.num_systems, 1,
        1 << 20);
  add64("system_tokens", "length of a system prompt (default 512)", &tree.system_tokens, 0,
        kMost32);
  add64("question_tokens", "mean length of a question (default 256)", &tree.question_tokens, 1,
        kMost32);
  add64("answer_tokens", "mean length of an answer (default 128)", &tree.answer_tokens, 1, kMost32);
  add64("max_prompt_tokens", "a conversation ends at this length (default 16384)", &tree.max_tokens,
        1, 1 << 24);
  flags.Add("continue_share", "P", "share of turns with a next turn (default 0.6)",
            &tree.continue_share);
  flags.Add("think_seconds", "S", "median time to the next turn (default 60)", &tree.think_seconds);
  add32("tenants", "number of tenants (default 1)", &tree.num_tenants, 1, 1 << 16);
  flags.Add("seed", "S", "the same seed gives the same conversations (default 0)", &tree.seed);
  flags.Section("hits");
  flags.Add("sizes", "LIST", "sizes of the cache in 2^20 tokens (default 1,2,4,8,16)",
            [&options](std::string_view text) { return ParseSizes(text, &options.sizes); });
  flags.Add("policies", "LIST",
            absl::StrCat("some of ", absl::StrJoin(CachePolicies(), ","), " (default: all)"),
            NamesSetter(&options.policies, CachePolicies()));
  flags.Add("svg", "FILE", "draw the hit rates; of serve: the percentiles of latency and goodput",
            &options.svg_path);
  flags.Section("serve");
  ReplicaConfig& replica = options.fleet.replica;
  flags.Add("pressure", "NAME",
            absl::StrCat("a tenant that asks for too much beside one that asks little, which sends "
                         "--requests requests, instead of conversations: one of ",
                         absl::StrJoin(PressureNames(), ",")),
            [&options](std::string_view text) -> absl::Status {
              options.pressure = std::string(text);
              if (MakePressure(text, 0, 0) != nullptr) return absl::OkStatus();
              return absl::InvalidArgumentError(absl::StrCat("want one of ",
                                                             absl::StrJoin(PressureNames(), ","),
                                                             ", got \"", options.pressure, "\""));
            });
  add32("replicas", "number of servers (default 1)", &options.fleet.num_replicas, 1, 4096);
  flags.Add("router", "LIST",
            absl::StrCat("a row for each of ", absl::StrJoin(RouterNames(), ","),
                         " that is given (default least_loaded)"),
            NamesSetter(&options.routers, RouterNames()));
  add32("key_blocks", "prefix_key: blocks of the trace in the key (default 4)",
        &options.fleet.key_blocks, 1, kMost32);
  flags.Add("eviction", "LIST", "a row for each of recency,reuse that is given (default reuse)",
            NamesSetter(&options.evictions, kEvictions));
  flags.Add(
      "victim", "LIST",
      "which sequence makes way when blocks run out: a row for each of youngest,cheapest that "
      "is given (default cheapest)",
      NamesSetter(&options.victims, kVictims));
  add32("headroom_blocks", "blocks left for each running sequence when one starts (default 2)",
        &replica.headroom_blocks, 0, 1 << 20);
  add64("cache_tokens", "of a server (default 65536)", &replica.cache_tokens, 256, kMost32);
  add32("block_size", "as for quire-server (default 16)", &replica.block_size, 1, 4096);
  add32("max_num_seqs", "as for quire-server (default 256)", &replica.max_num_seqs, 1, 65536);
  add32("max_num_batched_tokens", "as for quire-server (default 2048)",
        &replica.max_num_batched_tokens, 1, 1 << 20);
  add32("max_logit_rows", "rows of logits of prompts and continuations in a step (default 64)",
        &replica.max_logit_rows, 1, 1 << 20);
  flags.Add("max_step_time", "TIME", "as for quire-server (default 0: steps are not paced)",
            &replica.max_step_time);
  flags.Add("slo_ttft", "S", "goodput: time to the first token (default 2)",
            &options.fleet.slo_ttft);
  flags.Add("slo_tpot", "S", "goodput: time for each later token (default 0.1)",
            &options.fleet.slo_tpot);
  flags.AddSwitch("bounds", "print the hit rates of an infinite cache and of Belady's MIN, too",
                  &options.bounds);
  flags.Section("Time of a step, in seconds (the default is quire-stories on two cores)");
  flags.Add("step_seconds", "S", "for a step", &replica.cost.step);
  flags.Add("decode_seconds", "S", "for a decode", &replica.cost.decode);
  flags.Add("prompt_token_seconds", "S", "for a token of a prompt", &replica.cost.prompt_token);
  flags.Add("key_seconds", "S", "for a key that a token reads", &replica.cost.key);
  flags.Section("fit");
  flags.Add("bench", "FILE", "the output of `quire bench --json --concurrency N`; may be repeated",
            &options.bench_paths);
  flags.SetEpilogue(
      "Progress is written to stderr. Exit status: 0; 1 when a file cannot be used; 2 for wrong "
      "arguments.\n\n"
      "  quire-sim hits conversation_trace.jsonl --svg hits.svg\n"
      "  quire-sim serve --requests 1000000 --rate 20 --replicas 4 --router "
      "round_robin,cache_aware\n"
      "  quire-sim fit --bench one.json --bench two.json --bench three.json");
  return flags;
}

absl::Status CheckOptions(const Options& options, const base::FlagSet& flags) {
  const auto want = [](bool ok, std::string text) {
    return ok ? absl::OkStatus() : absl::InvalidArgumentError(std::move(text));
  };
  RETURN_IF_ERROR(
      want(options.command == "hits" || options.command == "serve" || options.command == "fit",
           "want hits, serve or fit; see --help"));
  if (options.command == "fit") {
    RETURN_IF_ERROR(want(!options.bench_paths.empty(), "fit: want --bench FILE; see --help"));
    return want(flags.num_operands() == 1, "fit: want no TRACE; give measurements with --bench");
  }
  RETURN_IF_ERROR(Validate(options.tree));
  const ReplicaConfig& replica = options.fleet.replica;
  RETURN_IF_ERROR(want(replica.max_num_batched_tokens >= replica.max_num_seqs,
                       "--max_num_batched_tokens: want at least --max_num_seqs"));
  RETURN_IF_ERROR(want(replica.cache_tokens >= 16 * int64_t{replica.block_size},
                       "--cache_tokens: want at least 16 blocks; see --block_size"));
  RETURN_IF_ERROR(want(replica.cost.step >= 0 && replica.cost.decode >= 0 &&
                           replica.cost.prompt_token >= 0 && replica.cost.key >= 0 &&
                           replica.cost.step + replica.cost.decode > 0,
                       "the times of a step: want at least 0, and more than 0 for a step or a "
                       "decode"));
  RETURN_IF_ERROR(want(options.pressure.empty() || options.trace_path.empty(),
                       "--pressure: want no TRACE beside it"));
  const bool known = options.trace_path.empty() || options.trace_path.ends_with(".jsonl") ||
                     options.trace_path.ends_with(".csv");
  return want(known, "TRACE: want a name that ends in .jsonl (Mooncake) or .csv (Azure), got \"" +
                         options.trace_path + "\"");
}

absl::StatusOr<std::unique_ptr<Trace>> OpenTrace(const Options& options) {
  absl::StatusOr<std::unique_ptr<Trace>> trace = MakeTree(options.tree);
  if (!options.pressure.empty()) {
    trace = MakePressure(options.pressure, options.tree.num_requests, options.tree.seed);
  }
  if (options.trace_path.ends_with(".jsonl")) trace = OpenMooncake(options.trace_path);
  if (options.trace_path.ends_with(".csv"))
    trace = OpenAzure(options.trace_path, options.tree.seed);
  if (!trace.ok()) return trace.status();
  TraceRequest skipped;
  for (int64_t i = 0; i < options.skip; ++i) {
    ASSIGN_OR_RETURN(const bool more, (*trace)->Next(&skipped));
    if (!more) return absl::InvalidArgumentError("--skip: the trace has fewer requests");
  }
  return trace;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream stream(path);
  stream << text;
  stream.flush();
  return stream ? absl::OkStatus()
                : absl::InvalidArgumentError(
                      absl::StrCat(path, ": cannot be written; want a folder that exists"));
}

absl::StatusOr<std::string> RunHits(const Options& options, std::ostream& err) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Trace> trace, OpenTrace(options));
  ASSIGN_OR_RETURN(const std::vector<TraceRequest> requests, ReadAll(*trace));
  std::vector<std::string> policies = options.policies;
  if (policies.empty()) policies.assign(CachePolicies().begin(), CachePolicies().end());
  const double infinite = InfiniteHits(requests).rate();

  Progress progress;
  Curves curves{.title = "Hit rate by size of the cache", .x_title = "size, 2^20 tokens"};
  std::vector<std::string> header = {"2^20 tokens"};
  std::vector<std::vector<std::string>> table;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& policy : policies) curves.lines.push_back({policy, {}});
  curves.lines.push_back({"MIN", {}});
  curves.lines.push_back({"infinite", {}});
  for (const auto& [name, values] : curves.lines) header.push_back(name);
  table.push_back(header);
  for (const double size : options.sizes) {
    const auto capacity = static_cast<int32_t>(
        std::max(1.0, size * kMebi / static_cast<double>(trace->block_tokens())));
    const std::string label = absl::StrCat(size);
    curves.x_labels.push_back(label);
    for (size_t k = 0; k < policies.size(); ++k) {
      const auto cache = MakeCache(policies[k], capacity, trace->block_tokens());
      HitCount count;
      for (size_t i = 0; i < requests.size(); ++i) {
        count.hits += cache->Serve(requests[i]);
        count.total += std::ssize(requests[i].blocks);
        if (i % 1024 == 0 && progress.IsDue()) {
          err << absl::StrFormat("%s, %s: %d of %d requests\n", label, policies[k], i,
                                 requests.size())
              << std::flush;
        }
      }
      curves.lines[k].second.push_back(count.rate());
    }
    curves.lines[policies.size()].second.push_back(MinHits(requests, capacity).rate());
    curves.lines[policies.size() + 1].second.push_back(infinite);
    std::vector<std::string> row = {label};
    nlohmann::ordered_json object = {{"size", size}};
    for (const auto& [name, values] : curves.lines) {
      row.push_back(absl::StrFormat("%.4f", values.back()));
      object[name] = values.back();
    }
    table.push_back(row);
    json.push_back(object);
  }
  if (!options.svg_path.empty()) {
    RETURN_IF_ERROR(WriteFile(options.svg_path, DrawCurves(curves)));
  }
  return options.json ? json.dump(2) + "\n" : FormatTable(table);
}

absl::StatusOr<std::string> Bounds(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Trace> trace, OpenTrace(options));
  ASSIGN_OR_RETURN(const std::vector<TraceRequest> requests, ReadAll(*trace));
  const int64_t capacity = std::max<int64_t>(
      1, options.fleet.num_replicas * options.fleet.replica.cache_tokens / trace->block_tokens());
  return absl::StrFormat(
      "\nhit rate of blocks, requests in order: %.4f with an infinite cache, %.4f with Belady's "
      "MIN "
      "in one cache of the size of all\n",
      InfiniteHits(requests).rate(), MinHits(requests, capacity).rate());
}

absl::StatusOr<std::string> RunServe(const Options& options, std::ostream& err) {
  NamedResults results;
  Progress progress;
  for (const std::string& router : options.routers) {
    for (const std::string& eviction : options.evictions) {
      for (const std::string& victim : options.victims) {
        ASSIGN_OR_RETURN(const std::unique_ptr<Trace> trace, OpenTrace(options));
        FleetConfig config = options.fleet;
        config.router = router;
        config.replica.eviction =
            eviction == "reuse" ? engine::EvictionPolicy::kReuse : engine::EvictionPolicy::kRecency;
        config.replica.victim = victim == "youngest" ? engine::VictimChoice::kYoungest
                                                     : engine::VictimChoice::kCheapest;
        std::string name = absl::StrCat(router, ", ", eviction);
        if (options.victims.size() > 1) absl::StrAppend(&name, ", ", victim);
        ASSIGN_OR_RETURN(FleetResult result, RunFleet(*trace, config, [&](int64_t num) {
                           if (progress.IsDue()) {
                             err << absl::StrFormat("%s: %d requests have arrived\n", name, num)
                                 << std::flush;
                           }
                         }));
        results.emplace_back(name, std::move(result));
      }
    }
  }
  if (!options.svg_path.empty()) {
    RETURN_IF_ERROR(WriteFile(options.svg_path, DrawResults(results, options.fleet.slo_ttft)));
  }
  if (options.json) return ToJson(results).dump(2) + "\n";
  std::string text = FormatResults(results);
  if (!options.pressure.empty()) text += "\n" + FormatTenants(results);
  if (options.bounds) {
    ASSIGN_OR_RETURN(const std::string bounds, Bounds(options));
    text += bounds;
  }
  return text;
}

absl::StatusOr<std::string> RunFit(const Options& options) {
  std::vector<Measurement> measurements;
  for (const std::string& path : options.bench_paths) {
    ASSIGN_OR_RETURN(const Measurement measurement, ReadBench(path));
    measurements.push_back(measurement);
  }
  ASSIGN_OR_RETURN(const Fit fit, FitCostModel(measurements));
  const CostModel& model = fit.model;
  if (options.json) {
    return nlohmann::ordered_json{{"step_seconds", model.step},
                                  {"decode_seconds", model.decode},
                                  {"prompt_token_seconds", model.prompt_token},
                                  {"key_seconds", model.key},
                                  {"worst_error", fit.worst_error}}
               .dump() +
           "\n";
  }
  return absl::StrFormat(
      "--step_seconds %.3g --decode_seconds %.3g --prompt_token_seconds %.3g --key_seconds %.3g\n"
      "worst error %.1f%% of %d measurements\n",
      model.step, model.decode, model.prompt_token, model.key, fit.worst_error * 100,
      measurements.size());
}

}  // namespace

int RunSim(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  Options options;
  base::FlagSet flags = Flags(options);
  absl::Status status = flags.Parse(args);
  if (flags.help_requested()) {
    out << flags.Help();
    return 0;
  }
  if (status.ok()) status = CheckOptions(options, flags);
  if (!status.ok()) {
    err << "quire-sim: " << status.message() << "\n";
    return kBadArguments;
  }
  const absl::StatusOr<std::string> text = options.command == "hits"    ? RunHits(options, err)
                                           : options.command == "serve" ? RunServe(options, err)
                                                                        : RunFit(options);
  if (!text.ok()) {
    err << "quire-sim: " << text.status().message() << "\n";
    return kBadFile;
  }
  out << *text;
  return 0;
}

}  // namespace quire::tools
