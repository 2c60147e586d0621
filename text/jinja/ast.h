#pragma once

// The syntax tree of a template. The parser builds the tree, and Check() completes the tree. After
// that the tree is only read.

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace quire::jinja {

struct Filter;  // filters.h
struct Test;    // predicates.h

// ---- Expressions.

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// The arguments of a call: f(positional, keyword=value, *star, **star_star).
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star;       // null: none
  ExprPtr star_star;  // null: none
};

struct ConstantExpr {
  Value value;
};
struct NameExpr {
  std::string name;
};
struct SequenceExpr {  // [a, b] or (a, b)
  SequenceType type;
  std::vector<ExprPtr> items;
};
struct DictExpr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};

enum class UnaryOp { kNegate, kPlus, kNot };
struct UnaryExpr {
  UnaryOp op;
  ExprPtr operand;
};

enum class BinaryOp {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kAnd,
  kOr
};
struct BinaryExpr {
  BinaryOp op;
  ExprPtr left;
  ExprPtr right;
};
struct ConcatExpr {  // a ~ b ~ c
  std::vector<ExprPtr> parts;
};

enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct CompareExpr {  // first < a <= b: every pair must hold
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConditionalExpr {  // then if condition else otherwise
  ExprPtr condition;
  ExprPtr then;
  ExprPtr otherwise;  // null: the result is undefined
};

struct AttributeExpr {  // object.name
  ExprPtr object;
  std::string name;
};
struct SubscriptExpr {  // object[index]
  ExprPtr object;
  ExprPtr index;
};
struct SliceExpr {  // object[begin:end:step], each may be null
  ExprPtr object;
  ExprPtr begin;
  ExprPtr end;
  ExprPtr step;
};
struct CallExpr {
  ExprPtr function;
  Arguments arguments;
};
struct FilterExpr {
  // Null for the first filter of a {% filter %} or {% set %} block; the input is then the text of
  // the block.
  ExprPtr input;
  std::string name;
  Arguments arguments;
  const Filter* filter = nullptr;  // set by Check()
};
struct TestExpr {  // input is name(arguments)
  ExprPtr input;
  std::string name;
  Arguments arguments;
  const Test* test = nullptr;  // set by Check()
};

struct Expr {
  int line;
  int depth;  // depth of the tree below and including this node; limited by the parser
  std::variant<ConstantExpr, NameExpr, SequenceExpr, DictExpr, UnaryExpr, BinaryExpr, ConcatExpr,
               CompareExpr, ConditionalExpr, AttributeExpr, SubscriptExpr, SliceExpr, CallExpr,
               FilterExpr, TestExpr>
      node;
};

// ---- Statements.

struct Node;
using Body = std::vector<std::unique_ptr<Node>>;

// The target to which {% set %}, {% for %} and {% with %} assign.
struct Target {
  enum class Kind { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  std::string name;
  std::string attribute;      // kAttribute: the attribute of the namespace `name`
  std::vector<Target> parts;  // kTuple: the elements of the tuple
};

struct TextNode {
  std::string text;
};
struct OutputNode {  // {{ value }}
  ExprPtr value;
};
struct IfNode {
  std::vector<std::pair<ExprPtr, Body>> branches;  // if, elif ...
  Body otherwise;
};
struct ForNode {
  Target target;
  ExprPtr iterable;
  ExprPtr condition;  // null: every item
  Body body;
  Body otherwise;
};
struct SetNode {
  Target target;
  ExprPtr value;
};
struct SetBlockNode {
  Target target;
  // A chain of FilterExpr, in which the innermost has a null input. Null if the block has no
  // filter.
  ExprPtr filter;
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null: an argument that is not given is undefined
};
struct MacroNode {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // True if the body uses the name caller, varargs or kwargs. A call of the macro may then pass
  // caller=, extra positional arguments (varargs), or extra keyword arguments (kwargs).
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};
struct CallBlockNode {
  ExprPtr call;      // a CallExpr
  MacroNode caller;  // the body of the block, which the called macro runs as caller()
};
struct FilterBlockNode {
  ExprPtr filter;
  Body body;
};
struct WithNode {
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Body body;
};
struct GenerationNode {  // {% generation %} marks the assistant's text; the tag itself does nothing
  Body body;
};
struct BreakNode {};
struct ContinueNode {};

struct Node {
  int line;
  std::variant<TextNode, OutputNode, IfNode, ForNode, SetNode, SetBlockNode, MacroNode,
               CallBlockNode, FilterBlockNode, WithNode, GenerationNode, BreakNode, ContinueNode>
      node;
};

}  // namespace quire::jinja
