#include "kernels/cuda/emulator/async_copy.h"

#include <cstring>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

void CopyQueue::WaitFor(int in_flight) {
  const int64_t first_in_flight = num_committed_ - in_flight;
  size_t done = 0;
  for (; done < copies_.size() && copies_[done].group < first_in_flight; ++done) {
    const Copy& copy = copies_[done];
    auto* target = static_cast<unsigned char*>(copy.target);
    std::memcpy(target, copy.is_early ? copy.early.data() : copy.source, copy.source_bytes);
    std::memset(target + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(done));
}

void CopyQueue::ReadSources() {
  for (Copy& copy : copies_) {
    if (copy.is_early) continue;
    std::memcpy(copy.early.data(), copy.source, copy.source_bytes);
    copy.is_early = true;
  }
}

void IssueCopy(void* target, const void* source, int bytes, int source_bytes, Where where) {
  CheckShared(target, bytes, bytes, "the target of cp.async", where);
  CheckAligned(source, bytes, "the source of cp.async", where);
  CountAccess(Access::kCopyTarget, target, bytes, where);
  CountAccess(Access::kCopySource, source, source_bytes, where);
  ThreadBlock& block = ThreadBlock::current();
  std::memset(target, static_cast<int>(block.options().poison), bytes);
  block.thread().copies.Issue(target, source, bytes, source_bytes);
}

void CommitCopies() { ThreadBlock::current().thread().copies.Commit(); }

void WaitCopies(int groups_in_flight) {
  ThreadBlock::current().thread().copies.WaitFor(groups_in_flight);
}

}  // namespace quire::kernels::cuda::emulator
