#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/interrupt.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"

namespace quire::text {
namespace {

// A range of bytes of a word, half open.
struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

// Finds the matches of `pattern` and the gaps between them, which together cover all of `text`.
// With `invert` the gaps count as matches, and the matches as gaps.
absl::Status FindSpans(const Regex& pattern, bool invert, std::string_view text,
                       std::vector<Span>& spans) {
  size_t covered = 0;
  for (size_t from = 0; from < text.size();) {
    ASSIGN_OR_RETURN(const std::optional<Regex::Match> match, pattern.Find(text, from));
    if (!match || base::Interrupted(static_cast<int64_t>(match->end - from + 1))) break;
    if (match->begin == match->end) {  // an empty match splits, and the search continues after it
      if (match->begin > covered) spans.push_back({covered, match->begin, invert});
      covered = match->begin;
      if (match->begin == text.size()) break;
      from = match->begin + base::DecodeUtf8(text, match->begin).length;
      continue;
    }
    if (match->begin > covered) spans.push_back({covered, match->begin, invert});
    spans.push_back({match->begin, match->end, !invert});
    covered = from = match->end;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), invert});
  return absl::OkStatus();
}

// Turns spans into words, in place. A span that `behavior` removes is left out.
void ApplyBehavior(SplitBehavior behavior, std::vector<Span>& spans) {
  size_t kept = 0;
  bool previous_match = false;
  for (const Span span : spans) {
    bool join = false;
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (span.is_match) continue;
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = span.is_match && !previous_match;
        break;
      // A match is joined with the next span, unless that span is also a match.
      case SplitBehavior::kMergedWithNext:
        join = !span.is_match && previous_match;
        break;
      case SplitBehavior::kContiguous:
        join = span.is_match == previous_match;
        break;
    }
    previous_match = span.is_match;
    if (join && kept > 0) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
}

}  // namespace

void PreTokenizer::AddSplit(Regex pattern, SplitBehavior behavior, bool invert) {
  steps_.emplace_back(PatternSplit{std::move(pattern), behavior, invert, byte_alphabet_});
}

bool PreTokenizer::keeps_all() const {
  return std::ranges::all_of(steps_, [](const auto& step) {
    if (const auto* split = std::get_if<PatternSplit>(&step)) {
      return split->behavior != SplitBehavior::kRemoved;
    }
    return std::get<Normalizer>(step).max_shrink() == 1;
  });
}

absl::Status PreTokenizer::SplitWord(const PatternSplit& split, const TextPart& word,
                                     std::vector<TextPart>& out) {
  thread_local std::vector<Span> spans;  // scratch
  spans.clear();
  if (!split.in_byte_alphabet) {
    RETURN_IF_ERROR(FindSpans(split.pattern, split.invert, word.text, spans));
    ApplyBehavior(split.behavior, spans);
  } else {
    std::string characters;
    std::vector<size_t> byte_at;  // by position in `characters`
    for (size_t i = 0; i < word.text.size(); ++i) {
      characters.append(ByteCharacter(static_cast<uint8_t>(word.text[i])));
      byte_at.resize(characters.size(), i);
    }
    byte_at.push_back(word.text.size());
    RETURN_IF_ERROR(FindSpans(split.pattern, split.invert, characters, spans));
    ApplyBehavior(split.behavior, spans);
    for (Span& span : spans) {
      span.begin = byte_at[span.begin];
      span.end = byte_at[span.end];
    }
  }
  for (const Span& span : spans) out.push_back(word.Sub(span.begin, span.end));
  // The spans of a huge word are freed. They would otherwise stay allocated until the thread ends.
  if (spans.capacity() > 64 * 1024) std::vector<Span>().swap(spans);
  return absl::OkStatus();
}

absl::Status PreTokenizer::Split(const TextPart& part, SplitText& out) const {
  out.words.clear();
  out.rewritten.clear();
  if (part.text.empty()) return absl::OkStatus();
  out.words.push_back(part);
  std::vector<TextPart> next;
  for (const auto& step : steps_) {
    if (const auto* split = std::get_if<PatternSplit>(&step)) {
      next.clear();
      for (const TextPart& word : out.words) RETURN_IF_ERROR(SplitWord(*split, word, next));
      out.words.swap(next);
      continue;
    }
    for (TextPart& word : out.words) {
      ASSIGN_OR_RETURN(std::optional<AlignedText> edited, std::get<Normalizer>(step).Apply(word));
      if (!edited) continue;
      out.rewritten.push_back(*std::move(edited));
      word = out.rewritten.back().Part();
    }
    std::erase_if(out.words, [](const TextPart& word) { return word.text.empty(); });
  }
  return absl::OkStatus();
}

std::string_view Gpt2Pattern() {
  return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
}

}  // namespace quire::text
