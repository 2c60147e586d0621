#include "bench/kernels/measure.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/cpu/thread_pool.h"

namespace quire::kernels {
namespace {

clockid_t clock_id = CLOCK_MONOTONIC;

double Now() {
  timespec now{};
  clock_gettime(clock_id, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Seconds(const std::function<void()>& run) {
  const double start = Now();
  run();
  return Now() - start;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void CountCpuTime() { clock_id = CLOCK_PROCESS_CPUTIME_ID; }

void Measure(std::vector<Variant>& variants, int repeats) {
  for (Variant& variant : variants) variant.run();
  for (int i = 0; i < repeats; ++i) {
    for (Variant& variant : variants) variant.seconds.push_back(Seconds(variant.run));
  }
}

void Print(const std::vector<Variant>& variants, double bandwidth) {
  std::printf("%-44s %10s %10s %9s %9s %8s\n", "case", "median us", "best us", "GB/s", "GFLOP/s",
              "of read");
  for (const Variant& variant : variants) {
    const double median = Median(variant.seconds);
    const double best = *std::min_element(variant.seconds.begin(), variant.seconds.end());
    std::printf("%-44s %10.1f %10.1f %9.1f %9.0f %7.0f%%\n", variant.name.c_str(), median * 1e6,
                best * 1e6, variant.bytes / median / 1e9, variant.flops / median / 1e9,
                variant.bytes / median / bandwidth * 100);
  }
  std::printf("\n");
}

double ReadBandwidth(int threads, int64_t bytes, int repeats) {
  const DeviceBuffer buffer = *cpu::AllocateHuge(bytes);
  std::memset(buffer.data(), 1, static_cast<size_t>(bytes));
  cpu::ThreadPool pool(threads);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  std::vector<double> seconds;
  constexpr int64_t kPiece = 1 << 20;
  for (int i = 0; i < repeats; ++i) {
    seconds.push_back(Seconds([&] {
      pool.ParallelFor(bytes / kPiece, [&](int64_t item, int thread) {
        const auto* p = reinterpret_cast<const uint64_t*>(buffer.data()) + item * (kPiece / 8);
        uint64_t a = 0, b = 0, c = 0, d = 0;
        for (int64_t k = 0; k < kPiece / 8; k += 4) {
          a += p[k];
          b += p[k + 1];
          c += p[k + 2];
          d += p[k + 3];
        }
        sums[static_cast<size_t>(thread) * 8] += a + b + c + d;
      });
    }));
  }
  QUIRE_CHECK(sums[0] != 1);
  return static_cast<double>(bytes) / Median(seconds);
}

}  // namespace quire::kernels
