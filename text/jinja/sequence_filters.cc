// Filters on whole lists and dicts: order, length, parts.

#include <algorithm>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

using Items = std::vector<Value>;

Value Generator(Items items) { return Value::List(std::move(items), SequenceType::kGenerator); }

bool Flag(const std::optional<Value>& value) { return value && value->Truthy(); }

// Returns the form in which `value` is compared: text is in lower case, unless `case_sensitive`.
Value SortKey(const Value& value, bool case_sensitive) {
  return case_sensitive || !value.is_string() ? value : Value::String(Lower(value.str()));
}

// Returns one sort key for each item, made from the item itself or from its `attribute`. The
// attribute may be a list of names, separated by commas.
absl::StatusOr<Items> SortKeys(Evaluator& evaluator, const Items& items,
                               const std::optional<Value>& attribute, bool case_sensitive) {
  Items keys;
  for (const Value& item : items) {
    if (!attribute || attribute->is_none()) {
      // As in Jinja2, the key is a list of one item. Comparing lists uses `<` only on the first
      // unequal items. So equal items of a type without `<`, such as none, do not fail.
      keys.push_back(Value::List({SortKey(item, case_sensitive)}));
      continue;
    }
    Items parts;
    std::string_view paths =
        attribute->is_string() ? std::string_view(attribute->str()) : std::string_view();
    while (true) {
      const size_t comma = paths.find(',');
      const Value path =
          attribute->is_string() ? Value::String(std::string(paths.substr(0, comma))) : *attribute;
      ASSIGN_OR_RETURN(const Value part, LookUpPath(evaluator, item, path));
      parts.push_back(SortKey(part, case_sensitive));
      if (comma == std::string_view::npos) break;
      paths.remove_prefix(comma + 1);
    }
    keys.push_back(Value::List(std::move(parts)));
  }
  return keys;
}

absl::StatusOr<Value> LengthFilter(Evaluator&, const Value& input, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("length", arguments, {}).status());
  if (const std::optional<int64_t> length = Length(input)) return Value::Int(*length);
  return absl::InvalidArgumentError(
      absl::StrFormat("object of type '%s' has no len()", input.TypeName()));
}

absl::StatusOr<Value> First(Evaluator& evaluator, const Value& input,
                            const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("first", arguments, {}).status());
  if (input.is_sequence(SequenceType::kGenerator)) {
    const Sequence& sequence = input.sequence();
    if (sequence.consumed < static_cast<int64_t>(sequence.items.size())) {
      return sequence.items[static_cast<size_t>(sequence.consumed++)];
    }
  } else {
    ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
    if (!items.empty()) return items.front();
  }
  return Value::MakeUndefined("No first item, sequence was empty.");
}

absl::StatusOr<Value> Last(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("last", arguments, {}).status());
  if (input.is_sequence(SequenceType::kGenerator)) {
    return absl::InvalidArgumentError("'generator' object is not reversible");
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  if (!items.empty()) return items.back();
  return Value::MakeUndefined("No last item, sequence was empty.");
}

absl::StatusOr<Value> ListFilter(Evaluator& evaluator, const Value& input,
                                 const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("list", arguments, {}).status());
  ASSIGN_OR_RETURN(Items items, Iterate(input, evaluator.budget()));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> ItemsFilter(Evaluator& evaluator, const Value& input,
                                  const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("items", arguments, {}).status());
  if (input.is_undefined()) return Generator({});
  if (!input.is_dict())
    return absl::InvalidArgumentError("Can only get item pairs from a mapping.");
  if (!evaluator.budget().Spend(2 * *Length(input))) return evaluator.budget().status();
  Items items;
  for (const auto& [key, value] : input.dict().entries())
    items.push_back(Value::Tuple({key, value}));
  return Generator(std::move(items));
}

absl::StatusOr<Value> Reverse(Evaluator& evaluator, const Value& input,
                              const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("reverse", arguments, {}).status());
  if (input.is_string()) {
    return Slice(input, Value::MakeNone(), Value::MakeNone(), Value::Int(-1), evaluator.budget());
  }
  ASSIGN_OR_RETURN(Items items, Iterate(input, evaluator.budget()));
  std::reverse(items.begin(), items.end());
  // Python's reversed() refuses a generator, so Jinja2 turns a generator into a list and reverses
  // the list.
  return input.is_sequence(SequenceType::kGenerator) ? Value::List(std::move(items))
                                                     : Generator(std::move(items));
}

absl::StatusOr<Value> Sort(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   Bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(Items items, Iterate(input, evaluator.budget()));
  ASSIGN_OR_RETURN(const Items keys, SortKeys(evaluator, items, bound[2], Flag(bound[1])));
  RETURN_IF_ERROR(SortByKeys(keys, Flag(bound[0]), &items, evaluator.budget()));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> DictSort(Evaluator& evaluator, const Value& input,
                               const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   Bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  ASSIGN_OR_RETURN(const std::string by, StringArgument("dictsort", bound[1], "key"));
  if (by != "key" && by != "value")
    return absl::InvalidArgumentError("dictsort: by is 'key' or 'value'");
  if (input.is_undefined()) return UndefinedError(input);
  if (!input.is_dict()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' object has no attribute 'items'", input.TypeName()));
  }
  if (!evaluator.budget().Spend(2 * *Length(input))) return evaluator.budget().status();
  Items items, keys;
  for (const auto& [key, value] : input.dict().entries()) {
    items.push_back(Value::Tuple({key, value}));
    keys.push_back(SortKey(by == "key" ? key : value, Flag(bound[0])));
  }
  RETURN_IF_ERROR(SortByKeys(keys, Flag(bound[2]), &items, evaluator.budget()));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> Unique(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("unique", arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  Dict seen;
  Items kept;
  for (const Value& item : items) {
    Value key = item;
    if (bound[1] && !bound[1]->is_none()) {
      ASSIGN_OR_RETURN(key, LookUpPath(evaluator, item, *bound[1]));
    }
    const size_t before = seen.entries().size();
    if (!seen.Set(SortKey(key, Flag(bound[0])), Value::MakeNone(), evaluator.budget())) {
      return absl::InvalidArgumentError(absl::StrFormat("unhashable type: '%s'", key.TypeName()));
    }
    if (seen.entries().size() > before) kept.push_back(item);
  }
  return Generator(std::move(kept));
}

template <bool kMax>
absl::StatusOr<Value> MinMax(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("min", arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  if (items.empty()) return Value::MakeUndefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    Value key = items[i];
    if (bound[1] && !bound[1]->is_none()) {
      ASSIGN_OR_RETURN(key, LookUpPath(evaluator, key, *bound[1]));
    }
    key = SortKey(key, Flag(bound[0]));
    bool better = i == 0;
    if (!better) {
      ASSIGN_OR_RETURN(better, Compare(kMax ? CompareOp::kGreater : CompareOp::kLess, key, best_key,
                                       evaluator.budget()));
    }
    if (!better) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

absl::StatusOr<Value> Sum(Evaluator& evaluator, const Value& input,
                          const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("sum", arguments, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  Value sum = bound[1].value_or(Value::Int(0));
  if (sum.is_string()) return absl::InvalidArgumentError("sum() can't sum strings");
  for (Value item : items) {
    if (bound[0] && !bound[0]->is_none()) {
      ASSIGN_OR_RETURN(item, LookUpPath(evaluator, item, *bound[0]));
    }
    ASSIGN_OR_RETURN(sum, Arithmetic(BinaryOp::kAdd, sum, item, evaluator.budget()));
  }
  return sum;
}

absl::StatusOr<Value> Batch(Evaluator& evaluator, const Value& input,
                            const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("batch", arguments, {"linecount", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const int64_t size, IntArgument("batch", bound[0], 0));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  Items batches, batch;
  for (const Value& item : items) {
    if (static_cast<int64_t>(batch.size()) == size)
      batches.push_back(Value::List(std::exchange(batch, {})));
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const int64_t missing = size - static_cast<int64_t>(batch.size());
    if (bound[1] && !bound[1]->is_none() && missing > 0) {
      if (!evaluator.budget().Spend(missing)) return evaluator.budget().status();
      batch.insert(batch.end(), static_cast<size_t>(missing), *bound[1]);
    }
    batches.push_back(Value::List(std::move(batch)));
  }
  return Generator(std::move(batches));
}

absl::StatusOr<Value> SliceFilter(Evaluator& evaluator, const Value& input,
                                  const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("slice", arguments, {"slices", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const int64_t count, IntArgument("slice", bound[0], 0));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  if (count == 0) return absl::InvalidArgumentError("division by zero");
  if (!evaluator.budget().Spend(std::max<int64_t>(count, 0))) return evaluator.budget().status();
  Items slices;
  const auto length = static_cast<int64_t>(items.size());
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool longer = i < length % count;
    const int64_t end = at + length / count + (longer ? 1 : 0);
    Items slice(items.begin() + at, items.begin() + end);
    if (bound[1] && !bound[1]->is_none() && !longer) slice.push_back(*bound[1]);
    slices.push_back(Value::List(std::move(slice)));
    at = end;
  }
  return Generator(std::move(slices));
}

absl::StatusOr<Value> GroupBy(Evaluator& evaluator, const Value& input,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   Bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  const std::optional<Value> if_undefined =
      bound[1] && bound[1]->is_none() ? std::nullopt : bound[1];
  Items keys, pairs;  // each element: (original attribute, item, sort key)
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value key, LookUpPath(evaluator, item, *bound[0], if_undefined));
    keys.push_back(SortKey(key, Flag(bound[2])));
    pairs.push_back(Value::Tuple({key, item, keys.back()}));
  }
  RETURN_IF_ERROR(SortByKeys(keys, false, &pairs, evaluator.budget()));
  Items groups;
  for (size_t i = 0; i < pairs.size();) {
    const Value& key = pairs[i].items()[0];
    const Value& compared = pairs[i].items()[2];
    Items members;
    for (; i < pairs.size() && Equal(pairs[i].items()[2], compared, evaluator.budget()); ++i) {
      members.push_back(pairs[i].items()[1]);
    }
    if (members.empty())
      members.push_back(pairs[i++].items()[1]);  // the key is not equal to itself, like NaN
    auto group = std::make_shared<Sequence>();
    group->type = SequenceType::kTuple;
    group->items = {key, Value::List(std::move(members))};
    group->depth = std::max(group->items[0].depth(), group->items[1].depth()) + 1;
    group->is_group = true;
    groups.push_back(Value::Of(std::shared_ptr<const Sequence>(std::move(group))));
  }
  return Value::List(std::move(groups));
}

}  // namespace

std::span<const Filter> SequenceFilters() {
  static constexpr Filter kFilters[] = {
      {"batch", Batch},       {"count", LengthFilter},  {"dictsort", DictSort},
      {"first", First},       {"groupby", GroupBy},     {"items", ItemsFilter},
      {"last", Last},         {"length", LengthFilter}, {"list", ListFilter},
      {"max", MinMax<true>},  {"min", MinMax<false>},   {"reverse", Reverse},
      {"slice", SliceFilter}, {"sort", Sort},           {"sum", Sum},
      {"unique", Unique},
  };
  return kFilters;
}

}  // namespace quire::jinja
