// Slicing and sorting.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::jinja {

absl::StatusOr<Value> Slice(const Value& object, const Value& begin, const Value& end,
                            const Value& step, Budget& budget) {
  if (object.is_undefined()) return UndefinedError(object);
  const bool is_list = object.is_sequence() && (object.is_sequence(SequenceType::kList) ||
                                                object.is_sequence(SequenceType::kTuple) ||
                                                object.is_sequence(SequenceType::kRange));
  if (!object.is_string() && !is_list) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' object cannot be sliced", object.TypeName()));
  }
  for (const Value* part : {&begin, &end, &step}) {
    if (!part->is_none() && !part->is_integral()) {
      return absl::InvalidArgumentError("slice indices must be integers or None");
    }
  }
  const int64_t length = *Length(object);
  const int64_t stride = step.is_none() ? 1 : step.as_int();
  if (stride == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  // Adjusts a bound as CPython's PySlice_AdjustIndices does.
  const auto adjust = [&](const Value& part, int64_t absent) {
    if (part.is_none()) return absent;
    const int64_t i = part.as_int();
    if (i < 0) return i < -length ? (stride < 0 ? int64_t{-1} : int64_t{0}) : i + length;
    return std::min(i, stride < 0 ? length - 1 : length);
  };
  const int64_t first = adjust(begin, stride < 0 ? length - 1 : 0);
  const int64_t last = adjust(end, stride < 0 ? -1 : length);
  std::vector<int64_t> at;
  if (!budget.Spend(object.is_string() ? length / Budget::kBytesPerStep : 0))
    return budget.status();
  if (object.is_string() && stride == 1) {
    if (last <= first) return Value::String("", object.text().markup);
    const std::string_view bytes = object.str();
    if (object.text().ascii()) {
      return Value::Part(
          object, bytes.substr(static_cast<size_t>(first), static_cast<size_t>(last - first)));
    }
    const std::vector<size_t> offsets = CodePointOffsets(bytes);
    const size_t from = offsets[static_cast<size_t>(first)];
    return Value::Part(object, bytes.substr(from, offsets[static_cast<size_t>(last)] - from));
  }
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    at.push_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  const int64_t bytes_each = object.is_string() ? 0 : int64_t{sizeof(Value)};
  if (!budget.SpendValues(std::ssize(at), bytes_each)) return budget.status();
  if (object.is_string()) {
    const std::vector<size_t> offsets = CodePointOffsets(object.str());
    TracedText out;
    for (const int64_t i : at) {
      const auto n = static_cast<size_t>(i);
      out.Append(object.text(), offsets[n], offsets[n + 1] - offsets[n]);
    }
    return Value::String(std::move(out), object.text().markup);
  }
  std::vector<Value> items;
  items.reserve(at.size());
  for (const int64_t i : at) items.push_back(object.items()[static_cast<size_t>(i)]);
  return Value::List(std::move(items), object.sequence().type);
}

absl::Status SortByKeys(const std::vector<Value>& keys, bool reverse, std::vector<Value>* values,
                        Budget& budget) {
  // This is a merge sort of our own, because std::stable_sort needs comparisons that define an
  // order. Here a comparison may fail, and comparisons with NaN do not define an order.
  std::vector<size_t> order(keys.size()), merged(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin, right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          // Equal keys keep their order, even with `reverse`.
          const Value& a = keys[order[left]];
          const Value& b = keys[order[right]];
          ASSIGN_OR_RETURN(take_right, reverse ? Compare(CompareOp::kLess, a, b, budget)
                                               : Compare(CompareOp::kLess, b, a, budget));
        }
        merged[out] = take_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  std::vector<Value> sorted;
  sorted.reserve(order.size());
  for (const size_t i : order) sorted.push_back((*values)[i]);
  *values = std::move(sorted);
  return absl::OkStatus();
}

absl::Status SortValues(std::vector<Value>* values, Budget& budget) {
  const std::vector<Value> keys = *values;
  return SortByKeys(keys, false, values, budget);
}

}  // namespace quire::jinja
