#include "text/tokenizer/normal_form.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utf8proc.h>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

// The limit of code points in one decomposition. The longest decomposition, that of U+FDFA, has 18.
constexpr utf8proc_ssize_t kMaxDecomposition = 32;

bool Composes(NormalForm form) { return form == NormalForm::kNfc || form == NormalForm::kNfkc; }
bool IsCompatible(NormalForm form) {
  return form == NormalForm::kNfkc || form == NormalForm::kNfkd;
}

// Returns a byte b such that `form` changes no character whose first UTF-8 byte is below b.
uint8_t FirstChangedByte(NormalForm form) {
  return form == NormalForm::kNfc ? 0xCC : 0x80;  // 0xCC is the first byte of U+0300
}

utf8proc_option_t DecompositionOf(NormalForm form) {
  return static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE |
                                        (IsCompatible(form) ? UTF8PROC_COMPAT : 0));
}

// Returns true if normalization may change a text that contains `c`, for example if `c` is a
// combining mark. Returns false for most characters, since they neither decompose nor combine with
// the character before them.
bool MayChange(NormalForm form, char32_t c) {
  const auto code_point = static_cast<utf8proc_int32_t>(c);
  const int bound_class = utf8proc_get_property(code_point)->boundclass;
  if (bound_class != UTF8PROC_BOUNDCLASS_OTHER && bound_class != UTF8PROC_BOUNDCLASS_CONTROL) {
    return true;
  }
  utf8proc_int32_t part = 0;
  return utf8proc_decompose_char(code_point, &part, 1, DecompositionOf(form),
                                 /*last_boundclass=*/nullptr) != 1 ||
         part != code_point;
}

bool MayChange(NormalForm form, std::string_view text) {
  const uint8_t first_changed = FirstChangedByte(form);
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < first_changed) {
      ++i;
      continue;
    }
    const base::Utf8Char c = base::DecodeUtf8(text, i);
    if (MayChange(form, c.code_point)) return true;
    i += c.length;
  }
  return false;
}

struct Mark {
  utf8proc_int32_t code_point;
  utf8proc_propval_t combining_class;
  ByteRange origin;
};

// Normalizes a text grapheme by grapheme and records the origin of each grapheme. Characters that
// normalization reorders or composes with each other are always in the same grapheme, because
// grapheme boundaries (UAX #29) respect canonical equivalence.
class Writer {
 public:
  explicit Writer(NormalForm form) : form_(form) {}

  void Add(char32_t code_point, ByteRange origin) {
    utf8proc_int32_t parts[kMaxDecomposition];
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts, kMaxDecomposition,
                                DecompositionOf(form_), /*last_boundclass=*/nullptr);
    if (count < 1 || count > kMaxDecomposition) {  // happens in no known version of utf8proc
      AddPart(static_cast<utf8proc_int32_t>(code_point), origin);
      return;
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) AddPart(parts[i], origin);
  }

  AlignedText Finish() {
    Flush();
    return std::move(out_);
  }

 private:
  void AddPart(utf8proc_int32_t code_point, ByteRange origin) {
    // U+11A7 composes with nothing, but utf8proc 2.8 takes it for a Hangul final and loses it. So
    // U+11A7 is kept apart from the characters before it.
    constexpr utf8proc_int32_t kNoFinal = 0x11A7;
    if (!marks_.empty() &&
        (code_point == kNoFinal ||
         utf8proc_grapheme_break_stateful(marks_.back().code_point, code_point, &break_state_))) {
      Flush();
    }
    marks_.push_back({code_point, utf8proc_get_property(code_point)->combining_class, origin});
  }

  void Flush() {
    if (marks_.empty()) return;
    const ByteRange all{marks_.front().origin.begin, marks_.back().origin.end};
    // The marks are sorted here, because utf8proc's own sorting takes quadratic time on a text that
    // consists only of marks.
    for (auto begin = marks_.begin(); begin != marks_.end();) {
      begin = std::find_if(begin, marks_.end(), [](const Mark& m) { return m.combining_class; });
      const auto end =
          std::find_if(begin, marks_.end(), [](const Mark& m) { return !m.combining_class; });
      std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
        return a.combining_class < b.combining_class;
      });
      begin = end;
    }
    code_points_.clear();
    for (const Mark& mark : marks_) code_points_.push_back(mark.code_point);
    if (Composes(form_) && code_points_.size() > 1) {
      const utf8proc_ssize_t length = utf8proc_normalize_utf32(
          code_points_.data(), static_cast<utf8proc_ssize_t>(code_points_.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      if (length > 0) code_points_.resize(static_cast<size_t>(length));
    }
    std::string bytes;
    for (const utf8proc_int32_t code_point : code_points_) {
      base::AppendUtf8(static_cast<char32_t>(code_point), bytes);
    }
    out_.Append(bytes, all);
    marks_.clear();
    break_state_ = 0;
  }

  const NormalForm form_;
  std::vector<Mark> marks_;  // of one grapheme
  utf8proc_int32_t break_state_ = 0;
  std::vector<utf8proc_int32_t> code_points_;  // scratch
  AlignedText out_;
};

}  // namespace

std::optional<AlignedText> ToNormalForm(NormalForm form, const TextPart& part) {
  if (!MayChange(form, part.text)) return std::nullopt;
  Writer writer(form);
  for (size_t i = 0; i < part.text.size() && !base::Interrupted();) {
    const base::Utf8Char c = base::DecodeUtf8(part.text, i);
    writer.Add(c.code_point, part.Origin(i, i + c.length));
    i += c.length;
  }
  AlignedText out = writer.Finish();
  if (out.text == part.text) return std::nullopt;
  return out;
}

}  // namespace quire::text
