// Filters that apply another filter or test to each item.

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/predicates.h"

namespace quire::jinja {
namespace {

using Items = std::vector<Value>;

absl::StatusOr<Value> Map(Evaluator& evaluator, const Value& input,
                          const CallArguments& arguments) {
  if (!input.Truthy())
    // As in Jinja2, `none` gives an empty result too.
    return Value::List({}, SequenceType::kGenerator);
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  Items mapped;
  const bool by_attribute = arguments.positional.empty() && !arguments.keyword.empty();
  if (by_attribute) {
    ASSIGN_OR_RETURN(const auto bound, Bind("map", arguments, {"attribute", "default"}, 1));
    const std::optional<Value> if_undefined =
        bound[1] && bound[1]->is_none() ? std::nullopt : bound[1];
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value value, LookUpPath(evaluator, item, *bound[0], if_undefined));
      mapped.push_back(std::move(value));
    }
  } else {
    if (arguments.positional.empty())
      return absl::InvalidArgumentError("map requires a filter argument");
    ASSIGN_OR_RETURN(const std::string name, StringArgument("map", arguments.positional[0], ""));
    const Filter* filter = FindFilter(name);
    if (filter == nullptr)
      return absl::InvalidArgumentError(absl::StrFormat("no filter named '%s'", name));
    CallArguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    if (!evaluator.budget().Enter()) return evaluator.budget().status();
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value value, filter->function(evaluator, item, rest));
      mapped.push_back(std::move(value));
    }
    evaluator.budget().Leave();
  }
  return Value::List(std::move(mapped), SequenceType::kGenerator);
}

// Keeps the items for which a test holds (kKeep) or does not hold. The test is applied to the item,
// or to an attribute of the item (kByAttribute).
template <bool kKeep, bool kByAttribute>
absl::StatusOr<Value> Select(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  if (!input.Truthy()) return Value::List({}, SequenceType::kGenerator);
  ASSIGN_OR_RETURN(const Items items, Iterate(input, evaluator.budget()));
  CallArguments rest = arguments;
  Value attribute;
  if (kByAttribute) {
    if (rest.positional.empty())
      return absl::InvalidArgumentError("Missing parameter for attribute name");
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  const Test* test = nullptr;
  if (!rest.positional.empty()) {
    ASSIGN_OR_RETURN(const std::string name, StringArgument("select", rest.positional[0], ""));
    test = FindTest(name);
    if (test == nullptr)
      return absl::InvalidArgumentError(absl::StrFormat("no test named '%s'", name));
    rest.positional.erase(rest.positional.begin());
  }
  Items kept;
  for (const Value& item : items) {
    Value value = item;
    if (kByAttribute) {
      ASSIGN_OR_RETURN(value, LookUpPath(evaluator, item, attribute));
    }
    bool holds = value.Truthy();
    if (test != nullptr) {
      ASSIGN_OR_RETURN(holds, test->function(evaluator, value, rest));
    }
    if (holds == kKeep) kept.push_back(item);
  }
  return Value::List(std::move(kept), SequenceType::kGenerator);
}

absl::StatusOr<Value> Attr(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("attr", arguments, {"name"}, 1));
  ASSIGN_OR_RETURN(const std::string name, StringArgument("attr", bound[0], ""));
  // Unlike the expression object.name, the filter attr never falls back to a key of a dict.
  if (input.is_dict() && !IsKnownMethod(name)) {
    return Value::MakeUndefined(absl::StrFormat("'dict object' has no attribute '%s'", name));
  }
  return GetAttribute(evaluator, input, name);
}

}  // namespace

std::span<const Filter> SelectFilters() {
  static constexpr Filter kFilters[] = {
      {"attr", Attr},
      {"map", Map},
      {"reject", Select<false, false>},
      {"rejectattr", Select<false, true>},
      {"select", Select<true, false>},
      {"selectattr", Select<true, true>},
  };
  return kFilters;
}

}  // namespace quire::jinja
