#include "engine/model/layers/step_recordings.h"

#include <utility>

#include "base/status_macros.h"

namespace quire::engine {

absl::Status StepRecordings::Run(kernels::Backend& backend, const std::vector<int64_t>& key,
                                 absl::FunctionRef<absl::Status()> enqueue) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return backend.Replay(*entries_.front().recording);
  }
  // The first launch of a kernel loads its code, and the first product of a shape looks for an
  // algorithm. They do so outside of a recording.
  RETURN_IF_ERROR(enqueue());
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Recording> recording, backend.Record(enqueue));
  if (entries_.size() == kMostRecordings) {  // the one dropped has run long ago
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key, .recording = std::move(recording)});
  by_key_[key] = entries_.begin();
  return absl::OkStatus();
}

}  // namespace quire::engine
