#pragma once

// A Jinja template, with the settings that Hugging Face uses for chat templates: the immutable
// sandbox of Jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and {% generation %}, and
// without autoescape.
//
// Not supported: inheritance, import and include, {% block %}, recursive loops, autoescape.
// Integers beyond 64 bits are errors, and a range, generator or function cannot be printed.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/traced_text.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// Immutable after Create; thread-safe.
class Template {
 public:
  // Parses and checks `source`. Returns an InvalidArgument error that names the line if the syntax
  // is bad, or if a tag, filter, test or method is not supported.
  static absl::StatusOr<Template> Create(std::string_view source);

  // Renders the template. `context` is an object that holds the global names of the template; the
  // order of keys is kept. An InvalidArgument error has the text that the template passes to
  // raise_exception, or the line and description of an error. Exceeding a limit is also
  // InvalidArgument.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context, absl::Time now,
                                     const Limits& limits = {}) const;
  // Renders the template, and marks the bytes that come from `contents`, which are strings of
  // `context`.
  absl::StatusOr<TracedText> RenderTraced(const nlohmann::ordered_json& context,
                                          const ContentStrings& contents, absl::Time now,
                                          const Limits& limits = {}) const;

 private:
  explicit Template(Body body) : body_(std::move(body)) {}

  Body body_;
};

}  // namespace quire::jinja
