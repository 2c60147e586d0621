#pragma once

// Python's operators on values. InvalidArgument has Python's message for unsupported operands.

#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// "'x' is undefined", for the use of an undefined value.
absl::Status UndefinedError(const Value& undefined);

absl::StatusOr<Value> Arithmetic(BinaryOp op, const Value& left, const Value& right,
                                 Budget& budget);
absl::StatusOr<Value> Negate(UnaryOp op, const Value& value);

bool Equal(const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Compare(CompareOp op, const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget);

// object[begin:end:step]; an absent part is undefined or none.
absl::StatusOr<Value> Slice(const Value& object, const Value& begin, const Value& end,
                            const Value& step, Budget& budget);

// Both are stable and ascending, by `<`; `reverse` makes SortByKeys descending. It moves values[i]
// to the place of keys[i].
absl::Status SortValues(std::vector<Value>* values, Budget& budget);
absl::Status SortByKeys(const std::vector<Value>& keys, bool reverse, std::vector<Value>* values,
                        Budget& budget);

}  // namespace quire::jinja
