#include "kernels/cuda/emulator/work_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/emulator/sanitizers.h"

namespace quire::kernels::cuda::emulator {
namespace {

bool Holds(const MemoryRange& memory, const std::vector<char>& content) {
  return content.empty() || std::memcmp(memory.data, content.data(), content.size()) == 0;
}

}  // namespace

WorkQueue::~WorkQueue() {
  for (const Entry& entry : entries_) Release(entry);
}

void WorkQueue::Push(std::shared_ptr<const Command> command) {
  Entry entry;
  entry.command = std::move(command);
  Push(std::move(entry));
}

void WorkQueue::PushAll(const std::shared_ptr<const CommandList>& recording) {
  for (const auto& command : *recording) {
    Entry entry;
    entry.command = command;
    entry.recording = recording;
    entry.is_recorded = true;
    Push(std::move(entry));
  }
}

void WorkQueue::Push(Entry entry) {
  const MemoryRange source = entry.command->host_source(), target = entry.command->host_target();
  bool source_will_change = false, target_is_needed = false;
  for (const Entry& earlier : entries_) {
    source_will_change |= earlier.command->host_target().Overlaps(source);
    target_is_needed |= earlier.command->host_source().Overlaps(target);
  }
  if (!source_will_change) entry.source.assign(source.data, source.end());
  if (!target_is_needed && target.bytes > 0) {
    // An earlier command with the same target may have made the target inaccessible with
    // AsanPoison.
    AsanUnpoison(target.data, static_cast<size_t>(target.bytes));
    std::memset(const_cast<char*>(target.data), static_cast<int>(poison_),
                static_cast<size_t>(target.bytes));
    entry.target.assign(target.data, target.end());
    AsanPoison(target.data, static_cast<size_t>(target.bytes));
  }
  entries_.push_back(std::move(entry));
}

void WorkQueue::Release(const Entry& entry) {
  const MemoryRange target = entry.command->host_target();
  if (target.bytes > 0) AsanUnpoison(target.data, static_cast<size_t>(target.bytes));
}

absl::Status WorkQueue::Run(const Command* last) {
  absl::Status status = std::exchange(fault_, absl::OkStatus());
  size_t num_commands = entries_.size();
  if (last != nullptr) {
    const auto at =
        std::ranges::find(entries_, last, [](const Entry& e) { return e.command.get(); });
    num_commands = at == entries_.end() ? 0 : static_cast<size_t>(at - entries_.begin()) + 1;
  }
  if (!status.ok()) num_commands = entries_.size();
  for (; num_commands > 0; --num_commands) {
    Release(entries_.front());
    if (status.ok()) status = RunFirst(num_commands > 1 ? entries_[1].command.get() : nullptr);
    if (!status.ok()) num_commands = entries_.size();
    entries_.pop_front();
  }
  ahead_.reset();
  return status;
}

absl::Status WorkQueue::RunFirst(const Command* next) {
  const Entry& entry = entries_.front();
  if (entry.is_recorded && entry.recording.expired()) {
    return absl::InternalError("a recording was destroyed before its replay had run");
  }
  const MemoryRange source = entry.command->host_source(), target = entry.command->host_target();
  if (!Holds(source, entry.source)) {
    return absl::InternalError("the source of a copy was changed before the copy had run");
  }
  if (!Holds(target, entry.target)) {
    return absl::InternalError("the target of a copy was changed before the copy had run");
  }
  for (Entry& later : entries_) {
    if (&later != &entry && later.command->host_target().Overlaps(target)) later.target.clear();
  }
  const std::unique_ptr<Grid> grid = std::move(ahead_);
  if (next != nullptr && entry.command->may_be_overlapped()) {
    ASSIGN_OR_RETURN(ahead_, next->RunAhead());
  }
  return grid != nullptr ? grid->Run() : entry.command->Run();
}

void WorkQueue::WillBeFreed(const MemoryRange& memory) {
  for (const Entry& entry : entries_) {
    if (entry.command->Uses(memory)) {
      fault_.Update(absl::InternalError("memory was freed before work that uses it had run"));
    }
  }
}

}  // namespace quire::kernels::cuda::emulator
