// Methods of lists, tuples, dicts, loop and cycler.

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace quire::jinja {
namespace {

absl::StatusOr<Value> ListCopy(Evaluator&, const Value& self, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("copy", arguments, {}).status());
  return self;
}

absl::StatusOr<Value> SequenceCount(Evaluator& evaluator, const Value& self,
                                    const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("count", arguments, {""}, 1));
  int64_t count = 0;
  for (const Value& item : self.items())
    count += Equal(item, *bound[0], evaluator.budget()) ? 1 : 0;
  return Value::Int(count);
}

absl::StatusOr<Value> SequenceIndex(Evaluator& evaluator, const Value& self,
                                    const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("index", arguments, {"", "", ""}, 1));
  const auto length = static_cast<int64_t>(self.items().size());
  ASSIGN_OR_RETURN(int64_t begin, IntArgument("index", bound[1], 0));
  ASSIGN_OR_RETURN(int64_t end, IntArgument("index", bound[2], length));
  begin = begin < 0 ? std::max<int64_t>(begin + length, 0) : begin;
  end = std::min(end < 0 ? end + length : end, length);
  for (int64_t i = begin; i < end; ++i) {
    if (Equal(self.items()[static_cast<size_t>(i)], *bound[0], evaluator.budget()))
      return Value::Int(i);
  }
  return absl::InvalidArgumentError("the value is not in the list");
}

absl::StatusOr<Value> DictGet(Evaluator& evaluator, const Value& self,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("get", arguments, {"", ""}, 1));
  std::string hash;
  if (!HashKey(*bound[0], evaluator.budget(), &hash)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("unhashable type: '%s'", bound[0]->TypeName()));
  }
  if (const Value* value = self.dict().Find(*bound[0], evaluator.budget())) return *value;
  return bound[1].value_or(Value::MakeNone());
}

enum class View { kKeys, kValues, kItems };

absl::StatusOr<Value> MakeView(View view, Evaluator& evaluator, const Value& self,
                               const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("a dict method", arguments, {}).status());
  std::vector<Value> items;
  if (!evaluator.budget().Spend(2 * static_cast<int64_t>(self.dict().entries().size()))) {
    return evaluator.budget().status();
  }
  for (const auto& [key, value] : self.dict().entries()) {
    items.push_back(view == View::kKeys     ? key
                    : view == View::kValues ? value
                                            : Value::Tuple({key, value}));
  }
  return Value::List(std::move(items), view == View::kKeys     ? SequenceType::kDictKeys
                                       : view == View::kValues ? SequenceType::kDictValues
                                                               : SequenceType::kDictItems);
}
absl::StatusOr<Value> DictKeys(Evaluator& evaluator, const Value& self,
                               const CallArguments& arguments) {
  return MakeView(View::kKeys, evaluator, self, arguments);
}
absl::StatusOr<Value> DictValues(Evaluator& evaluator, const Value& self,
                                 const CallArguments& arguments) {
  return MakeView(View::kValues, evaluator, self, arguments);
}
absl::StatusOr<Value> DictItems(Evaluator& evaluator, const Value& self,
                                const CallArguments& arguments) {
  return MakeView(View::kItems, evaluator, self, arguments);
}

LoopState& LoopOf(const Value& self) { return **self.get<std::shared_ptr<LoopState>>(); }

absl::StatusOr<Value> LoopCycle(Evaluator&, const Value& self, const CallArguments& arguments) {
  if (arguments.positional.empty() || !arguments.keyword.empty()) {
    return absl::InvalidArgumentError("no items for cycling given");
  }
  return arguments
      .positional[static_cast<size_t>(LoopOf(self).index0) % arguments.positional.size()];
}

absl::StatusOr<Value> LoopChanged(Evaluator& evaluator, const Value& self,
                                  const CallArguments& arguments) {
  LoopState& loop = LoopOf(self);
  const Value now = Value::Tuple(arguments.positional);
  RETURN_IF_ERROR(evaluator.Checked(now).status());
  if (loop.last_changed && Equal(Value::Tuple(*loop.last_changed), now, evaluator.budget())) {
    return Value::Bool(false);
  }
  // The loop keeps `now` for the next call of changed(), so `now` counts towards the depth of the
  // loop.
  loop.depth = std::max(loop.depth, now.depth() + 1);
  if (!evaluator.budget().CheckValueDepth(loop.depth)) return evaluator.budget().status();
  if (!loop.last_changed) evaluator.ForgetAtEnd(*self.get<std::shared_ptr<LoopState>>());
  loop.last_changed = arguments.positional;
  return Value::Bool(true);
}

CycleState& CycleOf(const Value& self) { return **self.get<CycleState*>(); }

absl::StatusOr<Value> CycleNext(Evaluator&, const Value& self, const CallArguments&) {
  CycleState& cycle = CycleOf(self);
  const Value value = cycle.items[cycle.at];
  cycle.at = (cycle.at + 1) % cycle.items.size();
  return value;
}
absl::StatusOr<Value> CycleReset(Evaluator&, const Value& self, const CallArguments&) {
  CycleOf(self).at = 0;
  return Value::MakeNone();
}

}  // namespace

std::span<const Method> ListMethods() {
  static constexpr std::array<Method, 1> kMethods = {{{"copy", ListCopy}}};
  return kMethods;
}
std::span<const Method> SequenceMethods() {
  static constexpr std::array<Method, 2> kMethods = {
      {{"count", SequenceCount}, {"index", SequenceIndex}}};
  return kMethods;
}
std::span<const Method> DictMethods() {
  static constexpr std::array<Method, 5> kMethods = {{{"copy", ListCopy},
                                                      {"get", DictGet},
                                                      {"items", DictItems},
                                                      {"keys", DictKeys},
                                                      {"values", DictValues}}};
  return kMethods;
}
std::span<const Method> LoopMethods() {
  static constexpr std::array<Method, 2> kMethods = {
      {{"changed", LoopChanged}, {"cycle", LoopCycle}}};
  return kMethods;
}
std::span<const Method> CycleMethods() {
  static constexpr std::array<Method, 2> kMethods = {{{"next", CycleNext}, {"reset", CycleReset}}};
  return kMethods;
}
std::span<const std::string_view> ForbiddenListMethods() {
  static constexpr std::array<std::string_view, 8> kNames = {
      "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
  return kNames;
}
std::span<const std::string_view> ForbiddenDictMethods() {
  static constexpr std::array<std::string_view, 5> kNames = {"clear", "pop", "popitem",
                                                             "setdefault", "update"};
  return kNames;
}

}  // namespace quire::jinja
