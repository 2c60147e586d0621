#include "text/jinja/template.h"

#include <utility>

#include "base/status_macros.h"
#include "text/jinja/checker.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace quire::jinja {

absl::StatusOr<Template> Template::Create(std::string_view source) {
  ASSIGN_OR_RETURN(Body body, Parse(source));
  RETURN_IF_ERROR(Check(body));
  return Template(std::move(body));
}

absl::StatusOr<std::string> Template::Render(const nlohmann::ordered_json& context, absl::Time now,
                                             const Limits& limits) const {
  ASSIGN_OR_RETURN(TracedText text, RenderTraced(context, {}, now, limits));
  return std::move(text.bytes);
}

absl::StatusOr<TracedText> Template::RenderTraced(const nlohmann::ordered_json& context,
                                                  const ContentStrings& contents, absl::Time now,
                                                  const Limits& limits) const {
  Budget budget(limits);
  ASSIGN_OR_RETURN(const Value variables, FromJson(context, budget, contents));
  if (!variables.is_dict())
    return absl::InvalidArgumentError("a template's variables are a JSON object");
  return Evaluator(budget, now).Run(body_, variables.dict());
}

}  // namespace quire::jinja
