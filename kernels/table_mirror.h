#pragma once

// The host's knowledge of a table of int32 in device memory, so that only the entries that change
// are uploaded (ops/update_table.h).

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/update_table.h"

namespace quire::kernels {

class TableMirror {
 public:
  // All entries of the table are 0.
  explicit TableMirror(int64_t num_entries = 0)
      : values_(static_cast<size_t>(num_entries)), is_known_(values_.size(), true) {}

  int64_t size() const { return std::ssize(values_); }
  // Returns the bytes of the most changes.
  int64_t max_changes_bytes() const { return size() * static_cast<int64_t>(sizeof(TableChange)); }

  // Starts a list of changes. If the last list was not committed, no entry is known.
  void Begin() {
    changes_.clear();
    if (!is_committed_) is_known_.assign(values_.size(), false);
    is_committed_ = false;
  }
  // Adds a change, unless the entry has this value already. Sets each entry once between Begin and
  // Commit.
  void Set(int64_t index, int32_t value) {
    const auto at = static_cast<size_t>(index);
    if (is_known_[at] && values_[at] == value) return;
    values_[at] = value;
    is_known_[at] = true;
    changes_.push_back({.index = static_cast<int32_t>(index), .value = value});
  }
  std::span<const TableChange> changes() const { return changes_; }
  // Called once the update of the table with these changes has been enqueued.
  void Commit() { is_committed_ = true; }

 private:
  std::vector<int32_t> values_;
  std::vector<bool> is_known_;
  bool is_committed_ = true;
  std::vector<TableChange> changes_;
};

}  // namespace quire::kernels
