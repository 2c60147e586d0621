#include "engine/tokenizer/pre_tokenizer.h"

#include <utility>

#include "base/utf8.h"
#include "engine/tokenizer/byte_alphabet.h"

namespace quire::engine {
namespace {

struct Span {
  Word word;
  bool is_match = false;
};

// Matches and the gaps between them, covering all of `text`.
void FindSpans(const Regex& pattern, bool invert, std::string_view text, std::vector<Span>& spans) {
  size_t covered = 0;
  for (size_t from = 0; from < text.size();) {
    Regex::Match match;
    if (pattern.Find(text, from, match) != Regex::Outcome::kMatch) break;
    if (match.begin == match.end) {  // an empty match splits, and the search goes on behind it
      if (match.begin > covered) spans.push_back({{covered, match.begin}, invert});
      covered = match.begin;
      if (match.begin == text.size()) break;
      from = match.begin + base::DecodeUtf8(text, match.begin).length;
      continue;
    }
    if (match.begin > covered) spans.push_back({{covered, match.begin}, invert});
    spans.push_back({{match.begin, match.end}, !invert});
    covered = from = match.end;
  }
  if (covered < text.size()) spans.push_back({{covered, text.size()}, invert});
}

void ApplyBehavior(SplitBehavior behavior, const std::vector<Span>& spans,
                   std::vector<Word>& words) {
  const size_t first = words.size();
  bool previous_match = false;
  for (const Span& span : spans) {
    const bool has_previous = words.size() > first;
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
      // A match takes what follows it, unless that is a match as well.
      case SplitBehavior::kMergedWithNext:
        join = !span.is_match && previous_match;
        break;
      case SplitBehavior::kContiguous:
        join = span.is_match == previous_match;
        break;
    }
    if (join && has_previous) {
      words.back().end = span.word.end;
    } else {
      words.push_back(span.word);
    }
    previous_match = span.is_match;
  }
}

}  // namespace

void PreTokenizer::AddSplit(Regex pattern, SplitBehavior behavior, bool invert) {
  steps_.push_back({std::move(pattern), behavior, invert, byte_alphabet_});
}

void PreTokenizer::AddByteAlphabet() { byte_alphabet_ = true; }

void PreTokenizer::SplitWord(const Step& step, std::string_view text, Word word,
                             std::vector<Word>& out) {
  const std::string_view bytes = text.substr(word.begin, word.end - word.begin);
  std::vector<Span> spans;
  const size_t first = out.size();
  if (!step.in_byte_alphabet) {
    FindSpans(step.pattern, step.invert, bytes, spans);
    ApplyBehavior(step.behavior, spans, out);
  } else {
    std::string characters;
    std::vector<size_t> byte_at;  // by position in `characters`
    for (size_t i = 0; i < bytes.size(); ++i) {
      characters.append(ByteCharacter(static_cast<uint8_t>(bytes[i])));
      byte_at.resize(characters.size(), i);
    }
    byte_at.push_back(bytes.size());
    FindSpans(step.pattern, step.invert, characters, spans);
    ApplyBehavior(step.behavior, spans, out);
    for (size_t i = first; i < out.size(); ++i) {
      out[i] = {byte_at[out[i].begin], byte_at[out[i].end]};
    }
  }
  for (size_t i = first; i < out.size(); ++i) {
    out[i].begin += word.begin;
    out[i].end += word.begin;
  }
}

void PreTokenizer::Split(std::string_view text, std::vector<Word>& words) const {
  words.clear();
  if (text.empty()) return;
  words.push_back({0, text.size()});
  std::vector<Word> next;
  for (const Step& step : steps_) {
    next.clear();
    for (const Word& word : words) SplitWord(step, text, word, next);
    words.swap(next);
  }
}

std::string_view Gpt2Pattern() {
  return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
}

}  // namespace quire::engine
