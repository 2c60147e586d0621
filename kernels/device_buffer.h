#pragma once

// A DeviceBuffer owns memory of a backend and frees the memory on destruction.

#include <cstdint>
#include <functional>
#include <utility>

namespace quire::kernels {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // `free` is called once, with `data`, when the buffer is destroyed.
  DeviceBuffer(void* data, int64_t bytes, std::function<void(void*)> free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) free_(data_);
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  std::function<void(void*)> free_;
};

}  // namespace quire::kernels
