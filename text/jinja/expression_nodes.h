#pragma once

// Makes expressions for the parser. Each expression stores the depth of its tree.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"
#include "text/jinja/expression_parser.h"

namespace quire::jinja {

inline int DepthOf(const ExprPtr& expr) { return expr == nullptr ? 0 : expr->depth; }

inline int DepthOf(const std::vector<ExprPtr>& exprs) {
  int depth = 0;
  for (const ExprPtr& expr : exprs) depth = std::max(depth, DepthOf(expr));
  return depth;
}

inline int DepthOf(const Arguments& arguments) {
  int depth = std::max(
      {DepthOf(arguments.positional), DepthOf(arguments.star), DepthOf(arguments.star_star)});
  for (const auto& [name, value] : arguments.keyword) depth = std::max(depth, DepthOf(value));
  return depth;
}

template <typename NodeType>
absl::StatusOr<ExprPtr> Make(int line, int depth_below, NodeType node) {
  if (depth_below >= kMaxExprDepth) return TokenStream::Fail(line, "the expression is too long");
  return std::make_unique<Expr>(Expr{line, depth_below + 1, std::move(node)});
}

}  // namespace quire::jinja
