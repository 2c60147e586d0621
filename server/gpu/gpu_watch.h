#pragma once

// Watches a GPU through NVML: memory, load, clocks, temperature, power, ECC errors and Xid errors.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::server {

// A value is unset if the GPU or its driver does not tell it.
struct GpuReadings {
  std::optional<int64_t> memory_used_bytes, memory_total_bytes;
  std::optional<double> busy_ratio;         // part of the time in which a kernel ran
  std::optional<double> memory_busy_ratio;  // part of the time in which memory was accessed
  std::optional<int64_t> sm_clock_hz, memory_clock_hz;
  std::optional<int64_t> temperature_celsius;
  std::optional<double> power_watts;
  std::optional<int64_t> corrected_ecc_errors, uncorrected_ecc_errors;  // since the driver started
  // Errors that the driver reported since the watch began, and the number of the last one
  // (docs.nvidia.com/deploy/xid-errors). Unset if the driver does not report them.
  std::optional<int64_t> xid_errors, last_xid;
  absl::Duration age;  // since these values were read; it grows when the driver hangs
};

// Reads the GPU on a thread of its own, because a driver may hang. Thread-safe.
class GpuWatch {
 public:
  // Returns NotFound without NVML, and Unavailable if NVML does not know the GPU. `library` is the
  // file of NVML.
  static absl::StatusOr<std::unique_ptr<GpuWatch>> Start(
      const std::string& pci_bus_id, absl::Duration period = absl::Seconds(2),
      const std::string& library = "libnvidia-ml.so.1");
  // Waits for the thread, but not longer than a second: a call that hangs in the driver is left to
  // the end of the process.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  GpuReadings readings() const;

 private:
  class Reader;  // what the thread uses; it outlives the watch if the thread hangs

  explicit GpuWatch(std::shared_ptr<Reader> reader);

  const std::shared_ptr<Reader> reader_;
  std::thread thread_;
};

}  // namespace quire::server
