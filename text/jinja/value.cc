#include "text/jinja/value.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/text.h"

namespace quire::jinja {

Text::Text(TracedText given, bool is_markup)
    : TracedText(std::move(given)), length(CountCodePoints(bytes)), markup(is_markup) {
  ValueMemory::Add(num_bytes());
}

Text::~Text() { ValueMemory::Add(-num_bytes()); }

int64_t Text::num_bytes() const {
  return static_cast<int64_t>(sizeof(Text) + bytes.capacity() + marks.capacity());
}

Value Value::String(TracedText text, bool markup) {
  return Value(Data(std::make_shared<const Text>(std::move(text), markup)));
}

Value Value::Part(const Value& whole, std::string_view part) {
  const Text& text = whole.text();
  if (part.empty()) return String("", text.markup);
  const auto begin = static_cast<size_t>(part.data() - text.bytes.data());
  return String(text.Sub(begin, part.size()), text.markup);
}

Value Value::MakeUndefined(std::string why) {
  return Value(Data(Undefined{std::make_shared<const Undefined::Reason>(std::move(why))}));
}

Value Value::List(std::vector<Value> items, SequenceType type) {
  auto sequence = std::make_shared<Sequence>();
  sequence->type = type;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, item.depth() + 1);
  sequence->items = std::move(items);
  return Value(Data(std::shared_ptr<const Sequence>(std::move(sequence))));
}

Value Value::MakeDict(Dict dict) {
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

bool Value::is_callable() const {
  // Undefined counts as callable, because the class Undefined of Jinja2 has a __call__, which
  // fails.
  return Is<MacroObject*>() || Is<CycleState*>() || Is<std::shared_ptr<const BoundMethod>>() ||
         Is<GlobalFunction>() || is_undefined() || Is<std::shared_ptr<LoopState>>();
}

bool Value::Truthy() const {
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_undefined() || is_none()) return false;
  if (std::optional<int64_t> length = Length(*this)) return *length != 0;
  return true;
}

int32_t Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth();
  if (const auto* loop = get<std::shared_ptr<LoopState>>()) return (*loop)->depth;
  if (const auto* method = get<std::shared_ptr<const BoundMethod>>())
    return (*method)->self.depth() + 1;
  return 0;
}

std::string_view Value::TypeName() const {
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return text().markup ? "Markup" : "str";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_undefined()) return "Undefined";
  if (is_sequence()) {
    switch (sequence().type) {
      case SequenceType::kList:
        return "list";
      case SequenceType::kTuple:
        return "tuple";
      case SequenceType::kRange:
        return "range";
      case SequenceType::kDictKeys:
        return "dict_keys";
      case SequenceType::kDictValues:
        return "dict_values";
      case SequenceType::kDictItems:
        return "dict_items";
      case SequenceType::kGenerator:
        return "generator";
    }
  }
  if (Is<MacroObject*>()) return "Macro";
  if (Is<std::shared_ptr<LoopState>>()) return "LoopContext";
  return "function";
}

bool HashKey(const Value& value, Budget& budget, std::string* out) {
  if (!budget.Spend(1)) return false;
  if (value.is_none()) {
    out->push_back('n');
  } else if (value.is_undefined()) {
    out->push_back('u');
  } else if (value.is_integral()) {
    absl::StrAppend(out, "i", value.as_int(), ";");
  } else if (value.is_float()) {
    const double d = value.as_float();
    if (d == std::floor(d) && d >= -0x1p63 && d < 0x1p63) {
      absl::StrAppend(out, "i", static_cast<int64_t>(d), ";");
    } else {
      absl::StrAppendFormat(out, "f%a;", d);
    }
  } else if (value.is_string()) {
    if (!budget.SpendBytes(static_cast<int64_t>(value.str().size()))) return false;
    absl::StrAppend(out, "s", value.str().size(), ":", value.str());
  } else if (value.is_sequence(SequenceType::kTuple)) {
    absl::StrAppend(out, "t", value.items().size(), ":");
    for (const Value& item : value.items()) {
      if (!HashKey(item, budget, out)) return false;
    }
  } else {
    return false;
  }
  return true;
}

namespace {

std::string TextKey(std::string_view key) {
  std::string out;
  absl::StrAppend(&out, "s", key.size(), ":", std::string(key));
  return out;
}

}  // namespace

bool Dict::Set(const Value& key, Value value, Budget& budget) {
  std::string hash;
  if (!HashKey(key, budget, &hash)) return false;
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  const auto [it, inserted] = index_.try_emplace(std::move(hash), entries_.size());
  if (inserted) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[it->second.index].second = std::move(value);
  }
  return true;
}

const Value* Dict::Find(const Value& key, Budget& budget) const {
  std::string hash;
  if (!HashKey(key, budget, &hash)) return nullptr;
  const auto it = index_.find(hash);
  return it == index_.end() ? nullptr : &entries_[it->second.index].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto it = index_.find(TextKey(key));
  return it == index_.end() ? nullptr : &entries_[it->second.index].second;
}

void Dict::SetText(TracedText key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  const auto [it, inserted] = index_.try_emplace(TextKey(key.bytes), entries_.size());
  if (inserted) {
    entries_.emplace_back(Value::String(std::move(key)), std::move(value));
  } else {
    entries_[it->second.index].second = std::move(value);
  }
}

absl::StatusOr<std::vector<Value>> Iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    const int64_t begin = sequence.type == SequenceType::kGenerator ? sequence.consumed : 0;
    sequence.consumed = static_cast<int64_t>(sequence.items.size());
    if (budget.SpendValues(sequence.consumed - begin, sizeof(Value))) {
      items.assign(sequence.items.begin() + begin, sequence.items.end());
    }
  } else if (value.is_dict()) {
    const auto count = static_cast<int64_t>(value.dict().entries().size());
    if (budget.SpendValues(count, sizeof(Value))) {
      for (const auto& [key, unused] : value.dict().entries()) items.push_back(key);
    }
  } else if (value.is_string()) {
    const std::string_view bytes = value.str();
    if (budget.SpendValues(2 * value.text().length, kTextValueBytes / 2)) {
      for (size_t at = 0; at < bytes.size();) {
        const size_t size = CodePointSize(bytes, at);
        items.push_back(Value::Part(value, bytes.substr(at, size)));
        at += size;
      }
    }
  } else if (const auto* loop = value.get<std::shared_ptr<LoopState>>()) {
    return absl::InvalidArgumentError(
        absl::StrCat("loop of ", (*loop)->items.size(), " items cannot be iterated"));
  } else if (!value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' object is not iterable", value.TypeName()));
  }
  if (budget.exhausted()) return budget.status();
  return items;
}

std::optional<int64_t> Length(const Value& value) {
  if (value.is_string()) return value.text().length;
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries().size());
  if (value.is_undefined()) return 0;
  if (value.is_sequence() && value.sequence().type != SequenceType::kGenerator) {
    return static_cast<int64_t>(value.items().size());
  }
  if (const auto* loop = value.get<std::shared_ptr<LoopState>>()) {
    return static_cast<int64_t>((*loop)->items.size());
  }
  return std::nullopt;
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Budget& budget,
                               const ContentStrings& contents, bool is_content, int32_t depth) {
  if (!budget.Spend(1) || !budget.CheckValueDepth(depth)) return budget.status();
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return absl::InvalidArgumentError("a number does not fit in 64 bits");
      }
      return Value::Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!budget.SpendBytes(static_cast<int64_t>(text.size()))) return budget.status();
      return Value::String({text, is_content || contents.contains(&text)});
    }
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) {
        ASSIGN_OR_RETURN(Value value, FromJson(item, budget, contents, is_content, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::List(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        ASSIGN_OR_RETURN(Value value, FromJson(item, budget, contents, is_content, depth + 1));
        dict.SetText({key, is_content}, std::move(value));
      }
      return Value::MakeDict(std::move(dict));
    }
    default:
      return Value::MakeNone();
  }
}

}  // namespace quire::jinja
