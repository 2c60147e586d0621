#pragma once

// A Jinja template, with the settings that Hugging Face uses for chat templates: the immutable
// sandbox of Jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and {% generation %}, and
// without autoescape.
//
// Not supported: inheritance, import and include, {% block %}, recursive loops, autoescape.
// Integers beyond 64 bits are errors, and a generator or a function cannot be printed.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"

namespace quire::jinja {

// Immutable after Create; thread-safe.
class Template {
 public:
  // Parses and checks `source`. Bad syntax and an unsupported tag, filter, test or method are
  // InvalidArgument, which names the line.
  static absl::StatusOr<Template> Create(std::string_view source);

  // Renders the template. `context` is an object that holds the template's global names; the order
  // of keys is kept. InvalidArgument has the text of raise_exception, or the line and the error. An
  // exceeded limit is such an error.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context, absl::Time now,
                                     const Limits& limits = {}) const;

 private:
  explicit Template(Body body) : body_(std::move(body)) {}

  Body body_;
};

}  // namespace quire::jinja
