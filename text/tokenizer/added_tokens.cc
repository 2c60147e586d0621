#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/regex.h"

namespace quire::text {
namespace {

// Returns the start of the character before `position`. `text` must be valid UTF-8.
size_t PreviousCharacter(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80);
  return position;
}

// True if the character at `position` matches \w of Rust's regex crate, which Hugging Face uses.
bool IsWordCharacter(std::string_view text, size_t position) {
  static const Regex* const word = [] {
    absl::StatusOr<Regex> regex =
        Regex::Create("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]");
    QUIRE_CHECK(regex.ok()) << regex.status().ToString();
    return new Regex(*std::move(regex));
  }();
  const std::string_view character = text.substr(position, base::DecodeUtf8(text, position).length);
  return word->Find(character, 0).value().has_value();  // one class of one character costs nothing
}

// True if the text has a character that is neither of a word nor white space. SentencePiece writes
// a space as U+2581.
bool HasSign(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(text, at);
    const bool is_space = base::IsWhiteSpace(c.code_point) || c.code_point == 0x2581;
    if (!is_space && !IsWordCharacter(text, at)) return true;
    at += c.length;
  }
  return false;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordCharacter(text, PreviousCharacter(text, begin))) return false;
  return end == text.size() || !IsWordCharacter(text, end);
}

}  // namespace

AddedTokens::AddedTokens() : nodes_(1) {}

int32_t AddedTokens::Child(int32_t node, uint8_t byte) const {
  const auto& children = nodes_[static_cast<size_t>(node)].children;
  const auto it = std::lower_bound(children.begin(), children.end(), byte,
                                   [](const auto& child, uint8_t b) { return child.first < b; });
  return it != children.end() && it->first == byte ? it->second : -1;
}

void AddedTokens::Add(AddedToken token) {
  if (token.content.empty()) return;
  int32_t node = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = Child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[static_cast<size_t>(node)].children;
      children.insert(
          std::lower_bound(children.begin(), children.end(), std::pair(byte, int32_t{0})),
          {byte, next});
    }
    node = next;
  }
  if (nodes_[static_cast<size_t>(node)].token >= 0) return;
  nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(tokens_.size());
  is_first_byte_[static_cast<uint8_t>(token.content[0])] = true;
  token.is_control = token.special || HasSign(token.content);
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::LongestAt(const TextPart& part, size_t position,
                                         std::span<const ByteRange> contents) const {
  const std::string_view text = part.text;
  const AddedToken* longest = nullptr;
  int32_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    node = Child(node, static_cast<uint8_t>(text[i]));
    if (node < 0) break;
    const int32_t index = nodes_[static_cast<size_t>(node)].token;
    if (index < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    const bool is_literal = token.is_control && Overlaps(contents, part.Origin(position, i + 1));
    if (!is_literal) longest = &token;
  }
  return longest;
}

void AddedTokens::Split(const TextPart& part, bool parse_special,
                        std::span<const ByteRange> contents, std::vector<Part>& parts) const {
  const std::string_view text = part.text;
  parts.clear();
  size_t covered = 0;
  for (size_t i = 0; !empty() && i < text.size();) {
    const AddedToken* token =
        is_first_byte_[static_cast<uint8_t>(text[i])] ? LongestAt(part, i, contents) : nullptr;
    if (token == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    size_t end = i + token->content.size();
    i = end;
    // A match that is rejected below stays plain text as a whole: it is not searched for shorter
    // tokens.
    if (token->special && !parse_special) continue;
    if (token->single_word && !StandsAlone(text, begin, end)) continue;
    if (token->strip_left) {
      while (begin > covered) {
        const size_t previous = PreviousCharacter(text, begin);
        if (!base::IsWhiteSpace(base::DecodeUtf8(text, previous).code_point)) break;
        begin = previous;
      }
    }
    while (token->strip_right && end < text.size()) {
      const base::Utf8Char c = base::DecodeUtf8(text, end);
      if (!base::IsWhiteSpace(c.code_point)) break;
      end += c.length;
    }
    if (begin > covered) parts.push_back({covered, begin, -1});
    parts.push_back({begin, end, token->id});
    covered = i = end;
  }
  if (covered < text.size()) parts.push_back({covered, text.size(), -1});
}

}  // namespace quire::text
