#pragma once

// The functions of NVML that Quire calls, opened at run time, because only hosts with NVIDIA's
// driver have the library. The declarations are those of nvml.h (docs.nvidia.com/deploy/nvml-api),
// whose binary interface is stable.

#include <string>

#include "absl/status/statusor.h"

namespace quire::server {

struct Nvml {
  struct DeviceHandle;
  struct EventSetHandle;
  using Device = DeviceHandle*;
  using EventSet = EventSetHandle*;
  struct Memory {
    unsigned long long total, free, used;  // bytes
  };
  struct Utilization {
    unsigned gpu, memory;  // percent of the last sample period
  };
  struct EventData {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
  };

  static constexpr int kSuccess = 0;
  static constexpr int kTimeout = 10;
  static constexpr int kSmClock = 1, kMemoryClock = 2;
  static constexpr int kGpuTemperature = 0;
  static constexpr int kCorrected = 0, kUncorrected = 1;
  static constexpr int kSinceDriverStart = 0;  // "volatile" counts
  static constexpr unsigned long long kXidEvent = 0x8;

  int (*init)();
  int (*shutdown)();
  const char* (*error_string)(int error);
  int (*device_by_pci_bus_id)(const char* pci_bus_id, Device* device);
  int (*memory_info)(Device device, Memory* memory);
  int (*utilization_rates)(Device device, Utilization* rates);
  int (*clock_info)(Device device, int clock, unsigned* mhz);
  int (*temperature)(Device device, int sensor, unsigned* celsius);
  int (*power_usage)(Device device, unsigned* milliwatts);
  int (*total_ecc_errors)(Device device, int kind, int since, unsigned long long* count);
  int (*event_set_create)(EventSet* set);
  int (*event_set_free)(EventSet set);
  int (*register_events)(Device device, unsigned long long types, EventSet set);
  int (*event_set_wait)(EventSet set, EventData* data, unsigned timeout_ms);
};

// Opens `library`, which stays open until the process ends. Returns NotFound if it cannot be opened
// or lacks a function.
absl::StatusOr<Nvml> OpenNvml(const std::string& library);

}  // namespace quire::server
