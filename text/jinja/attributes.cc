#include "text/jinja/attributes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

const Method* Find(std::span<const Method> methods, std::string_view name) {
  const auto it = std::find_if(methods.begin(), methods.end(),
                               [name](const Method& m) { return m.name == name; });
  return it == methods.end() ? nullptr : &*it;
}

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsLoop(const Value& value) { return value.get<std::shared_ptr<LoopState>>() != nullptr; }

const Method* FindMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return Find(StringMethods(), name);
  if (object.is_dict()) return Find(DictMethods(), name);
  if (IsLoop(object)) return Find(LoopMethods(), name);
  if (object.get<CycleState*>() != nullptr) return Find(CycleMethods(), name);
  if (!object.is_sequence()) return nullptr;
  const SequenceType type = object.sequence().type;
  if (type == SequenceType::kList) {
    if (const Method* method = Find(ListMethods(), name)) return method;
  }
  if (type == SequenceType::kList || type == SequenceType::kTuple || type == SequenceType::kRange) {
    return Find(SequenceMethods(), name);
  }
  return nullptr;
}

bool IsForbidden(const Value& object, std::string_view name) {
  if (object.is_dict()) return Has(ForbiddenDictMethods(), name);
  return object.is_sequence(SequenceType::kList) && Has(ForbiddenListMethods(), name);
}

Value NoSuchAttribute(const Value& object, std::string_view name) {
  if (object.is_none())
    return Value::MakeUndefined(absl::StrFormat("'None' has no attribute '%s'", name));
  return Value::MakeUndefined(
      absl::StrFormat("'%s object' has no attribute '%s'", object.TypeName(), name));
}

// Returns the result of Python's getattr(); nothing where Python raises AttributeError.
absl::StatusOr<std::optional<Value>> PythonAttribute(const Value& object, std::string_view name) {
  if (object.is_namespace()) {
    const Value* value = object.name_space().attributes.Find(name);
    return value == nullptr ? std::nullopt : std::optional<Value>(*value);
  }
  if (IsForbidden(object, name)) {
    return Value::MakeUndefined(absl::StrFormat(
        "access to attribute '%s' of '%s' object is unsafe.", name, object.TypeName()));
  }
  if (FindMethod(object, name) != nullptr) {
    return Value::Of(std::make_shared<const BoundMethod>(BoundMethod{object, std::string(name)}));
  }
  if (object.is_string() && Has(LackingStringMethods(), name)) {
    return absl::InvalidArgumentError(absl::StrFormat("the method .%s() is not supported", name));
  }
  if (object.is_sequence() && object.sequence().is_group) {
    if (name == "grouper") return object.items()[0];
    if (name == "list") return object.items()[1];
  }
  if (const auto* macro = object.get<MacroObject*>(); macro != nullptr && name == "name") {
    return Value::String((*macro)->node->name);
  }
  if (const auto* cycle = object.get<CycleState*>(); cycle != nullptr && name == "current") {
    return (*cycle)->items[(*cycle)->at % (*cycle)->items.size()];
  }
  if (!IsLoop(object)) return std::nullopt;
  const LoopState& loop = **object.get<std::shared_ptr<LoopState>>();
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "revindex") return Value::Int(length - loop.index0);
  if (name == "revindex0") return Value::Int(length - loop.index0 - 1);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(loop.index0 == length - 1);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    if (loop.index0 == 0) return Value::MakeUndefined("there is no previous item");
    return loop.items[static_cast<size_t>(loop.index0 - 1)];
  }
  if (name == "nextitem") {
    if (loop.index0 + 1 >= length) return Value::MakeUndefined("there is no next item");
    return loop.items[static_cast<size_t>(loop.index0 + 1)];
  }
  return std::nullopt;
}

// Returns the result of object[index]; nothing where Python raises TypeError or LookupError.
std::optional<Value> PythonItem(const Value& object, const Value& index, Budget& budget) {
  if (object.is_dict()) {
    const Value* value = object.dict().Find(index, budget);
    return value == nullptr ? std::nullopt : std::optional<Value>(*value);
  }
  const bool has_items = object.is_string() || object.is_sequence(SequenceType::kList) ||
                         object.is_sequence(SequenceType::kTuple) ||
                         object.is_sequence(SequenceType::kRange);
  if (!has_items || !index.is_integral()) return std::nullopt;
  const int64_t length = *Length(object);
  int64_t i = index.as_int();
  if (i < 0) i += length;
  if (i < 0 || i >= length) return std::nullopt;
  const auto at = static_cast<size_t>(i);
  if (object.is_sequence()) return object.items()[at];
  const std::string_view bytes = object.str();
  if (object.text().ascii()) return Value::Part(object, bytes.substr(at, 1));
  budget.SpendBytes(static_cast<int64_t>(bytes.size()));
  size_t offset = 0;
  for (size_t n = 0; n < at; ++n) offset += CodePointSize(bytes, offset);
  return Value::Part(object, bytes.substr(offset, CodePointSize(bytes, offset)));
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Evaluator& evaluator, const Value& object,
                                   std::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  absl::StatusOr<std::optional<Value>> attribute = PythonAttribute(object, name);
  if (!attribute.ok()) return attribute.status();
  if (*attribute) return **std::move(attribute);
  if (object.is_dict()) {
    if (const Value* value = object.dict().Find(name)) return *value;
  }
  (void)evaluator;
  return NoSuchAttribute(object, name);
}

absl::StatusOr<Value> GetItem(Evaluator& evaluator, const Value& object, const Value& index) {
  if (object.is_undefined()) return UndefinedError(object);
  if (std::optional<Value> item = PythonItem(object, index, evaluator.budget()))
    return *std::move(item);
  if (index.is_string()) {
    absl::StatusOr<std::optional<Value>> attribute = PythonAttribute(object, index.str());
    if (!attribute.ok()) return attribute.status();
    if (*attribute) return **std::move(attribute);
    return NoSuchAttribute(object, index.str());
  }
  if (index.is_integral()) {
    return Value::MakeUndefined(
        absl::StrFormat("%s object has no element %d", object.TypeName(), index.as_int()));
  }
  return Value::MakeUndefined(absl::StrFormat("%s object has no such element", object.TypeName()));
}

absl::StatusOr<Value> CallMethod(Evaluator& evaluator, const BoundMethod& method,
                                 const CallArguments& arguments) {
  return FindMethod(method.self, method.name)->function(evaluator, method.self, arguments);
}

bool IsKnownMethod(std::string_view name) {
  for (const auto methods : {StringMethods(), SequenceMethods(), ListMethods(), DictMethods(),
                             LoopMethods(), CycleMethods()}) {
    if (Find(methods, name) != nullptr) return true;
  }
  return Has(ForbiddenListMethods(), name) || Has(ForbiddenDictMethods(), name);
}

}  // namespace quire::jinja
