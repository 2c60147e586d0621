#pragma once

// The enqueued work of an emulated device. The work runs as late as CUDA allows: when the host
// waits for it. Host code may read a result too early, or may change or free memory that the work
// still needs. On a GPU such an error may stay unnoticed. Here it fails in every run.
//
// A launch with overlaps_previous runs as early as CUDA allows: its first blocks run up to
// GridDependencyWait() before the kernel or GEMM just before it runs. CUDA starts these blocks once
// all blocks of that kernel have called GridDependencyLaunch() or have ended. By then nothing that
// the kernel wrote need be visible, so here nothing is. The queue is stricter than CUDA in one
// point: what such a block writes before its wait, all of the kernel before it sees. Copies, fills
// and marks are never overlapped.

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/grid.h"
#include "kernels/cuda/emulator/poison.h"

namespace quire::kernels::cuda::emulator {

// A copy, a fill, a kernel, a GEMM or a mark, with all its parameters.
class Command {
 public:
  virtual ~Command() = default;

  virtual absl::Status Run() const = 0;
  // True for a kernel and for a GEMM. The next command may run ahead of them.
  virtual bool may_be_overlapped() const { return false; }
  // Runs what may run before the command before this one. Returns the grid, whose Run() takes the
  // place of Run() here, or null if nothing may run.
  virtual absl::StatusOr<std::unique_ptr<Grid>> RunAhead() const { return nullptr; }
  virtual bool Uses(const MemoryRange& memory) const = 0;
  // Returns false if memory of the device that the command uses was freed. A kernel looks for such
  // memory when it runs.
  virtual bool HasMemory() const { return true; }
  // The host memory that the command reads, and the host memory that it writes. An empty range
  // means that there is none.
  virtual MemoryRange host_source() const { return {}; }
  virtual MemoryRange host_target() const { return {}; }
};

using CommandList = std::vector<std::shared_ptr<const Command>>;

class WorkQueue {
 public:
  explicit WorkQueue(Poison poison) : poison_(poison) {}
  ~WorkQueue();  // the commands that have not run never run
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Enqueues a command. Until the command has run, the host must not change the command's source
  // and must not touch its target. The target holds poison, unless an earlier command still reads
  // it.
  void Push(std::shared_ptr<const Command> command);
  // Enqueues the commands of a recording. The recording must exist until they have run.
  void PushAll(const std::shared_ptr<const CommandList>& recording);

  // Runs the commands in order, up to `last`. If `last` is null, runs all. If `last` has run
  // before, runs none. Returns the first fault. No command runs after a fault.
  absl::Status Run(const Command* last);
  // Called before `memory` is freed. If a command that has not run uses `memory`, the next Run()
  // fails.
  void WillBeFreed(const MemoryRange& memory);

 private:
  struct Entry {
    std::shared_ptr<const Command> command;
    std::weak_ptr<const CommandList> recording;
    bool is_recorded = false;
    // Copies of the host source and the host target, made when the command was enqueued. Source and
    // target must still equal the copies when the command runs; an empty copy is not compared.
    // `source` is empty if an earlier command writes the source. `target` is empty if an earlier
    // command reads the target, and is cleared when an earlier command writes it.
    std::vector<char> source, target;
  };

  void Push(Entry entry);
  // Runs the first entry. `next` runs after it, or is null.
  absl::Status RunFirst(const Command* next);
  // Lets the host touch the command's target again.
  static void Release(const Entry& entry);

  const Poison poison_;
  std::deque<Entry> entries_;
  std::unique_ptr<Grid> ahead_;  // the part of the first entry that has run ahead, or null
  absl::Status fault_;           // a fault found before Run()
};

}  // namespace quire::kernels::cuda::emulator
