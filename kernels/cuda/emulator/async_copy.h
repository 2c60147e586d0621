#pragma once

// The cp.async copies of one thread. They are issued, gathered into groups, and carried out only
// when their group is waited for.

#include <cstdint>
#include <vector>

namespace quire::kernels::cuda::emulator {

class CopyQueue {
 public:
  struct Copy {
    void* target;
    const void* source;
    int bytes;
    int source_bytes;  // the rest is filled with zeros
    int64_t group;
  };

  void Issue(void* target, const void* source, int bytes, int source_bytes) {
    copies_.push_back({target, source, bytes, source_bytes, num_committed_});
  }
  void Commit() { ++num_committed_; }
  // Carries out all copies except those of the youngest `in_flight` groups and of the open group.
  void WaitFor(int in_flight);
  bool empty() const { return copies_.empty(); }

 private:
  std::vector<Copy> copies_;   // oldest first
  int64_t num_committed_ = 0;  // also the number of the open group
};

}  // namespace quire::kernels::cuda::emulator
