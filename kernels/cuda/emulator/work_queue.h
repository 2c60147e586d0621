#pragma once

// The enqueued work of an emulated device. It runs as late as CUDA allows: when somebody waits for
// it. So host code that reads a result too early, or gives up too early what the work needs, fails
// in every run, as it might on a GPU.

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/poison.h"

namespace quire::kernels::cuda::emulator {

// A copy, a kernel or a GEMM with all its parameters.
class Command {
 public:
  virtual ~Command() = default;

  virtual absl::Status Run() const = 0;
  virtual bool Uses(const MemoryRange& memory) const = 0;
  // The host memory that it reads or writes; empty: none.
  virtual MemoryRange host_source() const { return {}; }
  virtual MemoryRange host_target() const { return {}; }
};

using CommandList = std::vector<std::shared_ptr<const Command>>;

class WorkQueue {
 public:
  explicit WorkQueue(Poison poison) : poison_(poison) {}
  ~WorkQueue();  // what has not run never runs
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // From here until the command has run, the host must change nothing of its source, and must not
  // touch its target, which holds poison.
  void Push(std::shared_ptr<const Command> command);
  // Pushes the commands of a recording, which must live until they have run.
  void PushAll(const std::shared_ptr<const CommandList>& recording);

  // Runs all commands in order. Returns the first fault; the commands behind it never run.
  absl::Status Run();
  // Makes the next Run() fail when a command that has not run uses `memory`.
  void WillBeFreed(const MemoryRange& memory);

 private:
  struct Entry {
    std::shared_ptr<const Command> command;
    std::weak_ptr<const CommandList> recording;
    bool is_recorded = false;
    // The content of the source and of the target when the command was enqueued. Empty when a
    // command before it changes that content, or needs what the target holds.
    std::vector<char> source, target;
  };

  void Push(Entry entry);
  absl::Status Run(const Entry& entry);
  // Lets the host touch the target again.
  static void Release(const Entry& entry);

  const Poison poison_;
  std::deque<Entry> entries_;
  absl::Status fault_;  // found before Run()
};

}  // namespace quire::kernels::cuda::emulator
