#pragma once

// DeviceMemory keeps track of the memory of an emulated device. CheckAddresses finds addresses of
// other memory in the parameters of a kernel.

#include <cstdint>
#include <map>
#include <span>

#include "absl/status/status.h"

namespace quire::kernels::cuda::emulator {

// A range of host memory or of device memory.
struct MemoryRange {
  const char* data = nullptr;
  int64_t bytes = 0;

  const char* end() const { return data + bytes; }
  bool Overlaps(const MemoryRange& other) const {
    return bytes > 0 && other.bytes > 0 && data < other.end() && other.data < end();
  }
};

// Returns true if `range` is inside one of `ranges`, which has the bytes of each.
bool IsInside(const std::map<const char*, int64_t>& ranges, const MemoryRange& range);

class DeviceMemory {
 public:
  // Adds a range of device memory. From now on only the device's work may touch the range.
  // AddressSanitizer reports host code that touches it. A `sparse` range is too large to be guarded
  // in this way.
  void Add(void* data, int64_t bytes, bool sparse);
  // Removes a range before it is freed.
  void Remove(void* data);

  // Returns true if [data, data + bytes) is inside one allocation. If `bytes` is 0, the end address
  // of an allocation counts as inside.
  bool Has(const void* data, int64_t bytes = 0) const;
  // Returns true if `data` is in a range that was removed and whose place no other range has taken.
  bool WasRemoved(const void* data) const;

  // While a Work object exists, the device runs its work, and AddressSanitizer allows every access
  // to device memory.
  class Work {
   public:
    explicit Work(const DeviceMemory& memory);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    const DeviceMemory& memory_;
  };

 private:
  struct Allocation {
    int64_t bytes;
    bool sparse;
  };

  std::map<const char*, Allocation> allocations_;
  std::map<const char*, int64_t> removed_;  // the bytes of each
};

// Returns an error if a word of a kernel's parameters is an address of host memory, of another
// device's memory, or of memory that was freed. A GPU could not follow such an address. Parameters
// have no types here, so a word counts as an address if it is large enough, and if memory is mapped
// there or was freed there. Always returns OK in a build that does not clear padding
// (clear_padding.h).
absl::Status CheckAddresses(std::span<const std::byte> params, const DeviceMemory& memory);

// Returns true if a word of a kernel's parameters is an address within `range`.
bool HasAddressIn(std::span<const std::byte> params, const MemoryRange& range);

}  // namespace quire::kernels::cuda::emulator
