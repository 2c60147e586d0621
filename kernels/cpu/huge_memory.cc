#include "kernels/cpu/huge_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "kernels/cpu/cgroup.h"

namespace quire::kernels::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

using base::RoundUp;

// Returns the MemAvailable of /proc/meminfo in bytes; 0 when it cannot be read. The line has the
// form "MemAvailable:   123 kB".
int64_t MachineAvailable() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t value = 0;
  while (meminfo >> key >> value >> unit) {
    if (key == "MemAvailable:") return value * 1024;
  }
  return 0;
}

}  // namespace

absl::StatusOr<DeviceBuffer> AllocateHuge(int64_t bytes) {
  if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() / 2) {
    return absl::InvalidArgumentError(absl::StrCat("allocation: want a size, got ", bytes));
  }
  // For small buffers huge pages would waste more than they gain.
  if (bytes < kHugePage) {
    const auto size = static_cast<size_t>(RoundUp(std::max<int64_t>(bytes, 1), 64));
    void* data = std::aligned_alloc(64, size);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    std::memset(data, 0, size);
    return DeviceBuffer(data, bytes, [](void* p) { std::free(p); });
  }
  // Maps one huge page more than needed, so that the buffer can begin on a huge page's border.
  const auto mapped = static_cast<size_t>(RoundUp(bytes, kHugePage) + kHugePage);
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  }
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = RoundUp(begin, kHugePage);
  void* data = reinterpret_cast<void*>(aligned);
  // If Linux ignores this advice, the memory works, but is slower.
  (void)madvise(data, mapped - (aligned - begin), MADV_HUGEPAGE);
  return DeviceBuffer(data, bytes, [base, mapped](void*) { munmap(base, mapped); });
}

int64_t AvailableMemory() {
  const int64_t machine = MachineAvailable();
  const int64_t group = CgroupAvailableMemory();
  if (machine == 0 || group == 0) return std::max(machine, group);
  return std::min(machine, group);
}

}  // namespace quire::kernels::cpu
