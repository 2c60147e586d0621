#include "text/tokenizer/regex.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire::text {
namespace {

using base::ToAbsl;

constexpr size_t kMaxPatternBytes = 64 * 1024;

// What one search may take for a text of n bytes: kMinSteps + kStepsPerByte x n steps and, where
// the interpreter runs, kMinHeapBytes + kHeapPerByte x n bytes. A pattern of classes takes a few
// steps for each byte of a run and no memory. The fixed parts leave room for patterns that repeat
// groups on texts of ordinary words.
constexpr uint64_t kMinSteps = 1'000'000;
constexpr uint64_t kStepsPerByte = 64;
constexpr uint64_t kMinHeapBytes = 16 << 20;
constexpr uint64_t kHeapPerByte = 16;

// The contents of the classes that replace \s, \S and \w. PCRE2's own classes differ: its \s also
// matches U+180E, and its \w does not match marks.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{"
    "205f}\\x{3000}";
constexpr std::string_view kNotSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{"
    "10ffff}";
constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";

absl::Status Refuse(std::string_view pattern, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("regex \"", ToAbsl(pattern), "\": ", ToAbsl(why)));
}

// Returns `pattern` in PCRE2's syntax.
absl::StatusOr<std::string> Translate(std::string_view pattern) {
  std::string out;
  out.reserve(pattern.size() * 2);
  bool in_class = false;
  size_t class_start = 0;
  // The number of inner classes that are open inside the outer class. In Oniguruma, the members of
  // the inner classes belong to the outer class. So the result has only the outer brackets.
  int num_inner = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      std::string_view set;
      switch (escaped) {
        case 's':
          set = kSpaces;
          break;
        case 'S':
          set = kNotSpaces;
          break;
        case 'w':
          set = kWord;
          break;
        case 'W':
          if (in_class) return Refuse(pattern, "\\W inside a character class is not supported");
          absl::StrAppend(&out, "[^", ToAbsl(kWord), "]");
          continue;
        case 'h':
        case 'H':
        case 'R':
        case 'X':
          return Refuse(pattern, absl::StrCat("\\", std::string(1, escaped), " is not supported"));
        default:
          out.append({c, escaped});
          continue;
      }
      if (in_class) {
        out.append(set);
      } else {
        absl::StrAppend(&out, "[", ToAbsl(set), "]");
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + 1;
      if (class_start < pattern.size() && pattern[class_start] == '^') ++class_start;
    } else if (in_class && c == ']' && num_inner > 0) {
      --num_inner;
      continue;
    } else if (in_class && c == ']' && i > class_start) {
      in_class = false;
    } else if (in_class && c == '[') {
      const std::string_view rest = pattern.substr(i + 1);
      const size_t close = rest.find(":]", 1);
      if (rest.starts_with(':') && close != std::string_view::npos) {
        out.append(pattern.substr(i, close + 3));  // [:alpha:]
        i += close + 2;
        continue;
      }
      // Refuses an inner class that begins with "[^", "[-" or "[]". Without its brackets, such a
      // class would have another meaning.
      if (rest.empty() || rest[0] == '^' || rest[0] == '-' || rest[0] == ']') {
        return Refuse(pattern, "this character class inside a character class is not supported");
      }
      ++num_inner;
      continue;
    } else if (num_inner > 0 && c == '-' && i + 1 < pattern.size() && pattern[i + 1] == ']') {
      return Refuse(pattern, "this character class inside a character class is not supported");
    } else if (in_class && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      return Refuse(pattern, "the intersection of character classes (&&) is not supported");
    }
    out.push_back(c);
  }
  return out;
}

struct Deleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using MatchData = std::unique_ptr<pcre2_match_data, Deleter>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter>;

// Find reads only one pair of offsets, so all patterns can share match data of this size.
MatchData MakeMatchData() { return MatchData(pcre2_match_data_create(1, nullptr)); }

// Returns this thread's match context, with the limits for a text of `num_bytes`.
pcre2_match_context* ThreadContext(uint64_t num_bytes) {
  thread_local const MatchContext context(pcre2_match_context_create(nullptr));
  const auto limit = [](uint64_t value) {
    return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX));
  };
  pcre2_set_match_limit(context.get(), limit(kMinSteps + kStepsPerByte * num_bytes));
  pcre2_set_heap_limit(context.get(), limit((kMinHeapBytes + kHeapPerByte * num_bytes) / 1024));
  return context.get();
}

absl::Status TooCostly() {
  return absl::InvalidArgumentError(
      "text: want words that the model's pattern for splitting text can tell apart, but one is too "
      "long for it; put spaces or line breaks into it, or send token_ids");
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }

  pcre2_code* code;
  bool has_jit = false;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Create(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex: want at most ", kMaxPatternBytes, " bytes, got ", pattern.size()));
  }
  ASSIGN_OR_RETURN(const std::string translated, Translate(pattern));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &error_offset, nullptr);
  if (compiled == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Refuse(pattern, reinterpret_cast<const char*>(message));
  }
  auto code = std::make_unique<Code>(compiled);
  code->has_jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

std::string Regex::Quote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x80 || (byte >= '0' && byte <= '9') ||
                       (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
    if (plain) {
      out.push_back(c);
    } else {
      absl::StrAppend(&out, "\\x{", absl::Hex(byte), "}");
    }
  }
  return out;
}

absl::StatusOr<std::optional<Regex::Match>> Regex::Find(std::string_view text, size_t from) const {
  thread_local const MatchData jit_data = MakeMatchData();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_context* context = ThreadContext(text.size());
  pcre2_match_data* data = jit_data.get();
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->has_jit) {
    rc = pcre2_jit_match(code_->code, subject, text.size(), from, 0, data, context);
  }
  // Without a JIT, or when the JIT's stack is too small, the interpreter is used. It keeps its
  // frames on the heap, in the match data, which is therefore freed after each search.
  MatchData heap_data;
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    heap_data = MakeMatchData();
    data = heap_data.get();
    rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     data, context);
  }
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) return TooCostly();
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  // \K in a lookahead can put the start of a match after its end. Such a match is unusable.
  if (offsets[0] > offsets[1] || offsets[0] < from) return TooCostly();
  return Match{.begin = offsets[0], .end = offsets[1]};
}

}  // namespace quire::text
