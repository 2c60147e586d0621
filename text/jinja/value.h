#pragma once

// The values of a template. They behave like the values of Python, as far as a template can
// observe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/jinja/budget.h"
#include "text/jinja/traced_text.h"

namespace quire::jinja {

class Value;

// Immutable UTF-8 text. Lengths and indexes are in code points. A byte that is not part of valid
// UTF-8 counts as one code point.
struct Text : TracedText {
  Text(TracedText given, bool is_markup);
  ~Text();
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  int64_t num_bytes() const;  // of memory

  const int64_t length;  // in code points
  const bool markup;     // made by |safe or |escape; text that is appended to it is escaped

  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};

// The value of a missing name or member. It prints as nothing; most other uses fail.
struct Undefined {
  struct Reason {
    // clang 14 initialises no aggregate in make_shared.
    explicit Reason(std::string why) : text(std::move(why)) {}

    std::string text;
    [[no_unique_address]] Counted<128> counted = {};
  };
  std::shared_ptr<const Reason> why;
};

struct None {};

// Python types that are stored as a Sequence. They differ in how they print and in the results of
// tests.
enum class SequenceType {
  kList,
  kTuple,
  kRange,
  kDictKeys,
  kDictValues,
  kDictItems,
  kGenerator,  // returned by map, select etc.; can be iterated once and has no length
};

struct Sequence {
  SequenceType type = SequenceType::kList;
  std::vector<Value> items;
  int32_t depth = 1;
  bool is_group = false;  // a tuple made by groupby, which has .grouper and .list
  [[no_unique_address]] Counted<80> counted = {};
  // The number of items already taken from a generator. The count needs no lock, because a value
  // belongs to one rendering, and thus to one thread.
  mutable int64_t consumed = 0;
};

// A dict that keeps keys in insertion order. It is immutable once it is inside a Value, as Jinja2's
// sandbox demands.
class Dict {
 public:
  // Adds an entry, or replaces the value of an equal key. Returns false when `key` cannot be
  // hashed.
  bool Set(const Value& key, Value value, Budget& budget);
  // Returns null when `key` is absent or cannot be hashed.
  const Value* Find(const Value& key, Budget& budget) const;
  const Value* Find(std::string_view key) const;
  void SetText(TracedText key, Value value);

  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  int32_t depth() const { return depth_; }

 private:
  struct Place {
    explicit Place(size_t place) : index(place) {}
    size_t index;  // in entries_
    [[no_unique_address]] Counted<96> counted = {};
  };

  std::vector<std::pair<Value, Value>> entries_;
  absl::flat_hash_map<std::string, Place> index_;  // by HashKey()
  int32_t depth_ = 1;
};

// The value of namespace(), the only kind of value whose content a template can set. The Evaluator
// owns it, so that a namespace that holds itself does not leak.
struct Namespace {
  Dict attributes;
  [[no_unique_address]] Counted<96> counted = {};
};

struct LoopState;    // the variable `loop`; in evaluator.h
struct MacroObject;  // in evaluator.h
struct CycleState;   // cycler() and joiner(); in evaluator.h

// The value of x.method, before the method is called.
struct BoundMethod;

// A function that every template has: range, namespace ...
struct GlobalFunction {
  int32_t id = 0;  // index into kGlobals of globals.cc
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  static Value MakeNone() { return Value(Data(None{})); }
  static Value Bool(bool b) { return Value(Data(b)); }
  static Value Int(int64_t i) { return Value(Data(i)); }
  static Value Float(double d) { return Value(Data(d)); }
  static Value String(TracedText text, bool markup = false);
  // Returns the text `part`, which is a view of the text of `whole`.
  static Value Part(const Value& whole, std::string_view part);
  static Value MakeUndefined(std::string why);
  static Value List(std::vector<Value> items, SequenceType type = SequenceType::kList);
  static Value Tuple(std::vector<Value> items) {
    return List(std::move(items), SequenceType::kTuple);
  }
  static Value MakeDict(Dict dict);
  static Value Of(std::shared_ptr<const Sequence> s) { return Value(Data(std::move(s))); }
  static Value Of(Namespace* n) { return Value(Data(n)); }
  static Value Of(MacroObject* m) { return Value(Data(m)); }
  static Value Of(CycleState* c) { return Value(Data(c)); }
  static Value Of(std::shared_ptr<LoopState> l) { return Value(Data(std::move(l))); }
  static Value Of(std::shared_ptr<const BoundMethod> m) { return Value(Data(std::move(m))); }
  static Value Of(GlobalFunction f) { return Value(Data(f)); }

  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_float() const { return Is<double>(); }
  bool is_string() const { return Is<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return Is<std::shared_ptr<const Sequence>>(); }
  bool is_sequence(SequenceType type) const { return is_sequence() && sequence().type == type; }
  bool is_dict() const { return Is<std::shared_ptr<const Dict>>(); }
  bool is_namespace() const { return Is<Namespace*>(); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }  // a bool is an int in Python
  bool is_callable() const;

  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_float() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& str() const { return text().bytes; }
  const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(data_); }
  const std::vector<Value>& items() const { return sequence().items; }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& name_space() const { return *std::get<Namespace*>(data_); }
  // Null if no reason is known.
  const std::string* undefined_reason() const {
    const auto& why = std::get<Undefined>(data_).why;
    return why == nullptr ? nullptr : &why->text;
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }

  // Returns Python's bool(): false for empty, zero, none and undefined values.
  bool Truthy() const;
  // Returns the nesting depth of the lists and dicts in this value; 0 for a scalar.
  int32_t depth() const;
  // Returns the name of the type in Python's error messages: "str", "dict", "NoneType".
  std::string_view TypeName() const;

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            Namespace*, MacroObject*, CycleState*, std::shared_ptr<LoopState>,
                            std::shared_ptr<const BoundMethod>, GlobalFunction>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
  [[no_unique_address]] Counted<sizeof(Data)> counted_;
};

// What a text in a list takes at least: the value, and its Text.
inline constexpr int64_t kTextValueBytes = sizeof(Value) + sizeof(Text);

struct BoundMethod {
  Value self;
  std::string name;
  [[no_unique_address]] Counted<80> counted = {};
};

// Appends to `out` the hash key of `value`: the bytes by which a Dict finds `value`. Keys that are
// equal in Python, such as 1, 1.0 and True, have the same bytes. Returns false when the value, such
// as a list, cannot be hashed.
bool HashKey(const Value& value, Budget& budget, std::string* out);

// Returns the values that a for loop over `value` visits: the items of a sequence, the code points
// of a text, the keys of a dict, nothing for undefined. The call uses up a generator. The error for
// another type has Python's message: "'int' object is not iterable".
absl::StatusOr<std::vector<Value>> Iterate(const Value& value, Budget& budget);

// Returns len(value), or nothing when the value has no length.
std::optional<int64_t> Length(const Value& value);

// Strings of JSON whose bytes are content, by their addresses.
using ContentStrings = absl::flat_hash_set<const std::string*>;

// Converts JSON to a Value. The strings of `contents` are content; with `is_content`, all strings
// and keys are. Returns InvalidArgument when a number does not fit, or when the nesting
// exceeds the limit of `budget`.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Budget& budget,
                               const ContentStrings& contents, bool is_content = false,
                               int32_t depth = 0);

}  // namespace quire::jinja
