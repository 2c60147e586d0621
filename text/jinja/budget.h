#pragma once

// The limits of one rendering. The template comes from a model file, and its variables come from a
// client. Neither of them may exhaust the server's time, memory or stack.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "base/interrupt.h"
#include "text/jinja/value_memory.h"

namespace quire::jinja {

struct Limits {
  int64_t max_steps = 20'000'000;       // a step evaluates one node or copies kBytesPerStep bytes
  int64_t max_output_bytes = 32 << 20;  // also the limit of each string
  int32_t max_depth = 1000;             // nested nodes under evaluation, across all macros
  // The most stack in bytes that a rendering may use below the frame of Render(). 1 MiB is safe on
  // a thread with a stack of 2 MiB or more.
  int64_t max_stack_bytes = 1 << 20;
  int32_t max_value_depth = 200;  // nesting of lists and dicts
  // Bytes that all values hold at once. One filter may take as much again while it works.
  int64_t max_memory_bytes = 128 << 20;
};

// Counts the steps that remain. Once the budget is exhausted, every further Spend() fails. So a
// helper deep inside a traversal may simply stop; the evaluator checks status() afterwards.
class Budget {
 public:
  static constexpr int64_t kBytesPerStep = 16;

  explicit Budget(const Limits& limits)
      : limits_(limits),
        stack_base_(StackPosition()),
        memory_base_(ValueMemory::OfThread()),
        steps_left_(limits.max_steps) {}

  bool Spend(int64_t steps) {
    if (exhausted()) return false;
    steps_left_ -= steps;
    if (steps_left_ < 0) Fail("the template takes too many steps");
    if (base::Interrupted(steps)) Fail("nobody waits for it any more");
    return CanHold(0) && !exhausted();
  }
  // Spends the cost of a list that is about to get `count` values of `bytes_each`.
  bool SpendValues(int64_t count, int64_t bytes_each) {
    return CanHold(count * bytes_each) && Spend(count);
  }
  // Spends the cost of a string that is about to be created.
  bool SpendBytes(int64_t bytes) {
    if (bytes > limits_.max_output_bytes) return Fail("the template makes too long a text");
    return CanHold(bytes) && Spend(1 + bytes / kBytesPerStep);
  }
  // Spends the cost of appending to a growing text.
  bool SpendAppend(size_t have, size_t more) {
    if (static_cast<int64_t>(have + more) > limits_.max_output_bytes) {
      return Fail("the template makes too long a text");
    }
    return Spend(1 + static_cast<int64_t>(more) / kBytesPerStep);
  }
  bool CheckValueDepth(int32_t depth) {
    return depth <= limits_.max_value_depth || Fail("values nest too deep");
  }
  // Enters one level. Each call that returns true needs one Leave(). A depth limit is not enough,
  // because the stack that a level takes depends on the node and on the compiler. So the stack,
  // which grows downwards, is limited as well.
  bool Enter() {
    if (depth_ >= limits_.max_depth || stack_base_ - StackPosition() > limits_.max_stack_bytes) {
      return Fail("the template recurses too deep");
    }
    ++depth_;
    return !exhausted();
  }
  void Leave() { --depth_; }

  bool exhausted() const { return failure_ != nullptr; }
  absl::Status status() const {
    return failure_ == nullptr ? absl::OkStatus() : absl::InvalidArgumentError(failure_);
  }
  const Limits& limits() const { return limits_; }

 private:
  // Returns true if there is room for `bytes` more.
  bool CanHold(int64_t bytes) {
    const int64_t held = ValueMemory::OfThread() - memory_base_;
    return held + bytes <= limits_.max_memory_bytes || Fail("the template takes too much memory");
  }

  bool Fail(const char* why) {
    if (failure_ == nullptr) failure_ = why;
    return false;
  }

  static int64_t StackPosition() {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(__builtin_frame_address(0)));
  }

  const Limits limits_;
  const int64_t stack_base_;
  const int64_t memory_base_;  // what the thread held before
  int64_t steps_left_;
  int32_t depth_ = 0;
  const char* failure_ = nullptr;
};

}  // namespace quire::jinja
