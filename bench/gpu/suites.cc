#include "bench/gpu/suites.h"

#include <algorithm>
#include <chrono>
#include <istream>
#include <memory>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "bench/gpu/attention_bench.h"
#include "bench/gpu/ops_bench.h"

namespace quire::bench {

using kernels::cuda::Device;

namespace {

// The bytes and the matrix size with which the ceilings are measured. The full sizes are far beyond
// the L2 of any GPU, and large enough for the best speed of a GEMM.
struct CeilingSizes {
  int64_t bytes, gemm;
};
CeilingSizes SizesFor(Size size) {
  if (size == Size::kTiny) return {1 << 16, 32};
  return {int64_t{8} << 30, 8192};
}

bool Contains(const std::vector<std::string>& suites, const std::string& suite) {
  return std::find(suites.begin(), suites.end(), suite) != suites.end();
}

// Returns the groups of the chosen suites, without the cases that the filter leaves out.
std::vector<AttentionGroup> ChosenGroups(const BenchOptions& options) {
  std::vector<AttentionGroup> chosen;
  for (const AttentionGroup& group : AttentionGroups(options.size)) {
    AttentionGroup cases;
    for (const AttentionCase& c : group) {
      if (Contains(options.suites, c.suite) && absl::StrContains(Name(c), options.filter)) {
        cases.push_back(c);
      }
    }
    if (!cases.empty()) chosen.push_back(std::move(cases));
  }
  return chosen;
}

// Returns the cases whose merge is measured: the first case of each decode or ragged group, if it
// passes the filter and has the same numbers of heads as the first group. One case of a group is
// enough, because the merge depends on neither the block size nor ALiBi. If the plan of a case has
// no merges, its row states that.
std::vector<AttentionCase> MergeCases(const BenchOptions& options) {
  std::vector<AttentionCase> cases;
  if (!Contains(options.suites, "merge")) return cases;
  const std::vector<AttentionGroup> groups = AttentionGroups(options.size);
  const AttentionCase& first = groups.front().front();
  for (const AttentionGroup& group : groups) {
    const AttentionCase& c = group.front();
    if ((c.suite == "decode" || c.suite == "ragged") && c.num_heads == first.num_heads &&
        c.num_kv_heads == first.num_kv_heads && absl::StrContains(Name(c), options.filter)) {
      cases.push_back(c);
    }
  }
  return cases;
}

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}
  absl::Status Check() const {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin_;
    if (seconds_ <= 0.0 || gone.count() < seconds_) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the ", seconds_, " s are over"));
  }

 private:
  const double seconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Row Predicted(const AttentionCase& c) {
  Row row = {.suite = c.suite, .name = Name(c), .work = WorkOf(c)};
  row.floor_seconds = FloorSeconds(row.work, kAssumedH200);
  row.predicted_seconds = PredictedSeconds(row.work, kAssumedH200, ExpectationOf(c));
  row.more = ShapeToJson(c);
  return row;
}

}  // namespace

absl::Status Validate(const BenchOptions& options) {
  for (const std::string& suite : options.suites) {
    if (!Contains(kAllSuites, suite)) {
      return absl::InvalidArgumentError(
          absl::StrCat("want suites of ", absl::StrJoin(kAllSuites, ","), ", got ", suite));
    }
  }
  return absl::OkStatus();
}

absl::Status RunSuites(Device& device, const BenchOptions& options, const Emit& emit) {
  RETURN_IF_ERROR(Validate(options));
  const Deadline deadline(options.seconds);
  ASSIGN_OR_RETURN(const auto stopwatch, Stopwatch::Create(device, options.measure));
  const CeilingSizes sizes = SizesFor(options.size);
  std::vector<Row> rows;
  ASSIGN_OR_RETURN(const Ceilings ceilings,
                   MeasureCeilings(device, *stopwatch, sizes.bytes, sizes.gemm, rows));
  std::for_each(rows.begin(), rows.end(), emit);

  AttentionBench attention(device, *stopwatch, ceilings);
  for (const AttentionGroup& group : ChosenGroups(options)) {
    const absl::Status time = deadline.Check();
    if (time.ok()) {
      for (const Row& row : attention.Run(group)) emit(row);
    } else {
      for (const AttentionCase& c : group) {
        emit({.suite = c.suite, .name = Name(c), .status = time});
      }
    }
  }
  for (const AttentionCase& c : MergeCases(options)) {
    Row row = {.suite = "merge", .name = Name(c), .status = deadline.Check()};
    emit(row.status.ok() ? attention.RunMerge(c) : row);
  }
  const OpsRun ops = {.device = device,
                      .stopwatch = *stopwatch,
                      .ceilings = ceilings,
                      .size = options.size,
                      .filter = options.filter,
                      .emit = emit,
                      .may_go_on = [&] { return deadline.Check(); }};
  if (Contains(options.suites, "ops")) RunOps(ops);
  if (Contains(options.suites, "linear")) RunLinear(ops);
  return absl::OkStatus();
}

void PredictAll(const BenchOptions& options, const Emit& emit) {
  for (const AttentionGroup& group : ChosenGroups(options)) {
    for (const AttentionCase& c : group) emit(Predicted(c));
  }
}

absl::Status Serve(Device& device, const BenchOptions& options, std::istream& in,
                   std::ostream& out) {
  ASSIGN_OR_RETURN(const auto stopwatch, Stopwatch::Create(device, options.measure));
  const CeilingSizes sizes = SizesFor(options.size);
  std::vector<Row> rows;
  ASSIGN_OR_RETURN(const Ceilings ceilings,
                   MeasureCeilings(device, *stopwatch, sizes.bytes, sizes.gemm, rows));
  AttentionBench attention(device, *stopwatch, ceilings);
  const std::vector<AttentionGroup> groups = AttentionGroups(options.size);
  for (std::string name; std::getline(in, name);) {
    Row row = {.name = name,
               .status = absl::InvalidArgumentError(absl::StrCat("there is no case ", name))};
    for (const AttentionGroup& group : groups) {
      for (const AttentionCase& c : group) {
        if (Name(c) == name) row = attention.Sample(c);
      }
    }
    out << ToJson(row).dump() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace quire::bench
