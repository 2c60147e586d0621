#include "kernels/cuda/emulator/device_memory.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <unistd.h>

#include <sys/mman.h>

#include "absl/strings/str_format.h"

#include "kernels/cuda/device/clear_padding.h"
#include "kernels/cuda/emulator/sanitizers.h"

namespace quire::kernels::cuda::emulator {
namespace {

// Returns the first aligned word of `params` for which `is_it` returns true, or nullptr if there is
// none.
template <typename Predicate>
const void* FindWord(std::span<const std::byte> params, const Predicate& is_it) {
  for (size_t at = 0; at + sizeof(void*) <= params.size(); at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, params.data() + at, sizeof(word));
    if (is_it(word)) return word;
  }
  return nullptr;
}

bool IsMapped(const void* address) {
  static const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(address) & ~(page_bytes - 1);
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(page), page_bytes, &resident) == 0;
}

}  // namespace

bool IsInside(const std::map<const char*, int64_t>& ranges, const MemoryRange& range) {
  const auto after = ranges.upper_bound(range.data);
  if (after == ranges.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return range.data - begin <= bytes - range.bytes;
}

void DeviceMemory::Add(void* data, int64_t bytes, bool sparse) {
  std::erase_if(removed_, [&](const auto& range) {
    return MemoryRange{range.first, range.second}.Overlaps({static_cast<char*>(data), bytes});
  });
  allocations_[static_cast<const char*>(data)] = {.bytes = bytes, .sparse = sparse};
  if (!sparse) AsanPoison(data, static_cast<size_t>(bytes));
}

void DeviceMemory::Remove(void* data) {
  const auto it = allocations_.find(static_cast<const char*>(data));
  if (!it->second.sparse) AsanUnpoison(data, static_cast<size_t>(it->second.bytes));
  removed_[it->first] = it->second.bytes;
  allocations_.erase(it);
}

bool DeviceMemory::Has(const void* data, int64_t bytes) const {
  const auto* const first = static_cast<const char*>(data);
  const auto after = allocations_.upper_bound(first);
  if (after == allocations_.begin()) return false;
  const auto& [begin, allocation] = *std::prev(after);
  return first - begin <= allocation.bytes - bytes;
}

bool DeviceMemory::WasRemoved(const void* data) const {
  return IsInside(removed_, {static_cast<const char*>(data), 1});
}

DeviceMemory::Work::Work(const DeviceMemory& memory) : memory_(memory) {
  for (const auto& [data, allocation] : memory_.allocations_) {
    if (!allocation.sparse) AsanUnpoison(data, static_cast<size_t>(allocation.bytes));
  }
}

DeviceMemory::Work::~Work() {
  for (const auto& [data, allocation] : memory_.allocations_) {
    if (!allocation.sparse) AsanPoison(data, static_cast<size_t>(allocation.bytes));
  }
}

absl::Status CheckAddresses(std::span<const std::byte> params, const DeviceMemory& memory) {
  // A word below this limit does not count as an address. It may be a number, a pair of small
  // numbers, or an address in the memory that a sanitizer keeps for itself.
  constexpr uintptr_t kLeastAddress = uintptr_t{1} << 45;
  if (!kClearsPadding) return absl::OkStatus();
  const void* const stray = FindWord(params, [&](const void* word) {
    return reinterpret_cast<uintptr_t>(word) >= kLeastAddress && !memory.Has(word) &&
           (memory.WasRemoved(word) || IsMapped(word));
  });
  if (stray == nullptr) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("a kernel's parameter points to %p, which is %s", stray,
                      memory.WasRemoved(stray) ? "memory of the device that was freed"
                                               : "not memory of the device"));
}

bool HasAddressIn(std::span<const std::byte> params, const MemoryRange& range) {
  const auto first = reinterpret_cast<uintptr_t>(range.data);
  return FindWord(params, [&](const void* word) {
           const auto address = reinterpret_cast<uintptr_t>(word);
           return address >= first && address - first < static_cast<uintptr_t>(range.bytes);
         }) != nullptr;
}

}  // namespace quire::kernels::cuda::emulator
