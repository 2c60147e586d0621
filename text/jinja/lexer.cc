#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c); }

// Replaces \r\n and \r by \n and removes one newline at the very end, as Jinja2 does before lexing.
std::string Normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(Data());
    Add(TokenType::kEnd, "end of template");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kVariable, kBlock, kComment };

  absl::Status Error(int line, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat("line %d: %s", line, what));
  }
  void Add(TokenType type, std::string_view text) {
    tokens_.push_back({.type = type, .text = std::string(text), .line = line_});
  }
  // Moves the position to `to`, and counts the lines that it passes.
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }
  bool StartsWith(size_t at, std::string_view what) const {
    return source_.substr(at, what.size()) == what;
  }
  size_t SkipSpace(size_t at) const {
    while (at < source_.size() && IsSpace(CodePointAt(source_, at)))
      at += CodePointSize(source_, at);
    return at;
  }

  // Reads the text up to the next tag, trims the text if the tag requires it, and then reads the
  // tag.
  absl::Status Data() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == kNone || open + 1 >= source_.size()) {
        open = kNone;
        break;
      }
      const char next = source_[open + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++open;
    }
    if (open == kNone) {
      if (at_ < source_.size()) Add(TokenType::kData, source_.substr(at_));
      Advance(source_.size());
      return absl::OkStatus();
    }
    const Tag tag = source_[open + 1] == '{'   ? Tag::kVariable
                    : source_[open + 1] == '%' ? Tag::kBlock
                                               : Tag::kComment;
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const size_t inside = open + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    const std::string_view text =
        Trimmed(source_.substr(at_, open - at_), sign, tag != Tag::kVariable);
    if (!text.empty()) Add(TokenType::kData, text);
    Advance(open);
    if (tag == Tag::kComment) return Comment(inside);
    if (tag == Tag::kBlock && IsRaw(inside)) return Raw(inside);
    Add(tag == Tag::kVariable ? TokenType::kVariableBegin : TokenType::kBlockBegin,
        source_.substr(open, 2));
    Advance(inside);
    return Inside(tag == Tag::kVariable ? "}}" : "%}");
  }

  // Returns the trimmed form of `text`, which is the text before a tag.
  std::string_view Trimmed(std::string_view text, char sign, bool may_strip_line) const {
    if (sign == '-') return StripRight(text);
    if (sign == '+' || !may_strip_line) return text;
    const size_t newline = text.rfind('\n');
    if (newline == kNone && !line_starting_) return text;
    const size_t line_begin = newline == kNone ? 0 : newline + 1;
    return StripLeft(text.substr(line_begin)).empty() ? text.substr(0, line_begin) : text;
  }

  // Returns the position after the end of a tag, or kNone if no tag ends at `at`. If the end has a
  // '-', the white space after the tag is skipped. If the end of a block or comment has neither '-'
  // nor '+', one newline after the tag is skipped.
  size_t TagEnd(size_t at, std::string_view end) const {
    if (StartsWith(at, "-") && StartsWith(at + 1, end)) return SkipSpace(at + 1 + end.size());
    if (end == "}}") return StartsWith(at, end) ? at + 2 : kNone;
    if (StartsWith(at, "+") && StartsWith(at + 1, end)) return at + 1 + end.size();
    if (!StartsWith(at, end)) return kNone;
    return at + end.size() + (StartsWith(at + end.size(), "\n") ? 1 : 0);
  }

  absl::Status Comment(size_t inside) {
    for (size_t at = source_.find("#}", inside); at != kNone; at = source_.find("#}", at + 1)) {
      const size_t sign = at > inside && (source_[at - 1] == '-' || source_[at - 1] == '+') ? 1 : 0;
      Advance(TagEnd(at - sign, "#}"));
      return absl::OkStatus();
    }
    return Error(line_, "missing end of comment tag");
  }

  bool IsRaw(size_t inside) const {
    const size_t name = SkipSpace(inside);
    if (!StartsWith(name, "raw")) return false;
    const size_t end = SkipSpace(name + 3);
    return StartsWith(end, "%}") || StartsWith(end, "-%}");
  }

  absl::Status Raw(size_t inside) {
    const int begin_line = line_;
    size_t end = SkipSpace(SkipSpace(inside) + 3);
    // Unlike other tags, {% raw %} keeps the newline after it.
    end = StartsWith(end, "-") ? SkipSpace(end + 3) : end + 2;
    Advance(end);
    for (size_t open = source_.find("{%", at_); open != kNone;
         open = source_.find("{%", open + 1)) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      const size_t name = SkipSpace(open + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (!StartsWith(name, "endraw")) continue;
      const size_t after = TagEnd(SkipSpace(name + 6), "%}");
      if (after == kNone) continue;
      const std::string_view text = Trimmed(source_.substr(at_, open - at_), sign, true);
      if (!text.empty()) Add(TokenType::kData, text);
      Advance(after);
      return absl::OkStatus();
    }
    return Error(begin_line, "missing end of raw directive");
  }

  // Reads the tokens of one {{ }} or {% %}.
  absl::Status Inside(std::string_view end) {
    std::string open_brackets;
    while (true) {
      Advance(SkipSpace(at_));
      if (at_ >= source_.size()) return Error(line_, "a tag is not closed");
      if (open_brackets.empty()) {
        if (const size_t after = TagEnd(at_, end); after != kNone) {
          Add(end == "}}" ? TokenType::kVariableEnd : TokenType::kBlockEnd, end);
          Advance(after);
          return absl::OkStatus();
        }
      }
      const char c = source_[at_];
      if (IsDigit(c)) {
        RETURN_IF_ERROR(Number());
      } else if (IsNameStart(c)) {
        size_t to = at_;
        while (to < source_.size() && IsNameChar(source_[to])) ++to;
        Add(TokenType::kName, source_.substr(at_, to - at_));
        Advance(to);
      } else if (c == '\'' || c == '"') {
        RETURN_IF_ERROR(String());
      } else {
        RETURN_IF_ERROR(Operator(&open_brackets));
      }
    }
  }

  // Reads digits with single underscores between them. Returns the position after the last digit.
  template <typename IsOne>
  size_t Digits(size_t at, IsOne is_one, std::string* digits) const {
    while (at < source_.size()) {
      if (is_one(source_[at])) {
        digits->push_back(source_[at++]);
      } else if (source_[at] == '_' && !digits->empty() && at + 1 < source_.size() &&
                 is_one(source_[at + 1])) {
        ++at;
      } else {
        break;
      }
    }
    return at;
  }

  absl::Status Number() {
    int base = 10;
    size_t at = at_;
    std::string digits;
    const char kind = at + 1 < source_.size()
                          ? absl::ascii_tolower(static_cast<unsigned char>(source_[at + 1]))
                          : '\0';
    if (source_[at] == '0' && (kind == 'x' || kind == 'o' || kind == 'b')) {
      base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
      at = Digits(
          at + 2,
          [base](char c) {
            const int digit = IsDigit(c) ? c - '0'
                              : absl::ascii_isxdigit(static_cast<unsigned char>(c))
                                  ? (c | 32) - 'a' + 10
                                  : 99;
            return digit < base;
          },
          &digits);
    } else {
      at = Digits(at, IsDigit, &digits);
      std::string fraction, exponent;
      size_t to = at;
      if (StartsWith(to, ".") && to + 1 < source_.size() && IsDigit(source_[to + 1])) {
        to = Digits(to + 1, IsDigit, &fraction);
      }
      if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
        size_t from = to + 1;
        std::string sign;
        if (StartsWith(from, "+") || StartsWith(from, "-")) sign = source_[from++];
        const size_t past = Digits(from, IsDigit, &exponent);
        if (!exponent.empty()) {
          exponent = sign + exponent;
          to = past;
        }
      }
      // Digits after a dot ("x.1.2") are a subscript, never a float.
      const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
      if (!after_dot && (!fraction.empty() || !exponent.empty())) {
        std::string text = digits;
        if (!fraction.empty()) text += "." + fraction;
        if (!exponent.empty()) text += "e" + exponent;
        Add(TokenType::kFloat, text);
        tokens_.back().number = std::strtod(text.c_str(), nullptr);
        Advance(to);
        return absl::OkStatus();
      }
    }
    if (digits.empty() ||
        (base == 10 && digits[0] == '0' && digits.find_first_not_of('0') != kNone)) {
      return Error(line_, "not a number");
    }
    Add(TokenType::kInteger, digits);
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().integer, base);
    if (result.ec != std::errc()) return Error(line_, "an integer does not fit in 64 bits");
    Advance(at);
    return absl::OkStatus();
  }

  absl::Status String() {
    const char quote = source_[at_];
    size_t close = at_ + 1;
    while (close < source_.size() && source_[close] != quote)
      close += source_[close] == '\\' ? 2 : 1;
    if (close >= source_.size()) return Error(line_, "a string is not closed");
    std::string text;
    RETURN_IF_ERROR(Unescape(source_.substr(at_ + 1, close - at_ - 1), &text));
    Add(TokenType::kString, text);
    Advance(close + 1);
    return absl::OkStatus();
  }

  // Resolves Python's escapes. An unknown escape stays as written.
  absl::Status Unescape(std::string_view raw, std::string* out) const {
    for (size_t i = 0; i < raw.size();) {
      if (raw[i] != '\\') {
        out->push_back(raw[i++]);
        continue;
      }
      // raw[i + 1] exists, because the scan for the closing quote skipped each backslash together
      // with the character after it.
      const char c = raw[i + 1];
      i += 2;
      static constexpr std::string_view kPlain = "\\'\"abfnrtv";
      static constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t plain = kPlain.find(c); plain != kNone) {
        out->push_back(kMeaning[plain]);
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t code = 0;
        const std::string_view hex = raw.substr(i, count);
        const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
        if (hex.size() != count || result.ec != std::errc() || result.ptr != hex.data() + count ||
            code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
          return Error(line_, absl::StrFormat("bad escape \\%c in a string", c));
        }
        base::AppendUtf8(code, *out);
        i += count;
      } else if (c >= '0' && c <= '7') {
        uint32_t code = static_cast<uint32_t>(c - '0');
        for (int n = 1; n < 3 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++n) {
          code = code * 8 + static_cast<uint32_t>(raw[i++] - '0');
        }
        base::AppendUtf8(code, *out);
      } else if (c == 'N') {
        return Error(line_, "the escape \\N{name} in a string is not supported");
      } else {
        out->push_back('\\');
        out->push_back(c);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Operator(std::string* open_brackets) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view op : kLong) {
      if (!StartsWith(at_, op)) continue;
      Add(TokenType::kOperator, op);
      Advance(at_ + op.size());
      return absl::OkStatus();
    }
    const char c = source_[at_];
    if (kShort.find(c) == kNone) {
      return Error(line_, absl::StrFormat("unexpected character '%s'",
                                          source_.substr(at_, CodePointSize(source_, at_))));
    }
    if (c == '(' || c == '[' || c == '{')
      open_brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open_brackets->empty()) return Error(line_, absl::StrFormat("unexpected '%c'", c));
      if (open_brackets->back() != c) {
        return Error(line_,
                     absl::StrFormat("unexpected '%c', expected '%c'", c, open_brackets->back()));
      }
      open_brackets->pop_back();
    }
    Add(TokenType::kOperator, source_.substr(at_, 1));
    Advance(at_ + 1);
    return absl::OkStatus();
  }

  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // at the start of the source or directly after a newline
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  const std::string normalized = Normalize(source);
  return Lexer(normalized).Run();
}

}  // namespace quire::jinja
