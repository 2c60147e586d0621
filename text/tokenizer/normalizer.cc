#include "text/tokenizer/normalizer.h"

#include <memory>
#include <string_view>

#include "base/interrupt.h"
#include "base/status_macros.h"

namespace quire::text {
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

absl::StatusOr<std::optional<AlignedText>> ReplaceRegex(const TextPart& part, const Regex& from,
                                                        std::string_view to) {
  AlignedText out;
  size_t copied = 0;
  while (copied < part.text.size()) {
    ASSIGN_OR_RETURN(const std::optional<Regex::Match> match, from.Find(part.text, copied));
    if (!match || match->begin == match->end) break;  // replacing stops at an empty match
    if (base::Interrupted(static_cast<int64_t>(match->end - copied))) break;
    out.AppendFrom(part, copied, match->begin);
    out.Append(to, part.Origin(match->begin, match->end));
    copied = match->end;
  }
  if (copied == 0) return std::nullopt;
  out.AppendFrom(part, copied, part.text.size());
  return out;
}

// Puts `prefix` before `part`. Usually the origin of the prefix is the empty range at the start of
// the part. But if the first byte of the part comes from several input bytes, the part may begin
// inside the replacement of a character. The byte before the part then has the same origin as the
// first byte. Ends of origins must not decrease (TextPart), and the empty range would end earlier.
// So the prefix gets the origin of the first byte.
AlignedText Prepend(const TextPart& part, std::string_view prefix) {
  const ByteRange first = part.Origin(0, 1);
  const bool rewritten = first.end - first.begin > 1;
  AlignedText out;
  out.Append(prefix, rewritten ? first : ByteRange{first.begin, first.begin});
  out.AppendFrom(part, 0, part.text.size());
  return out;
}

}  // namespace

void Normalizer::Add(Step step, int64_t max_shrink) {
  steps_.push_back(std::move(step));
  max_shrink_ *= max_shrink;
}

void Normalizer::AddPrepend(std::string prefix) {
  Add(
      [prefix = std::move(prefix)](const TextPart& part) -> std::optional<AlignedText> {
        if (part.text.empty() || prefix.empty()) return std::nullopt;
        return Prepend(part, prefix);
      },
      /*max_shrink=*/1);
}

void Normalizer::AddPrependUnlessThere(std::string prefix, bool only_at_input_start) {
  Add(
      [prefix = std::move(prefix),
       only_at_input_start](const TextPart& part) -> std::optional<AlignedText> {
        if (part.text.empty() || part.text.starts_with(prefix)) return std::nullopt;
        if (only_at_input_start && part.Origin(0, 0).begin != 0) return std::nullopt;
        return Prepend(part, prefix);
      },
      /*max_shrink=*/1);
}

void Normalizer::AddReplace(std::string from, std::string to) {
  const int64_t max_shrink = to.size() >= from.size() ? 1 : 0;
  Add([from = std::move(from),
       to = std::move(to)](const TextPart& part) { return ReplaceText(part, from, to); },
      max_shrink);
}

void Normalizer::AddReplace(Regex from, std::string to) {
  Add([from = std::make_shared<const Regex>(std::move(from)),
       to = std::move(to)](const TextPart& part) { return ReplaceRegex(part, *from, to); });
}

absl::StatusOr<std::optional<AlignedText>> Normalizer::Apply(const TextPart& part) const {
  std::optional<AlignedText> current;
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(std::optional<AlignedText> next, step(current ? current->Part() : part));
    if (next) current = std::move(next);
  }
  return current;
}

}  // namespace quire::text
