#include "text/jinja/globals.h"

#include <ctime>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

absl::StatusOr<Value> Range(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("range", arguments, {"start", "stop", "step"}, 1));
  ASSIGN_OR_RETURN(int64_t begin, IntArgument("range", bound[0], 0));
  ASSIGN_OR_RETURN(int64_t end, IntArgument("range", bound[1], 0));
  ASSIGN_OR_RETURN(const int64_t step, IntArgument("range", bound[2], 1));
  if (!bound[1]) end = std::exchange(begin, 0);
  if (step == 0) return absl::InvalidArgumentError("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return absl::InvalidArgumentError(
          absl::StrFormat("range too big: at most %d items", kMaxRange));
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!evaluator.budget().Spend(static_cast<int64_t>(items.size())))
    return evaluator.budget().status();
  return Value::List(std::move(items), SequenceType::kRange);
}

// dict(mapping or pairs, name=value ...)
absl::StatusOr<Dict> MakeDict(Evaluator& evaluator, const CallArguments& arguments) {
  Budget& budget = evaluator.budget();
  Dict dict;
  if (arguments.positional.size() > 1)
    return absl::InvalidArgumentError("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      if (!budget.Spend(static_cast<int64_t>(source.dict().entries().size())))
        return budget.status();
      dict = source.dict();
    } else {
      ASSIGN_OR_RETURN(const std::vector<Value> pairs, Iterate(source, budget));
      for (const Value& pair : pairs) {
        ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(pair, budget));
        if (parts.size() != 2) return absl::InvalidArgumentError("dict: want pairs");
        if (!dict.Set(parts[0], parts[1], budget)) {
          return absl::InvalidArgumentError(
              absl::StrFormat("unhashable type: '%s'", parts[0].TypeName()));
        }
      }
    }
  }
  for (const auto& [name, value] : arguments.keyword) dict.SetText(name, value);
  return dict;
}

absl::StatusOr<Value> DictFunction(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(Dict dict, MakeDict(evaluator, arguments));
  return Value::MakeDict(std::move(dict));
}

absl::StatusOr<Value> NamespaceFunction(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(Dict dict, MakeDict(evaluator, arguments));
  for (const auto& [key, unused] : dict.entries()) {
    if (key.is_string() && key.str().starts_with("_")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a namespace cannot store the attribute '%s'", key.str()));
    }
  }
  RETURN_IF_ERROR(evaluator.Checked(Value::MakeDict(dict)).status());
  return evaluator.NewNamespace(std::move(dict));
}

absl::StatusOr<Value> Cycler(Evaluator& evaluator, const CallArguments& arguments) {
  if (arguments.positional.empty() || !arguments.keyword.empty()) {
    return absl::InvalidArgumentError("at least one item has to be provided");
  }
  return evaluator.NewCycle({.is_joiner = false, .items = arguments.positional});
}

absl::StatusOr<Value> Joiner(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("joiner", arguments, {"sep"}));
  return evaluator.NewCycle({.is_joiner = true, .items = {bound[0].value_or(Value::String(", "))}});
}

absl::StatusOr<Value> RaiseException(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("raise_exception", arguments, {"message"}, 1));
  ASSIGN_OR_RETURN(const TracedText message, ToText(*bound[0], evaluator.budget()));
  return evaluator.Raise(message.bytes);
}

absl::StatusOr<Value> StrftimeNow(Evaluator& evaluator, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("strftime_now", arguments, {"format"}, 1));
  ASSIGN_OR_RETURN(const std::string format, StringArgument("strftime_now", bound[0], ""));
  if (format.empty()) return Value::String("");
  const std::tm now = absl::ToTM(evaluator.now(), absl::LocalTimeZone());
  char text[512];
  const size_t size = std::strftime(text, sizeof(text), format.c_str(), &now);
  if (size == 0) return absl::InvalidArgumentError("strftime_now: the text is too long");
  return Value::String({std::string(text, size), bound[0]->text().has_content()});
}

struct Global {
  std::string_view name;
  absl::StatusOr<Value> (*function)(Evaluator& evaluator, const CallArguments& arguments);
};
constexpr Global kGlobals[] = {
    {"cycler", Cycler},
    {"dict", DictFunction},
    {"joiner", Joiner},
    {"namespace", NamespaceFunction},
    {"raise_exception", RaiseException},
    {"range", Range},
    {"strftime_now", StrftimeNow},
};

}  // namespace

std::optional<Value> FindGlobal(std::string_view name) {
  for (size_t i = 0; i < std::size(kGlobals); ++i) {
    if (kGlobals[i].name == name) return Value::Of(GlobalFunction{static_cast<int32_t>(i)});
  }
  return std::nullopt;
}

absl::StatusOr<Value> CallGlobal(Evaluator& evaluator, GlobalFunction function,
                                 const CallArguments& arguments) {
  return kGlobals[static_cast<size_t>(function.id)].function(evaluator, arguments);
}

absl::StatusOr<Value> CallCycle(CycleState& cycle, const CallArguments& arguments) {
  if (!cycle.is_joiner || !arguments.positional.empty() || !arguments.keyword.empty()) {
    return absl::InvalidArgumentError("this object is not callable");
  }
  return cycle.at++ == 0 ? Value::String("") : cycle.items[0];
}

}  // namespace quire::jinja
