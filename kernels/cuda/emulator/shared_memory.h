#pragma once

// The shared memory of one block, as its threads see it and as the asynchronous proxy sees it.
//
// TMA and wgmma do not access shared memory as threads do. They use the asynchronous proxy, which
// sees a thread's writes only after fence.proxy.async. So the class keeps a second image of the
// memory for the proxy. A thread's writes reach this image only through the fence. A read through
// the proxy compares the two images.

#include <cstdint>
#include <memory>

#include "kernels/cuda/emulator/poison.h"

namespace quire::kernels::cuda::emulator {

class SharedMemoryImage {
 public:
  static constexpr int64_t kAlignment = 1024;

  explicit SharedMemoryImage(int64_t bytes);

  unsigned char* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }
  bool Contains(const void* address, int64_t bytes) const;

  // Fills the memory with poison. Called before each block, because a block must not rely on the
  // content.
  void Fill(Poison poison);

  void FenceAsyncProxy() { fenced_ = true; }
  // Writes through the proxy. Both the threads and the proxy see the write.
  void WriteThroughProxy(int64_t offset, const void* source, int64_t bytes);
  // Returns true if the proxy and the threads see the same content in this range.
  bool ProxyIsUpToDate(int64_t offset, int64_t bytes);

 private:
  struct Free {
    void operator()(unsigned char* memory) const;
  };

  int64_t bytes_;
  std::unique_ptr<unsigned char[], Free> memory_;
  std::unique_ptr<unsigned char[]> proxy_;
  bool fenced_ = false;
};

}  // namespace quire::kernels::cuda::emulator
