#include "kernels/cuda/emulator/shared_memory.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace quire::kernels::cuda::emulator {

namespace {

unsigned char* AllocateExactly(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  // The size is not rounded up, so that AddressSanitizer knows the exact end of the memory.
  QUIRE_CHECK(posix_memalign(&memory, SharedMemoryImage::kAlignment, bytes) == 0);
  return static_cast<unsigned char*>(memory);
}

}  // namespace

void SharedMemoryImage::Free::operator()(unsigned char* memory) const { std::free(memory); }

SharedMemoryImage::SharedMemoryImage(int64_t bytes)
    : bytes_(bytes), memory_(AllocateExactly(bytes)), proxy_(new unsigned char[bytes]) {}

bool SharedMemoryImage::Contains(const void* address, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory_.get());
  const auto first = reinterpret_cast<uintptr_t>(address);
  return first >= begin && first + bytes <= begin + bytes_;
}

void SharedMemoryImage::Fill(Poison poison) {
  if (bytes_ == 0) return;
  std::memset(memory_.get(), static_cast<int>(poison), bytes_);
  std::memset(proxy_.get(), static_cast<int>(poison), bytes_);
  fenced_ = false;
}

void SharedMemoryImage::WriteThroughProxy(int64_t offset, const void* source, int64_t bytes) {
  std::memcpy(memory_.get() + offset, source, bytes);
  std::memcpy(proxy_.get() + offset, source, bytes);
}

bool SharedMemoryImage::ProxyIsUpToDate(int64_t offset, int64_t bytes) {
  if (fenced_) {
    fenced_ = false;
    std::memcpy(proxy_.get(), memory_.get(), bytes_);
  }
  return std::memcmp(proxy_.get() + offset, memory_.get() + offset, bytes) == 0;
}

}  // namespace quire::kernels::cuda::emulator
