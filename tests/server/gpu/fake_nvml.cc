// A library with the functions of NVML that tests open instead of the driver's. Its GPU is that of
// PCI bus id 0000:17:00.0. Tests set the variables through dlsym.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "server/gpu/nvml.h"

using Nvml = quire::server::Nvml;

extern "C" {

std::atomic<int> fake_nvml_xids = 0;        // Xid 79 errors that nobody has taken
std::atomic<bool> fake_nvml_hangs = false;  // reading the memory does not return
std::atomic<int> fake_nvml_users = 0;       // nvmlInit minus nvmlShutdown

constexpr int kNotSupported = 3, kNotFound = 6;
Nvml::Device const kGpu = reinterpret_cast<Nvml::Device>(0x17);
Nvml::EventSet const kEvents = reinterpret_cast<Nvml::EventSet>(0x18);

int nvmlInit_v2() {
  ++fake_nvml_users;
  return Nvml::kSuccess;
}
int nvmlShutdown() {
  --fake_nvml_users;
  return Nvml::kSuccess;
}
const char* nvmlErrorString(int error) {
  return error == kNotFound ? "Not Found" : "Unknown Error";
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, Nvml::Device* device) {
  if (std::strcmp(pci_bus_id, "0000:17:00.0") != 0) return kNotFound;
  *device = kGpu;
  return Nvml::kSuccess;
}
int nvmlDeviceGetMemoryInfo(Nvml::Device, Nvml::Memory* memory) {
  while (fake_nvml_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  *memory = {.total = 80ull << 30, .free = 20ull << 30, .used = 60ull << 30};
  return Nvml::kSuccess;
}
int nvmlDeviceGetUtilizationRates(Nvml::Device, Nvml::Utilization* rates) {
  *rates = {.gpu = 97, .memory = 81};
  return Nvml::kSuccess;
}
int nvmlDeviceGetClockInfo(Nvml::Device, int clock, unsigned* mhz) {
  *mhz = clock == Nvml::kSmClock ? 1755 : 2619;
  return Nvml::kSuccess;
}
int nvmlDeviceGetTemperature(Nvml::Device, int, unsigned* celsius) {
  *celsius = 61;
  return Nvml::kSuccess;
}
int nvmlDeviceGetPowerUsage(Nvml::Device, unsigned*) { return kNotSupported; }
int nvmlDeviceGetTotalEccErrors(Nvml::Device, int kind, int, unsigned long long* count) {
  *count = kind == Nvml::kCorrected ? 5 : 2;
  return Nvml::kSuccess;
}
int nvmlEventSetCreate(Nvml::EventSet* set) {
  *set = kEvents;
  return Nvml::kSuccess;
}
int nvmlEventSetFree(Nvml::EventSet) { return Nvml::kSuccess; }
int nvmlDeviceRegisterEvents(Nvml::Device, unsigned long long, Nvml::EventSet) {
  return Nvml::kSuccess;
}
int nvmlEventSetWait_v2(Nvml::EventSet, Nvml::EventData* data, unsigned timeout_ms) {
  if (fake_nvml_xids == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
    return Nvml::kTimeout;
  }
  --fake_nvml_xids;
  *data = {.device = kGpu, .type = Nvml::kXidEvent, .data = 79};
  return Nvml::kSuccess;
}

}  // extern "C"
