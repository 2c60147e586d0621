#pragma once

// The memory of an emulated device: which ranges are its own, and which addresses are the host's.

#include <cstdint>
#include <map>
#include <span>

namespace quire::kernels::cuda::emulator {

// A range of memory, of the host or of the device.
struct MemoryRange {
  const char* data = nullptr;
  int64_t bytes = 0;

  const char* end() const { return data + bytes; }
  bool Overlaps(const MemoryRange& other) const {
    return bytes > 0 && other.bytes > 0 && data < other.end() && other.data < end();
  }
};

class DeviceMemory {
 public:
  // From here on, only work of the device may touch the range. AddressSanitizer reports host code
  // that does, unless the range is `sparse`: one so large that it must not be touched as a whole.
  void Add(void* data, int64_t bytes, bool sparse);
  void Remove(void* data);

  // True when all of these bytes are in one allocation; of no bytes, the end of one is in it, too.
  bool Has(const void* data, int64_t bytes = 0) const;

  // While one lives, the device works and may touch its memory.
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
};

// Returns the first word of a kernel's parameters that is an address of host memory, and nullptr if
// there is none. A GPU could not follow it. Parameters have no types here: a word counts as an
// address when memory is mapped there. Finds nothing unless the padding is cleared
// (clear_padding.h).
const void* HostAddressIn(std::span<const std::byte> params, const DeviceMemory& memory);

// True when a word of a kernel's parameters is an address within `range`.
bool HasAddressIn(std::span<const std::byte> params, const MemoryRange& range);

}  // namespace quire::kernels::cuda::emulator
