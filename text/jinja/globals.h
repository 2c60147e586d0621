#pragma once

// The functions that every template has: range, dict, namespace, cycler, joiner, and Hugging Face's
// raise_exception and strftime_now.

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// The largest number of items in a range(). A longer range is refused, as in Jinja2's sandbox.
inline constexpr int64_t kMaxRange = 100'000;

std::optional<Value> FindGlobal(std::string_view name);
absl::StatusOr<Value> CallGlobal(Evaluator& evaluator, GlobalFunction function,
                                 const CallArguments& arguments);
// Calls the object that joiner() returned. Returns InvalidArgument for the object of a cycler(),
// which cannot be called.
absl::StatusOr<Value> CallCycle(CycleState& cycle, const CallArguments& arguments);

}  // namespace quire::jinja
