#pragma once

// The cp.async copies of one thread. A copy is issued, joins a group, and is carried out only when
// the thread waits for that group.

#include <array>
#include <cstdint>
#include <vector>

namespace quire::kernels::cuda::emulator {

class CopyQueue {
 public:
  struct Copy {
    void* target;
    const void* source;
    int bytes;
    int source_bytes;  // the other bytes of the target become zeros
    int64_t group;
    std::array<unsigned char, 16> early;  // the source's bytes, if it was read early
    bool is_early;
  };

  void Issue(void* target, const void* source, int bytes, int source_bytes) {
    copies_.push_back({target, source, bytes, source_bytes, num_committed_, {}, false});
  }
  void Commit() { ++num_committed_; }
  // Carries out all copies except those of the open group and of the `in_flight` youngest committed
  // groups.
  void WaitFor(int in_flight);
  // Reads the sources of all copies now, which is the earliest that a GPU may have read them.
  void ReadSources();
  bool empty() const { return copies_.empty(); }

 private:
  std::vector<Copy> copies_;   // oldest first
  int64_t num_committed_ = 0;  // also the number of the open group
};

}  // namespace quire::kernels::cuda::emulator
