#include "bench/gpu/measure.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "bench/gpu/stream.h"

namespace quire::bench {

using kernels::DeviceBuffer;
using kernels::DType;
using kernels::Recording;
using kernels::cuda::Device;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool LeftOut(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

nlohmann::ordered_json ToJson(const Row& row) {
  nlohmann::ordered_json json = {{"type", "row"}, {"suite", row.suite}, {"name", row.name}};
  if (!row.status.ok()) {
    json["type"] = LeftOut(row.status) ? "skipped" : "failed";
    json["reason"] = std::string(row.status.message());
    return json;
  }
  json["bytes"] = row.work.bytes;
  json["flops"] = row.work.flops;
  json["predicted_us"] = row.predicted_seconds * 1e6;
  json.update(row.more);
  if (row.seconds.empty()) {
    json["type"] = "prediction";
    return json;
  }
  const double median = Median(row.seconds);
  json["median_us"] = median * 1e6;
  json["best_us"] = *std::min_element(row.seconds.begin(), row.seconds.end()) * 1e6;
  json["samples"] = row.seconds.size();
  json["of_ceiling"] = row.floor_seconds / median;
  return json;
}

std::string TableHeader() {
  return absl::StrFormat("%-46s %11s %11s %8s %8s %9s", "case", "median us", "predicted", "GB/s",
                         "TFLOP/s", "of floor");
}

std::string TableLine(const Row& row) {
  if (!row.status.ok()) {
    return absl::StrFormat("%-46s %s: %s", row.name, LeftOut(row.status) ? "left out" : "FAILED",
                           std::string(row.status.message()));
  }
  if (row.seconds.empty()) {
    return absl::StrFormat("%-46s %11s %11.1f", row.name, "-", row.predicted_seconds * 1e6);
  }
  const double median = Median(row.seconds);
  return absl::StrFormat("%-46s %11.1f %11.1f %8.0f %8.1f %8.0f%%", row.name, median * 1e6,
                         row.predicted_seconds * 1e6, row.work.bytes / median / 1e9,
                         row.work.flops / median / 1e12, row.floor_seconds / median * 100);
}

absl::StatusOr<std::unique_ptr<Stopwatch>> Stopwatch::Create(Device& device,
                                                             const MeasureOptions& options) {
  std::unique_ptr<Stopwatch> stopwatch(new Stopwatch(device, options));
  ASSIGN_OR_RETURN(stopwatch->flush_, device.Allocate(options.flush_bytes));
  ASSIGN_OR_RETURN(stopwatch->sink_, device.Allocate(4));
  RETURN_IF_ERROR(
      FillRandom(device, stopwatch->flush_.data(), DType::kF32, options.flush_bytes / 4, 1.0f, 1));
  return stopwatch;
}

absl::StatusOr<double> Stopwatch::Sample(const Recording& recording) {
  RETURN_IF_ERROR(ReadAll(device_, flush_.data(), flush_.bytes(), sink_.data()));
  return SecondsOf(device_, [&] { return device_.Replay(recording); });
}

absl::StatusOr<std::vector<std::vector<double>>> Stopwatch::Measure(
    const std::vector<const Recording*>& recordings) {
  constexpr int kFewest = 5;
  std::vector<std::vector<double>> seconds(recordings.size());
  double spent = 0.0;
  for (int round = -1; round < options_.repeats; ++round) {
    if (round >= kFewest && spent > options_.max_seconds) break;
    for (size_t i = 0; i < recordings.size(); ++i) {
      ASSIGN_OR_RETURN(const double sample, Sample(*recordings[i]));
      spent += sample;
      if (round >= 0) seconds[i].push_back(sample);
    }
  }
  return seconds;
}

std::vector<Row> MeasureInTurn(Device& device, Stopwatch& stopwatch,
                               std::vector<Variant> variants) {
  std::vector<std::unique_ptr<Recording>> recordings;
  std::vector<const Recording*> measured;
  std::vector<Row*> rows;
  for (Variant& variant : variants) {
    const auto record = [&]() -> absl::Status {
      RETURN_IF_ERROR(variant.row.status);
      RETURN_IF_ERROR(variant.enqueue());
      RETURN_IF_ERROR(device.Synchronize());
      ASSIGN_OR_RETURN(recordings.emplace_back(), device.Record(variant.enqueue));
      return absl::OkStatus();
    };
    variant.row.status = record();
    if (!variant.row.status.ok()) continue;
    measured.push_back(recordings.back().get());
    rows.push_back(&variant.row);
  }
  const auto seconds = stopwatch.Measure(measured);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (seconds.ok()) {
      rows[i]->seconds = (*seconds)[i];
    } else {
      rows[i]->status = seconds.status();
    }
  }
  std::vector<Row> done;
  for (Variant& variant : variants) done.push_back(std::move(variant.row));
  return done;
}

absl::StatusOr<Ceilings> MeasureCeilings(Device& device, Stopwatch& stopwatch, int64_t bytes,
                                         int64_t gemm_size, std::vector<Row>& rows) {
  const int64_t elements = gemm_size * gemm_size;
  ASSIGN_OR_RETURN(const DeviceBuffer from, device.Allocate(bytes));
  ASSIGN_OR_RETURN(const DeviceBuffer to, device.Allocate(bytes));
  ASSIGN_OR_RETURN(const DeviceBuffer matrices, device.Allocate(3 * elements * 2));
  RETURN_IF_ERROR(FillRandom(device, from.data(), DType::kF32, bytes / 4, 1.0f, 2));
  // The matrices are random. A GEMM of zeros would draw less power than a model's GEMM, and so run
  // faster.
  RETURN_IF_ERROR(FillRandom(device, matrices.data(), DType::kBF16, 2 * elements, 1.0f, 3));
  uint16_t* const a = static_cast<uint16_t*>(matrices.data());
  const kernels::cuda::GemmArgs gemm = {.d = a + 2 * elements,
                                        .a = a,
                                        .b = a + elements,
                                        .m = gemm_size,
                                        .n = gemm_size,
                                        .k = gemm_size,
                                        .lda = gemm_size,
                                        .ldb = gemm_size,
                                        .ldd = gemm_size};
  const double size = static_cast<double>(gemm_size), moved = static_cast<double>(bytes);
  const double gemm_flops = 2.0 * size * size * size;
  const auto row = [](std::string name, Work work, double expected) {
    return Row{.suite = "ceilings",
               .name = std::move(name),
               .work = work,
               .floor_seconds = expected,
               .predicted_seconds = expected};
  };
  std::vector<Variant> variants;
  variants.push_back({row(absl::StrFormat("read %d MiB", bytes >> 20), {.bytes = moved},
                          moved / kAssumedH200.read),
                      [&] { return ReadAll(device, from.data(), bytes, to.data()); }});
  variants.push_back({row(absl::StrFormat("copy %d MiB", bytes >> 20), {.bytes = 2 * moved},
                          2 * moved / kAssumedH200.copy),
                      [&] { return device.CopyOnDevice(to.data(), from.data(), bytes); }});
  variants.push_back(
      {row(absl::StrFormat("gemm bf16 %d^3", gemm_size),
           {.bytes = 6.0 * size * size, .flops = gemm_flops}, gemm_flops / kAssumedH200.gemm),
       [&] { return device.Gemm(gemm); }});
  std::vector<Row> measured = MeasureInTurn(device, stopwatch, std::move(variants));
  for (const Row& done : measured) RETURN_IF_ERROR(done.status);
  const Ceilings ceilings = {.read = moved / Median(measured[0].seconds),
                             .copy = 2 * moved / Median(measured[1].seconds),
                             .gemm = gemm_flops / Median(measured[2].seconds)};
  rows.insert(rows.end(), std::make_move_iterator(measured.begin()),
              std::make_move_iterator(measured.end()));
  return ceilings;
}

}  // namespace quire::bench
