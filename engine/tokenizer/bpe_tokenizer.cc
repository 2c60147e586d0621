#include "engine/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace quire::engine {
namespace {

// Nothing when `text` is valid UTF-8, as it nearly always is.
std::optional<AlignedText> ReplaceInvalidUtf8(std::string_view text) {
  if (base::IsValidUtf8(text)) return std::nullopt;
  const TextPart part{.text = text};
  AlignedText clean;
  for (size_t i = 0; i < text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(text, i);
    if (c.valid) {
      clean.AppendFrom(part, i, i + c.length);
    } else {
      clean.Append("\xEF\xBF\xBD", part.Origin(i, i + c.length));
    }
    i += c.length;
  }
  return clean;
}

EncodedToken MakeToken(int32_t id, ByteRange range) {
  return {.id = id, .begin = range.begin, .end = range.end};
}

}  // namespace

struct BpeTokenizer::Scratch {
  std::vector<AddedTokens::Part> normalized_parts;
  std::vector<Word> words;
  std::vector<BpeToken> tokens;
};

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : parts_([&parts] {
        auto& ids = parts.end_ids;
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        return std::move(parts);
      }()) {}

std::vector<EncodedToken> BpeTokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<EncodedToken> out;
  out.reserve(text.size() / 4 + 2);
  if (options.add_special_tokens) {
    for (const int32_t id : parts_.prefix_ids) out.push_back({.id = id});
  }
  const std::optional<AlignedText> clean = ReplaceInvalidUtf8(text);
  const TextPart whole = clean ? clean->Part() : TextPart{.text = text};
  std::vector<AddedTokens::Part> token_parts;
  Scratch scratch;
  parts_.added_tokens.Split(whole.text, options.parse_special_tokens, token_parts);
  for (const AddedTokens::Part& part : token_parts) {
    if (part.id >= 0) {
      out.push_back(MakeToken(part.id, whole.Origin(part.begin, part.end)));
    } else {
      EncodeBetweenTokens(whole.Sub(part.begin, part.end), options.parse_special_tokens, scratch,
                          out);
    }
  }
  if (options.add_special_tokens) {
    const auto end = static_cast<int64_t>(text.size());
    for (const int32_t id : parts_.suffix_ids) out.push_back({.id = id, .begin = end, .end = end});
  }
  return out;
}

void BpeTokenizer::EncodeBetweenTokens(const TextPart& part, bool parse_special, Scratch& scratch,
                                       std::vector<EncodedToken>& out) const {
  const std::optional<AlignedText> normal = parts_.normalizer.Apply(part);
  const TextPart whole = normal ? normal->Part() : part;
  if (parts_.normalized_added_tokens.empty()) {
    EncodeWords(whole, scratch, out);
    return;
  }
  parts_.normalized_added_tokens.Split(whole.text, parse_special, scratch.normalized_parts);
  for (const AddedTokens::Part& token : scratch.normalized_parts) {
    if (token.id >= 0) {
      out.push_back(MakeToken(token.id, whole.Origin(token.begin, token.end)));
    } else {
      EncodeWords(whole.Sub(token.begin, token.end), scratch, out);
    }
  }
}

void BpeTokenizer::EncodeWords(const TextPart& part, Scratch& scratch,
                               std::vector<EncodedToken>& out) const {
  const std::optional<AlignedText> edited = parts_.part_edits.Apply(part);
  const TextPart whole = edited ? edited->Part() : part;
  parts_.pre_tokenizer.Split(whole.text, scratch.words);
  for (const Word& word : scratch.words) {
    scratch.tokens.clear();
    parts_.model.EncodeWord(whole.text.substr(word.begin, word.end - word.begin), scratch.tokens);
    for (const BpeToken& token : scratch.tokens) {
      out.push_back(
          MakeToken(token.id, whole.Origin(word.begin + token.begin, word.begin + token.end)));
    }
  }
}

const VocabularyEntry* BpeTokenizer::Entry(int32_t id) const {
  return id >= 0 && id < vocab_size() ? &parts_.vocabulary[static_cast<size_t>(id)] : nullptr;
}

std::string_view BpeTokenizer::TokenBytes(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry == nullptr ? std::string_view() : entry->bytes;
}

std::string_view BpeTokenizer::Piece(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry == nullptr ? std::string_view() : entry->piece;
}

bool BpeTokenizer::IsSpecial(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry != nullptr && entry->special;
}

}  // namespace quire::engine
