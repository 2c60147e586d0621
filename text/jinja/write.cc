#include "text/jinja/write.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

class ReprWriter {
 public:
  explicit ReprWriter(Budget& budget) : budget_(budget) {}

  absl::Status Write(const Value& value) {
    if (!budget_.Enter()) return budget_.status();
    absl::Status status = WriteInside(value);
    budget_.Leave();
    return status;
  }
  TracedText Take() { return std::move(out_); }

 private:
  absl::Status Append(const TracedText& text) {
    if (!budget_.SpendAppend(out_.bytes.size(), text.bytes.size())) return budget_.status();
    out_.Append(text);
    return absl::OkStatus();
  }

  absl::Status WriteItems(const Sequence& sequence) {
    const bool is_tuple = sequence.type == SequenceType::kTuple;
    RETURN_IF_ERROR(Append(is_tuple ? "(" : "["));
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(Append(", "));
      RETURN_IF_ERROR(Write(sequence.items[i]));
    }
    if (is_tuple && sequence.items.size() == 1) RETURN_IF_ERROR(Append(","));
    return Append(is_tuple ? ")" : "]");
  }

  absl::Status WriteDict(const Dict& dict) {
    RETURN_IF_ERROR(Append("{"));
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!first) RETURN_IF_ERROR(Append(", "));
      first = false;
      RETURN_IF_ERROR(Write(key));
      RETURN_IF_ERROR(Append(": "));
      RETURN_IF_ERROR(Write(value));
    }
    return Append("}");
  }

  absl::Status WriteInside(const Value& value) {
    if (value.is_none()) return Append("None");
    if (value.is_undefined()) return Append("Undefined");
    if (value.is_bool()) return Append(value.as_bool() ? "True" : "False");
    if (value.is_int()) return Append(absl::StrCat(value.as_int()));
    if (value.is_float()) return Append(FloatRepr(value.as_float()));
    if (value.is_string()) {
      const std::string repr = StringRepr(value.str());
      return Append({value.text().markup ? absl::StrCat("Markup(", repr, ")") : repr,
                     value.text().has_content()});
    }
    if (value.is_dict()) return WriteDict(value.dict());
    if (value.is_namespace()) {
      RETURN_IF_ERROR(Append("<Namespace "));
      RETURN_IF_ERROR(WriteDict(value.name_space().attributes));
      return Append(">");
    }
    if (const auto* macro = value.get<MacroObject*>()) {
      const std::string& name = (*macro)->node->name;
      return Append(absl::StrCat("<Macro ", name.empty() ? "anonymous" : StringRepr(name), ">"));
    }
    if (const auto* loop = value.get<std::shared_ptr<LoopState>>()) {
      return Append(
          absl::StrCat("<LoopContext ", (*loop)->index0 + 1, "/", (*loop)->items.size(), ">"));
    }
    if (value.is_sequence()) return WriteSequence(value.sequence(), value.TypeName());
    return absl::InvalidArgumentError(absl::StrFormat("a %s cannot be printed", value.TypeName()));
  }

  absl::Status WriteSequence(const Sequence& sequence, std::string_view type_name) {
    switch (sequence.type) {
      case SequenceType::kList:
      case SequenceType::kTuple:
        return WriteItems(sequence);
      case SequenceType::kDictKeys:
      case SequenceType::kDictValues:
      case SequenceType::kDictItems: {
        RETURN_IF_ERROR(Append(absl::StrFormat("%s(", type_name)));
        const Value list = Value::List(sequence.items);
        RETURN_IF_ERROR(WriteItems(list.sequence()));
        return Append(")");
      }
      default:
        return absl::InvalidArgumentError(absl::StrFormat("a %s cannot be printed", type_name));
    }
  }

  Budget& budget_;
  TracedText out_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  absl::Status Write(const Value& value, int level) {
    if (!budget_.Spend(1)) return budget_.status();
    if (value.is_none()) return Append("null");
    if (value.is_bool()) return Append(value.as_bool() ? "true" : "false");
    if (value.is_int()) return Append(absl::StrCat(value.as_int()));
    if (value.is_float()) return Append(Number(value.as_float()));
    if (value.is_string()) return Append(Quote(value.text()));
    if (value.is_sequence(SequenceType::kList) || value.is_sequence(SequenceType::kTuple)) {
      return WriteList(value.items(), level);
    }
    if (value.is_dict()) return WriteDict(value.dict(), level);
    return absl::InvalidArgumentError(
        absl::StrFormat("Object of type %s is not JSON serializable", value.TypeName()));
  }
  TracedText Take() { return std::move(out_); }

 private:
  absl::Status Append(const TracedText& text) {
    if (!budget_.SpendAppend(out_.bytes.size(), text.bytes.size())) return budget_.status();
    out_.Append(text);
    return absl::OkStatus();
  }

  absl::Status NewLine(int level) {
    if (!style_.indent) return absl::OkStatus();
    RETURN_IF_ERROR(Append("\n"));
    for (int i = 0; i < level; ++i) RETURN_IF_ERROR(Append(*style_.indent));
    return absl::OkStatus();
  }

  absl::Status WriteList(const std::vector<Value>& items, int level) {
    if (items.empty()) return Append("[]");
    RETURN_IF_ERROR(Append("["));
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(Append(style_.item_separator));
      RETURN_IF_ERROR(NewLine(level + 1));
      RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    RETURN_IF_ERROR(NewLine(level));
    return Append("]");
  }

  absl::Status WriteDict(const Dict& dict, int level) {
    if (dict.entries().empty()) return Append("{}");
    std::vector<Value> keys;
    for (const auto& [key, unused] : dict.entries()) keys.push_back(key);
    if (style_.sort_keys) RETURN_IF_ERROR(SortValues(&keys, budget_));
    RETURN_IF_ERROR(Append("{"));
    bool first = true;
    for (const Value& key : keys) {
      if (!first) RETURN_IF_ERROR(Append(style_.item_separator));
      first = false;
      RETURN_IF_ERROR(NewLine(level + 1));
      ASSIGN_OR_RETURN(const TracedText name, KeyText(key));
      RETURN_IF_ERROR(Append(Quote(name)));
      RETURN_IF_ERROR(Append(style_.key_separator));
      const Value* value = dict.Find(key, budget_);
      if (value == nullptr) return budget_.status();
      RETURN_IF_ERROR(Write(*value, level + 1));
    }
    RETURN_IF_ERROR(NewLine(level));
    return Append("}");
  }

  static absl::StatusOr<TracedText> KeyText(const Value& key) {
    if (key.is_string()) return TracedText(key.text());
    if (key.is_bool()) return TracedText(key.as_bool() ? "true" : "false");
    if (key.is_none()) return TracedText("null");
    if (key.is_int()) return TracedText(absl::StrCat(key.as_int()));
    if (key.is_float()) return TracedText(Number(key.as_float()));
    return absl::InvalidArgumentError(
        absl::StrFormat("keys must be str, int, float, bool or None, not %s", key.TypeName()));
  }

  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(value);
  }

  TracedText Quote(const TracedText& traced) const {
    const std::string_view text = traced.bytes;
    std::string out = "\"";
    for (size_t at = 0; at < text.size();) {
      const size_t size = CodePointSize(text, at);
      const auto c = static_cast<uint32_t>(CodePointAt(text, at));
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      static constexpr std::string_view kAs = "\"\\nrtbf";
      const size_t escape = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        out += '\\';
        out += kAs[escape];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        out += absl::StrFormat("\\u%04x", c);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        const uint32_t rest = c - 0x10000;
        out += absl::StrFormat("\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
      } else {
        out.append(text.substr(at, size));
      }
      at += size;
    }
    out += '"';
    return {std::move(out), traced.has_content()};
  }

  const JsonStyle& style_;
  Budget& budget_;
  TracedText out_;
};

}  // namespace

absl::StatusOr<TracedText> ToRepr(const Value& value, Budget& budget) {
  ReprWriter writer(budget);
  RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

absl::StatusOr<TracedText> ToText(const Value& value, Budget& budget) {
  if (value.is_string()) {
    if (!budget.SpendBytes(static_cast<int64_t>(value.str().size()))) return budget.status();
    return TracedText(value.text());
  }
  if (value.is_undefined()) return TracedText();
  if (value.is_sequence(SequenceType::kRange)) {
    return absl::InvalidArgumentError("a range cannot be printed");
  }
  return ToRepr(value, budget);
}

absl::StatusOr<TracedText> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace quire::jinja
