#pragma once

// The recordings of a model's steps.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/backend.h"

namespace quire::engine {

// Runs and records the ops of steps, and replays them later, which saves the host the time to
// enqueue each op. Keeps the kMostRecordings most recently used recordings.
class StepRecordings {
 public:
  // Replays the recording of `key`. If there is none, calls `enqueue` to run what it enqueues, and
  // once more to record it for later steps.
  absl::Status Run(kernels::Backend& backend, const std::vector<int64_t>& key,
                   absl::FunctionRef<absl::Status()> enqueue);

  // A server of 256 sequences has 35 sizes of decode steps, and of each two recordings if decodes
  // share keys.
  static constexpr size_t kMostRecordings = 128;

 private:
  struct Entry {
    std::vector<int64_t> key;
    std::unique_ptr<kernels::Recording> recording;
  };
  std::list<Entry> entries_;  // most recently used first
  std::map<std::vector<int64_t>, std::list<Entry>::iterator> by_key_;
};

}  // namespace quire::engine
