#pragma once

// The answer to a command that another thread carries out.

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::engine {

// Calls a function exactly once, with a result. If the completion is destroyed without a result,
// because the engine stops, the function gets Unavailable. Move-only.
template <typename T>
class Completion {
 public:
  using Function = absl::AnyInvocable<void(absl::StatusOr<T>) &&>;

  explicit Completion(Function function) : function_(std::move(function)) {}
  Completion(Completion&& other) noexcept : function_(std::exchange(other.function_, Function())) {}
  Completion& operator=(Completion&&) = delete;
  ~Completion() {
    if (function_) std::move (*this)(absl::UnavailableError("the engine stops: try another one"));
  }

  void operator()(absl::StatusOr<T> result) && {
    std::exchange(function_, Function())(std::move(result));
  }

 private:
  Function function_;  // empty once called or moved from
};

}  // namespace quire::engine
