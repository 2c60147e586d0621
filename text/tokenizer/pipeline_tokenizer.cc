#include "text/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/interrupt.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

// Replaces invalid UTF-8 by U+FFFD. Returns nothing when `text` is valid, as it nearly always is.
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

int64_t MaxTokenBytes(const TokenizerParts& parts) {
  const bool bounded = !parts.added_tokens.any_strips() &&
                       !parts.normalized_added_tokens.any_strips() &&
                       parts.pre_tokenizer.keeps_all() && parts.model->covers_all();
  if (!bounded) return 0;
  size_t longest = 0;
  for (const VocabularyEntry& entry : parts.vocabulary) {
    longest = std::max({longest, entry.bytes.size(), entry.piece.size()});
  }
  return static_cast<int64_t>(longest) * parts.normalizer.max_shrink();
}

// Returns by id which tokens are control tokens.
std::vector<bool> ControlIds(const TokenizerParts& parts) {
  std::vector<bool> ids(parts.vocabulary.size());
  for (size_t id = 0; id < ids.size(); ++id) ids[id] = parts.vocabulary[id].special;
  for (const AddedTokens* added : {&parts.added_tokens, &parts.normalized_added_tokens}) {
    for (const AddedToken& token : added->tokens()) {
      if (token.is_control && token.id >= 0 && token.id < std::ssize(ids)) ids[token.id] = true;
    }
  }
  return ids;
}

EncodedToken MakeToken(int32_t id, ByteRange range) {
  return {.id = id, .begin = range.begin, .end = range.end};
}

}  // namespace

struct PipelineTokenizer::Scratch {
  std::vector<AddedTokens::Part> normalized_parts;
  SplitText split;
  std::vector<WordToken> tokens;
};

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts)
    : parts_([&parts] {
        auto& ids = parts.end_ids;
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        return std::move(parts);
      }()),
      is_control_(ControlIds(parts_)),
      max_token_bytes_(MaxTokenBytes(parts_)) {}

absl::StatusOr<std::vector<EncodedToken>> PipelineTokenizer::Encode(
    std::string_view text, const EncodeOptions& options) const {
  std::vector<EncodedToken> out;
  out.reserve(text.size() / 4 + 2);
  const std::optional<AlignedText> clean = ReplaceInvalidUtf8(text);
  const TextPart whole = clean ? clean->Part() : TextPart{.text = text};
  std::vector<AddedTokens::Part> token_parts;
  Scratch scratch;
  parts_.added_tokens.Split(whole, options.parse_special_tokens, options.contents, token_parts);
  for (const AddedTokens::Part& part : token_parts) {
    if (part.id >= 0) {
      out.push_back(MakeToken(part.id, whole.Origin(part.begin, part.end)));
    } else {
      RETURN_IF_ERROR(EncodeBetweenTokens(whole.Sub(part.begin, part.end), options, scratch, out));
    }
  }
  parts_.frame.Put(options.kind, std::ssize(text), out);
  return out;
}

absl::Status PipelineTokenizer::EncodeBetweenTokens(const TextPart& part,
                                                    const EncodeOptions& options, Scratch& scratch,
                                                    std::vector<EncodedToken>& out) const {
  ASSIGN_OR_RETURN(const std::optional<AlignedText> normal, parts_.normalizer.Apply(part));
  const TextPart whole = normal ? normal->Part() : part;
  if (parts_.normalized_added_tokens.empty()) {
    return EncodeWords(whole, options.contents, scratch, out);
  }
  parts_.normalized_added_tokens.Split(whole, options.parse_special_tokens, options.contents,
                                       scratch.normalized_parts);
  for (const AddedTokens::Part& token : scratch.normalized_parts) {
    if (token.id >= 0) {
      out.push_back(MakeToken(token.id, whole.Origin(token.begin, token.end)));
    } else {
      RETURN_IF_ERROR(
          EncodeWords(whole.Sub(token.begin, token.end), options.contents, scratch, out));
    }
  }
  return absl::OkStatus();
}

bool PipelineTokenizer::IsForged(int32_t id, std::string_view text) const {
  return is_control_[static_cast<size_t>(id)] && Piece(id) == text;
}

absl::Status PipelineTokenizer::EncodeApart(const TextPart& text,
                                            std::span<const ByteRange> contents,
                                            std::vector<EncodedToken>& out) const {
  const size_t first = base::DecodeUtf8(text.text, 0).length;
  if (first == text.text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "literal_contents: want contents without the character \"", std::string(text.text),
        "\", which is a control token of this model that no other token can write"));
  }
  for (const TextPart& part : {text.Sub(0, first), text.Sub(first, text.text.size())}) {
    std::vector<WordToken> tokens;
    parts_.model->EncodeWord(part.text, tokens);
    for (const WordToken& token : tokens) {
      const TextPart covered = part.Sub(token.begin, token.end);
      const ByteRange origin = part.Origin(token.begin, token.end);
      if (IsForged(token.id, covered.text) && Overlaps(contents, origin)) {
        RETURN_IF_ERROR(EncodeApart(covered, contents, out));
      } else {
        out.push_back(MakeToken(token.id, origin));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeWords(const TextPart& part,
                                            std::span<const ByteRange> contents, Scratch& scratch,
                                            std::vector<EncodedToken>& out) const {
  RETURN_IF_ERROR(parts_.pre_tokenizer.Split(part, scratch.split));
  for (const TextPart& word : scratch.split.words) {
    if (base::Interrupted(std::ssize(word.text))) break;
    scratch.tokens.clear();
    parts_.model->EncodeWord(word.text, scratch.tokens);
    for (const WordToken& token : scratch.tokens) {
      const ByteRange origin = word.Origin(token.begin, token.end);
      const TextPart covered = word.Sub(token.begin, token.end);
      if (!contents.empty() && IsForged(token.id, covered.text) && Overlaps(contents, origin)) {
        RETURN_IF_ERROR(EncodeApart(covered, contents, out));
      } else {
        out.push_back(MakeToken(token.id, origin));
      }
    }
  }
  return absl::OkStatus();
}

const VocabularyEntry* PipelineTokenizer::Entry(int32_t id) const {
  return id >= 0 && id < vocab_size() ? &parts_.vocabulary[static_cast<size_t>(id)] : nullptr;
}

std::string_view PipelineTokenizer::TokenBytes(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry == nullptr ? std::string_view() : entry->bytes;
}

std::string_view PipelineTokenizer::Piece(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry == nullptr ? std::string_view() : entry->piece;
}

bool PipelineTokenizer::IsSpecial(int32_t id) const {
  const VocabularyEntry* entry = Entry(id);
  return entry != nullptr && entry->special;
}

}  // namespace quire::text
