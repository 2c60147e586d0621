#include "kernels/cuda/emulator/warpgroup.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

Warpgroup& CurrentWarpgroup() {
  ThreadBlock& block = ThreadBlock::current();
  return block.warpgroup(block.thread().warp / (kWarpgroupSize / kWarpSize));
}

void MeetWarpgroup(const void* in, WarpgroupOperation operation, bool orders_memory, Where where) {
  const EmulatorsOwn own;
  ThreadBlock& block = ThreadBlock::current();
  Thread& self = block.thread();
  const int first = self.warp / (kWarpgroupSize / kWarpSize) * kWarpgroupSize;
  std::vector<Thread>& threads = block.threads();
  if (first + kWarpgroupSize > static_cast<int>(threads.size())) {
    Fault("wgmma in a block whose threads are no multiple of 128", where);
  }
  self.in = in;
  self.where = where;
  self.warpgroup_operation = operation;
  if (++CurrentWarpgroup().num_arrived < kWarpgroupSize) {
    block.Wait("the other threads of its warpgroup", where);
  } else {
    CurrentWarpgroup().num_arrived = 0;
    std::array<const void*, kWarpgroupSize> all_in;
    for (int i = 0; i < kWarpgroupSize; ++i) {
      const Thread& member = threads[first + i];
      if (member.warpgroup_operation != operation || !SameLine(member.where, where)) {
        Fault(absl::StrCat("threads of one warpgroup meet at different instructions, thread ",
                           first + i, " is at line ", member.where.line),
              where);
      }
      all_in[i] = member.in;
    }
    operation(all_in.data(), where);
    for (int i = 0; i < kWarpgroupSize; ++i) {
      if (orders_memory) TsanRelease(&threads[first + i].after_meeting);
      block.Wake(threads[first + i]);
    }
  }
  if (orders_memory) TsanAcquire(&self.after_meeting);
}

}  // namespace quire::kernels::cuda::emulator
