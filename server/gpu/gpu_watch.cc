#include "server/gpu/gpu_watch.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/gpu/nvml.h"

namespace quire::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);  // with a thread that must end
constexpr absl::Duration kEventWait = absl::Milliseconds(100);

}  // namespace

class GpuWatch::Reader {
 public:
  Reader(const Nvml& nvml, Nvml::Device device, absl::Duration period)
      : nvml_(nvml), device_(device), period_(period) {}

  // Asks for events. Called before Run.
  void Begin() {
    if (nvml_.event_set_create(&events_) != Nvml::kSuccess) return;
    if (nvml_.register_events(device_, Nvml::kXidEvent, events_) == Nvml::kSuccess) {
      xid_errors_ = 0;
    } else {
      DropEvents();
    }
  }

  void Run() {
    do {
      Read();
    } while (Rest());
    if (events_ != nullptr) DropEvents();
    nvml_.shutdown();
    base::MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }

  // Returns false if the thread hangs.
  bool Stop() {
    const absl::Time end = base::SteadyNow() + kPatience;
    base::MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    while (!ended_ && base::SteadyNow() < end) {
      changed_.WaitFor(mu_, absl::ToChronoNanoseconds(end - base::SteadyNow()));
    }
    return ended_;
  }

  GpuReadings readings() const {
    base::MutexLock lock(mu_);
    GpuReadings readings = readings_;
    readings.age = base::SteadyNow() - read_at_;
    return readings;
  }

 private:
  // Returns the value that `get` writes, if it returns kSuccess.
  template <typename Value, typename Get>
  static std::optional<Value> ValueOf(Get get) {
    Value value = {};
    if (get(&value) != Nvml::kSuccess) return std::nullopt;
    return value;
  }

  void Read() {
    GpuReadings now;
    if (const auto memory =
            ValueOf<Nvml::Memory>([&](auto* to) { return nvml_.memory_info(device_, to); })) {
      now.memory_used_bytes = static_cast<int64_t>(memory->used);
      now.memory_total_bytes = static_cast<int64_t>(memory->total);
    }
    if (const auto busy = ValueOf<Nvml::Utilization>(
            [&](auto* to) { return nvml_.utilization_rates(device_, to); })) {
      now.busy_ratio = busy->gpu / 100.0;
      now.memory_busy_ratio = busy->memory / 100.0;
    }
    const auto hertz = [this](int clock) -> std::optional<int64_t> {
      const auto mhz =
          ValueOf<unsigned>([&](auto* to) { return nvml_.clock_info(device_, clock, to); });
      if (!mhz) return std::nullopt;
      return int64_t{*mhz} * 1'000'000;
    };
    now.sm_clock_hz = hertz(Nvml::kSmClock);
    now.memory_clock_hz = hertz(Nvml::kMemoryClock);
    if (const auto celsius = ValueOf<unsigned>(
            [&](auto* to) { return nvml_.temperature(device_, Nvml::kGpuTemperature, to); })) {
      now.temperature_celsius = *celsius;
    }
    if (const auto milliwatts =
            ValueOf<unsigned>([&](auto* to) { return nvml_.power_usage(device_, to); })) {
      now.power_watts = *milliwatts / 1000.0;
    }
    const auto ecc_errors = [this](int kind) -> std::optional<int64_t> {
      const auto count = ValueOf<unsigned long long>([&](auto* to) {
        return nvml_.total_ecc_errors(device_, kind, Nvml::kSinceDriverStart, to);
      });
      if (!count) return std::nullopt;
      return static_cast<int64_t>(*count);
    };
    now.corrected_ecc_errors = ecc_errors(Nvml::kCorrected);
    now.uncorrected_ecc_errors = ecc_errors(Nvml::kUncorrected);
    now.xid_errors = xid_errors_;
    now.last_xid = last_xid_;
    base::MutexLock lock(mu_);
    readings_ = now;
    read_at_ = base::SteadyNow();
  }

  // Waits for one period or an error. Returns false when the thread must end.
  bool Rest() {
    const absl::Time end = base::SteadyNow() + period_;
    for (;;) {
      const absl::Duration left = end - base::SteadyNow();
      {
        base::MutexLock lock(mu_);
        if (!stopping_ && events_ == nullptr && left > absl::ZeroDuration()) {
          changed_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
        }
        if (stopping_) return false;
      }
      if (left <= absl::ZeroDuration()) return true;
      if (events_ != nullptr && TakeEvent(std::min(left, kEventWait))) return true;
    }
  }

  // Waits for an error of the GPU. Returns true if there is one.
  bool TakeEvent(absl::Duration timeout) {
    Nvml::EventData event = {};
    const int result = nvml_.event_set_wait(
        events_, &event, static_cast<unsigned>(absl::ToInt64Milliseconds(timeout)));
    if (result == Nvml::kTimeout) return false;
    if (result != Nvml::kSuccess) {
      DropEvents();
      return false;
    }
    if ((event.type & Nvml::kXidEvent) == 0) return false;
    const auto xid = static_cast<int64_t>(event.data);
    xid_errors_ = xid_errors_.value_or(0) + 1;
    // A GPU may repeat one error for as long as it runs.
    if (std::exchange(last_xid_, xid) != xid) {
      base::Log(base::LogLevel::kError, "gpu",
                "the driver reports an error; see docs.nvidia.com/deploy/xid-errors",
                {{"xid", xid}});
    }
    return true;
  }

  void DropEvents() {
    nvml_.event_set_free(events_);
    events_ = nullptr;
  }

  const Nvml nvml_;
  const Nvml::Device device_;
  const absl::Duration period_;

  // Used by the thread only.
  Nvml::EventSet events_ = nullptr;
  std::optional<int64_t> xid_errors_, last_xid_;

  mutable base::Mutex mu_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  GpuReadings readings_ ABSL_GUARDED_BY(mu_);
  absl::Time read_at_ ABSL_GUARDED_BY(mu_) = base::SteadyNow();
};

absl::StatusOr<std::unique_ptr<GpuWatch>> GpuWatch::Start(const std::string& pci_bus_id,
                                                          absl::Duration period,
                                                          const std::string& library) {
  ASSIGN_OR_RETURN(const Nvml nvml, OpenNvml(library));
  const auto check = [&](int result, const char* what) -> absl::Status {
    if (result == Nvml::kSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("nvml: ", what, ": ", nvml.error_string(result)));
  };
  RETURN_IF_ERROR(check(nvml.init(), "init"));
  Nvml::Device device = nullptr;
  if (const absl::Status found = check(nvml.device_by_pci_bus_id(pci_bus_id.c_str(), &device),
                                       "finding the GPU by its PCI bus id");
      !found.ok()) {
    nvml.shutdown();
    return found;
  }
  auto reader = std::make_shared<Reader>(nvml, device, period);
  reader->Begin();
  return std::unique_ptr<GpuWatch>(new GpuWatch(std::move(reader)));
}

GpuWatch::GpuWatch(std::shared_ptr<Reader> reader)
    : reader_(std::move(reader)), thread_([reader = reader_] { reader->Run(); }) {}

GpuWatch::~GpuWatch() {
  if (reader_->Stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

GpuReadings GpuWatch::readings() const { return reader_->readings(); }

}  // namespace quire::server
