#include "engine/tokenizer/normalizer.h"

#include <utility>

#include "engine/tokenizer/nfc.h"

namespace quire::engine {
namespace {

std::optional<AlignedText> ReplaceText(const TextPart& part, std::string_view from,
                                       std::string_view to) {
  size_t at = part.text.find(from);
  if (at == std::string_view::npos) return std::nullopt;
  AlignedText out;
  size_t copied = 0;
  for (; at != std::string_view::npos; at = part.text.find(from, copied)) {
    out.AppendFrom(part, copied, at);
    out.Append(to, part.Origin(at, at + from.size()));
    copied = at + from.size();
  }
  out.AppendFrom(part, copied, part.text.size());
  return out;
}

std::optional<AlignedText> ReplaceRegex(const TextPart& part, const Regex& from,
                                        std::string_view to) {
  AlignedText out;
  size_t copied = 0;
  Regex::Match match;
  for (size_t at = 0;
       at < part.text.size() && from.Find(part.text, at, match) == Regex::Outcome::kMatch;) {
    if (match.begin == match.end) break;  // an empty match replaces nothing
    out.AppendFrom(part, copied, match.begin);
    out.Append(to, part.Origin(match.begin, match.end));
    copied = at = match.end;
  }
  if (copied == 0) return std::nullopt;
  out.AppendFrom(part, copied, part.text.size());
  return out;
}

}  // namespace

void Normalizer::AddPrepend(std::string prefix) {
  Step step;
  step.to = std::move(prefix);
  steps_.push_back(std::move(step));
}

void Normalizer::AddPrependUnlessThere(std::string prefix, bool only_at_input_start) {
  Step step;
  step.to = std::move(prefix);
  step.unless_there = true;
  step.only_at_input_start = only_at_input_start;
  steps_.push_back(std::move(step));
}

void Normalizer::AddReplace(std::string from, std::string to) {
  Step step;
  step.kind = Kind::kReplaceText;
  step.from = std::move(from);
  step.to = std::move(to);
  steps_.push_back(std::move(step));
}

void Normalizer::AddReplace(Regex from, std::string to) {
  Step step;
  step.kind = Kind::kReplaceRegex;
  step.to = std::move(to);
  step.regex.emplace(std::move(from));
  steps_.push_back(std::move(step));
}

void Normalizer::AddNfc() {
  Step step;
  step.kind = Kind::kNfc;
  steps_.push_back(std::move(step));
}

std::optional<AlignedText> Normalizer::ApplyStep(const Step& step, const TextPart& part) {
  switch (step.kind) {
    case Kind::kPrepend: {
      if (part.text.empty() || step.to.empty()) return std::nullopt;
      if (step.unless_there && part.text.substr(0, step.to.size()) == step.to) return std::nullopt;
      const uint32_t start = part.Origin(0, 0).begin;
      if (step.only_at_input_start && start != 0) return std::nullopt;
      AlignedText out;
      out.Append(step.to, {start, start});
      out.AppendFrom(part, 0, part.text.size());
      return out;
    }
    case Kind::kReplaceText:
      return ReplaceText(part, step.from, step.to);
    case Kind::kReplaceRegex:
      return ReplaceRegex(part, *step.regex, step.to);
    case Kind::kNfc:
      return ComposeNfc(part);
  }
  return std::nullopt;
}

std::optional<AlignedText> Normalizer::Apply(const TextPart& part) const {
  std::optional<AlignedText> current;
  for (const Step& step : steps_) {
    std::optional<AlignedText> next = ApplyStep(step, current ? current->Part() : part);
    if (next) current = std::move(next);
  }
  return current;
}

}  // namespace quire::engine
