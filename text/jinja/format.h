#pragma once

// Python's two ways to format text: "%s" % x and "{}".format(x).

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// Returns format % arguments. `arguments` is a tuple, a dict for %(name)s, or one value.
absl::StatusOr<Value> PercentFormat(const Value& format, const Value& arguments, Budget& budget);

// Returns format.format(arguments). The fields are {}, {0}, {name}, {0.attribute} and {0[key]},
// optionally with !r or !s. A format specification after ':' is refused.
absl::StatusOr<Value> BraceFormat(Evaluator& evaluator, const Value& format,
                                  const CallArguments& arguments);

// Spends the cost of the text that ReplaceAll() will return.
absl::Status PayForReplace(std::string_view text, std::string_view from, std::string_view to,
                           Budget& budget);

}  // namespace quire::jinja
