#pragma once

// Python's view of UTF-8 text: code points, str methods, and repr() of literals.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/traced_text.h"

namespace quire::jinja {

// Returns the number of bytes of the code point at `at`; 1 for a byte that does not begin valid
// UTF-8.
size_t CodePointSize(std::string_view text, size_t at);
int64_t CountCodePoints(std::string_view text);
// Returns the code point at `at`; U+FFFD for a byte that does not begin valid UTF-8.
char32_t CodePointAt(std::string_view text, size_t at);
// Returns the byte offset of each code point, then the size of the text: CountCodePoints() + 1
// entries.
std::vector<size_t> CodePointOffsets(std::string_view text);

bool IsSpace(char32_t c);      // str.isspace of one character
bool IsPrintable(char32_t c);  // str.isprintable, approximate for rare characters

// These functions are str.lstrip and str.rstrip. They remove white space, or the characters in
// `chars`, from one end.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view StripLeft(std::string_view text, std::string_view chars);
std::string_view StripRight(std::string_view text, std::string_view chars);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleWords(std::string_view text);  // str.title()
bool IsUpper(std::string_view text);            // str.isupper
bool IsLower(std::string_view text);

// str.splitlines()
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends = false);
// Replaces `from` by `to`; at most `count` times, unless `count` is negative.
TracedText ReplaceAll(const TracedText& text, std::string_view from, const TracedText& to,
                      int64_t count);
TracedText EscapeHtml(const TracedText& text);

// FloatRepr and StringRepr return Python's repr() of a float and of a str.
std::string FloatRepr(double value);
std::string StringRepr(std::string_view text);

}  // namespace quire::jinja
