#include "text/jinja/parser.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace quire::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  absl::StatusOr<Body> Run() { return Statements({}); }

 private:
  // Parses statements up to a tag in `ends`; the name of that tag is then the current token. Parses
  // to the end of the template if `ends` is empty.
  absl::StatusOr<Body> Statements(const std::vector<std::string_view>& ends) {
    const ExpressionParser::Nesting nesting(expressions_);
    RETURN_IF_ERROR(nesting.status());
    Body body;
    while (!tokens_.Is(TokenType::kEnd)) {
      const Token token = tokens_.Next();
      if (token.type == TokenType::kData) {
        Add(&body, token.line, TextNode{token.text});
      } else if (token.type == TokenType::kVariableBegin) {
        ASSIGN_OR_RETURN(ExprPtr value, expressions_.Tuple(true));
        RETURN_IF_ERROR(tokens_.Expect(TokenType::kVariableEnd, "'}}'"));
        Add(&body, token.line, OutputNode{std::move(value)});
      } else {
        for (const std::string_view end : ends) {
          if (tokens_.IsName(end)) return body;
        }
        RETURN_IF_ERROR(Statement(&body));
        RETURN_IF_ERROR(tokens_.Expect(TokenType::kBlockEnd, "'%}'"));
      }
    }
    if (!ends.empty()) {
      return tokens_.Fail(
          absl::StrCat("the template ends before {% ", std::string(ends.back()), " %}"));
    }
    return body;
  }

  // Parses the rest of a block: the '%}' of the opening tag, the body, and the closing tag up to
  // its '%}', which stays unread.
  absl::StatusOr<Body> BodyUntil(std::string_view end) {
    RETURN_IF_ERROR(tokens_.Expect(TokenType::kBlockEnd, "'%}'"));
    ASSIGN_OR_RETURN(Body body, Statements({end}));
    tokens_.Next();
    return body;
  }

  template <typename NodeType>
  static void Add(Body* body, int line, NodeType node) {
    body->push_back(std::make_unique<Node>(Node{line, std::move(node)}));
  }

  absl::Status Statement(Body* body) {
    if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a tag name");
    const Token tag = tokens_.Next();
    const std::string& name = tag.text;
    if (name == "if") return If(tag.line, body);
    if (name == "for") return For(tag.line, body);
    if (name == "set") return Set(tag.line, body);
    if (name == "macro") return Macro(tag.line, body);
    if (name == "call") return CallBlock(tag.line, body);
    if (name == "with") return With(tag.line, body);
    if (name == "filter") {
      ASSIGN_OR_RETURN(ExprPtr filter, expressions_.FilterChain(nullptr));
      ASSIGN_OR_RETURN(Body inner, BodyUntil("endfilter"));
      Add(body, tag.line, FilterBlockNode{std::move(filter), std::move(inner)});
      return absl::OkStatus();
    }
    if (name == "generation") {
      const int loops =
          std::exchange(open_loops_, 0);  // in Jinja2 the body of the tag is a separate function
      ASSIGN_OR_RETURN(Body inner, BodyUntil("endgeneration"));
      open_loops_ = loops;
      Add(body, tag.line, GenerationNode{std::move(inner)});
      return absl::OkStatus();
    }
    if (name == "print") return Print(tag.line, body);
    if (name == "break" || name == "continue") {
      if (open_loops_ == 0)
        return TokenStream::Fail(tag.line, absl::StrCat("'", name, "' outside of a loop"));
      name == "break" ? Add(body, tag.line, BreakNode{}) : Add(body, tag.line, ContinueNode{});
      return absl::OkStatus();
    }
    return TokenStream::Fail(tag.line, absl::StrCat("the tag {% ", name, " %} is not supported"));
  }

  absl::Status Print(int line, Body* body) {
    for (bool first = true; !tokens_.Is(TokenType::kBlockEnd); first = false) {
      if (!first) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      Add(body, line, OutputNode{std::move(value)});
    }
    return absl::OkStatus();
  }

  absl::Status If(int line, Body* body) {
    IfNode node;
    while (true) {
      ASSIGN_OR_RETURN(ExprPtr condition, expressions_.Tuple(false));
      RETURN_IF_ERROR(tokens_.Expect(TokenType::kBlockEnd, "'%}'"));
      ASSIGN_OR_RETURN(Body branch, Statements({"elif", "else", "endif"}));
      node.branches.emplace_back(std::move(condition), std::move(branch));
      const std::string end = tokens_.Next().text;
      if (end == "endif") break;
      if (end == "elif") continue;
      ASSIGN_OR_RETURN(node.otherwise, BodyUntil("endif"));
      break;
    }
    Add(body, line, std::move(node));
    return absl::OkStatus();
  }

  absl::Status For(int line, Body* body) {
    ForNode node;
    ASSIGN_OR_RETURN(node.target, expressions_.AssignTarget(false));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("'in'");
    ASSIGN_OR_RETURN(node.iterable, expressions_.Tuple(false));
    if (tokens_.SkipName("if")) {
      ASSIGN_OR_RETURN(node.condition, expressions_.Expression());
    }
    if (tokens_.IsName("recursive")) return tokens_.Fail("a recursive loop is not supported");
    RETURN_IF_ERROR(tokens_.Expect(TokenType::kBlockEnd, "'%}'"));
    ++open_loops_;
    ASSIGN_OR_RETURN(node.body, Statements({"else", "endfor"}));
    --open_loops_;
    if (tokens_.Next().text == "else") {
      ASSIGN_OR_RETURN(node.otherwise, BodyUntil("endfor"));
    }
    Add(body, line, std::move(node));
    return absl::OkStatus();
  }

  absl::Status Set(int line, Body* body) {
    ASSIGN_OR_RETURN(Target target, expressions_.AssignTarget(true));
    if (tokens_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.Tuple(true));
      Add(body, line, SetNode{std::move(target), std::move(value)});
      return absl::OkStatus();
    }
    ExprPtr filter;
    if (tokens_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(filter, expressions_.FilterChain(nullptr));
    }
    ASSIGN_OR_RETURN(Body inner, BodyUntil("endset"));
    Add(body, line, SetBlockNode{std::move(target), std::move(filter), std::move(inner)});
    return absl::OkStatus();
  }

  absl::Status With(int line, Body* body) {
    WithNode node;
    while (!tokens_.Is(TokenType::kBlockEnd)) {
      if (!node.assignments.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      ASSIGN_OR_RETURN(Target target, expressions_.AssignTarget(false));
      RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      node.assignments.emplace_back(std::move(target), std::move(value));
    }
    ASSIGN_OR_RETURN(node.body, BodyUntil("endwith"));
    Add(body, line, std::move(node));
    return absl::OkStatus();
  }

  absl::Status Macro(int line, Body* body) {
    MacroNode macro;
    ASSIGN_OR_RETURN(macro.name, expressions_.TargetName());
    if (!tokens_.IsOperator("(")) return tokens_.Unexpected("'('");
    RETURN_IF_ERROR(Signature(&macro));
    RETURN_IF_ERROR(MacroBody("endmacro", &macro));
    Add(body, line, std::move(macro));
    return absl::OkStatus();
  }

  absl::Status CallBlock(int line, Body* body) {
    CallBlockNode node;
    if (tokens_.IsOperator("(")) RETURN_IF_ERROR(Signature(&node.caller));
    ASSIGN_OR_RETURN(node.call, expressions_.Expression());
    if (!std::holds_alternative<CallExpr>(node.call->node))
      return TokenStream::Fail(line, "expected call");
    RETURN_IF_ERROR(MacroBody("endcall", &node.caller));
    Add(body, line, std::move(node));
    return absl::OkStatus();
  }

  absl::Status MacroBody(std::string_view end, MacroNode* macro) {
    expressions_.open_macros.push_back(macro);
    const int loops = std::exchange(open_loops_, 0);
    ASSIGN_OR_RETURN(macro->body, BodyUntil(end));
    open_loops_ = loops;
    expressions_.open_macros.pop_back();
    return absl::OkStatus();
  }

  absl::Status Signature(MacroNode* macro) {
    RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.IsOperator(")")) {
      if (!macro->parameters.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      Parameter parameter;
      ASSIGN_OR_RETURN(parameter.name, expressions_.TargetName());
      for (const Parameter& other : macro->parameters) {
        if (other.name == parameter.name) return tokens_.Fail("two parameters have one name");
      }
      if (tokens_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(parameter.default_value, expressions_.Expression());
      } else if (!macro->parameters.empty() && macro->parameters.back().default_value != nullptr) {
        return tokens_.Fail("non-default argument follows default argument");
      }
      macro->parameters.push_back(std::move(parameter));
    }
    tokens_.Next();
    return absl::OkStatus();
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int open_loops_ = 0;
};

}  // namespace

absl::StatusOr<Body> Parse(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace quire::jinja
