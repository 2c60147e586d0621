#pragma once

// Counts the memory of values. A rendering and its values belong to one thread, so the count of a
// thread grows by what its rendering holds.

#include <cstdint>

namespace quire::jinja {

class ValueMemory {
 public:
  // The bytes that values of this thread hold.
  static int64_t OfThread() { return bytes_; }
  // Adds to the count. A negative number takes away.
  static void Add(int64_t bytes) { bytes_ += bytes; }

 private:
  static inline thread_local constinit int64_t bytes_ = 0;
};

// A member that counts `kBytes` while its owner lives.
template <int64_t kBytes>
class Counted {
 public:
  Counted() noexcept { ValueMemory::Add(kBytes); }
  Counted(const Counted&) noexcept { ValueMemory::Add(kBytes); }
  Counted& operator=(const Counted&) noexcept = default;
  ~Counted() { ValueMemory::Add(-kBytes); }
};

}  // namespace quire::jinja
