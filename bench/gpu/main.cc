// quire-gpu-bench measures the CUDA kernels and compares them with the limits of the device. See
// README.md.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "bench/gpu/bench_device.h"
#include "bench/gpu/suites.h"

namespace quire::bench {
namespace {

constexpr char kUsage[] =
    "quire-gpu-bench [--suite decode,ragged,mixed,shared,skip,merge,prefill,ops,linear] [--filter "
    "TEXT]\n"
    "                [--size full|tiny] [--repeats N] [--seconds N] [--json FILE]\n"
    "                [--predict | --serve]\n"
    "Times the CUDA kernels and prints, for each case, the median, the time predicted before, and\n"
    "the share of what the memory and the GEMMs of the same run allow. Without CUDA in the build\n"
    "it runs under the emulator, tiny cases only, and its times say nothing.\n"
    "  --filter TEXT  only cases whose name contains it\n"
    "  --seconds N  no new case after so many; what is left out is listed\n"
    "  --json FILE  appends a line of JSON for each case\n"
    "  --predict    every attention case and its prediction for an H200; needs no GPU\n"
    "  --serve      measures the attention case that each line of the input names, and answers\n"
    "               with a line of JSON\n";

struct Options {
  BenchOptions bench;
  std::string json;
  bool predict = false, serve = false;
};

bool Parse(int argc, char** argv, Options* options) {
  if (!RunsOnGpu()) options->bench.size = Size::kTiny;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--predict" || flag == "--serve") {
      (flag == "--predict" ? options->predict : options->serve) = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (flag == "--suite") {
      options->bench.suites = absl::StrSplit(value, ',');
    } else if (flag == "--filter") {
      options->bench.filter = value;
    } else if (flag == "--size" && (value == "full" || value == "tiny")) {
      options->bench.size = value == "full" ? Size::kFull : Size::kTiny;
    } else if (flag == "--repeats") {
      int& repeats = options->bench.measure.repeats;
      if (!absl::SimpleAtoi(value, &repeats) || repeats < 1) return false;
    } else if (flag == "--seconds") {
      if (!absl::SimpleAtod(value, &options->bench.seconds)) return false;
    } else if (flag == "--json") {
      options->json = value;
    } else {
      return false;
    }
  }
  return !(options->predict && options->serve);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "quire-gpu-bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Run(const Options& options) {
  if (const absl::Status status = Validate(options.bench); !status.ok()) return Fail(status);
  std::FILE* const json = options.json.empty() ? nullptr : std::fopen(options.json.c_str(), "a");
  if (json == nullptr && !options.json.empty()) {
    return Fail(absl::NotFoundError(options.json + ": " + std::strerror(errno)));
  }
  const auto write = [json](const nlohmann::ordered_json& line) {
    if (json == nullptr) return;
    std::fprintf(json, "%s\n", line.dump().c_str());
    std::fflush(json);
  };
  bool failed = false;
  const auto emit = [&](const Row& row) {
    std::printf("%s\n", TableLine(row).c_str());
    std::fflush(stdout);
    write(ToJson(row));
    failed |= !row.status.ok() && !LeftOut(row.status);
  };
  if (options.predict) {
    std::printf("%s\n", TableHeader().c_str());
    PredictAll(options.bench, emit);
    return 0;
  }

  if (!RunsOnGpu() && options.bench.size == Size::kFull) {
    return Fail(absl::InvalidArgumentError("the full size is for a GPU; this build has none"));
  }
  const auto device = MakeBenchDevice();
  if (!device.ok()) return Fail(device.status());
  BenchOptions bench = options.bench;
  if (!RunsOnGpu()) {
    bench.measure.flush_bytes = 1 << 14;
    bench.measure.repeats = std::min(bench.measure.repeats, 5);
  }
  if (options.serve) {
    const absl::Status status = Serve(**device, bench, std::cin, std::cout);
    return status.ok() ? 0 : Fail(status);
  }
  const kernels::cuda::DeviceInfo& info = (*device)->info();
  write({{"type", "device"},
         {"name", info.name},
         {"compute_capability", info.compute_capability},
         {"num_sms", info.num_sms},
         {"memory_bytes", info.memory_bytes},
         {"gpu", RunsOnGpu()}});
  std::printf("%s, %d multiprocessors%s\n%s\n", info.name.c_str(), info.num_sms,
              RunsOnGpu() ? "" : ": these times say nothing", TableHeader().c_str());
  const absl::Status status = RunSuites(**device, bench, emit);
  if (!status.ok()) return Fail(status);
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  const bool help = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  if (help || !quire::bench::Parse(argc, argv, &options)) {
    std::fputs(quire::bench::kUsage, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  return quire::bench::Run(options);
}
