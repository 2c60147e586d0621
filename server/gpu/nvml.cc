#include "server/gpu/nvml.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace quire::server {

absl::StatusOr<Nvml> OpenNvml(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("nvml: ", ::dlerror(),
                     "; install NVIDIA's driver, or start the container with its utilities "
                     "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)"));
  }
  Nvml nvml = {};
  const char* missing = nullptr;
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  find(nvml.init, "nvmlInit_v2");
  find(nvml.shutdown, "nvmlShutdown");
  find(nvml.error_string, "nvmlErrorString");
  find(nvml.device_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  find(nvml.memory_info, "nvmlDeviceGetMemoryInfo");
  find(nvml.utilization_rates, "nvmlDeviceGetUtilizationRates");
  find(nvml.clock_info, "nvmlDeviceGetClockInfo");
  find(nvml.temperature, "nvmlDeviceGetTemperature");
  find(nvml.power_usage, "nvmlDeviceGetPowerUsage");
  find(nvml.total_ecc_errors, "nvmlDeviceGetTotalEccErrors");
  find(nvml.event_set_create, "nvmlEventSetCreate");
  find(nvml.event_set_free, "nvmlEventSetFree");
  find(nvml.register_events, "nvmlDeviceRegisterEvents");
  find(nvml.event_set_wait, "nvmlEventSetWait_v2");
  if (missing != nullptr) {
    return absl::NotFoundError(
        absl::StrCat("nvml: ", library, " lacks ", missing, "; install a newer driver"));
  }
  return nvml;
}

}  // namespace quire::server
