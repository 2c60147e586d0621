#pragma once

// The shared memory of one block, and the asynchronous proxy's view of it.
//
// TMA and wgmma read shared memory through another path than threads do: they see a thread's writes
// only after fence.proxy.async. So there is a second image, which only the fence updates, and a
// read through the proxy compares the two.

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

  // Called before each block, which must not rely on the content.
  void Fill(Poison poison);

  void FenceAsyncProxy() { fenced_ = true; }
  // A write through the proxy, seen by both sides.
  void WriteThroughProxy(int64_t offset, const void* source, int64_t bytes);
  // True if the proxy sees the threads' writes there.
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
