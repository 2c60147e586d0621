#pragma once

// Python's operators on values. For unsupported operands, the InvalidArgument error has the message
// of Python's error.

#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// Returns the error for the use of an undefined value: "'x' is undefined".
absl::Status UndefinedError(const Value& undefined);

absl::StatusOr<Value> Arithmetic(BinaryOp op, const Value& left, const Value& right,
                                 Budget& budget);
absl::StatusOr<Value> Negate(UnaryOp op, const Value& value);

bool Equal(const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Compare(CompareOp op, const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget);

// Returns object[begin:end:step]. A part that the template omits is none.
absl::StatusOr<Value> Slice(const Value& object, const Value& begin, const Value& end,
                            const Value& step, Budget& budget);

// SortValues and SortByKeys sort in ascending order by `<`, and are stable. SortByKeys sorts
// `values` by `keys`, where keys[i] is the key of values[i]; with `reverse` the order is
// descending.
absl::Status SortValues(std::vector<Value>* values, Budget& budget);
absl::Status SortByKeys(const std::vector<Value>& keys, bool reverse, std::vector<Value>* values,
                        Budget& budget);

}  // namespace quire::jinja
