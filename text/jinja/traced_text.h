#pragma once

// Text of which each byte knows if it came from the content of a message. So a prompt can be
// tokenized without reading what users wrote as control tokens.

#include <string>
#include <string_view>
#include <utility>

namespace quire::jinja {

// A byte that is copied keeps its mark, whatever filter or method copies it. Where the bytes of a
// result cannot be traced one by one, as those of an upper case, all are content if any byte of the
// source is. Equality, order and hashes do not see the marks. Numbers have none.
struct TracedText {
  std::string bytes;
  std::string marks;  // by byte: 1 for content, else 0; empty if no byte is content

  TracedText() = default;
  // A text of the template, implicit as most are.
  TracedText(std::string text) : bytes(std::move(text)) {}
  TracedText(const char* text) : bytes(text) {}
  // A text whose bytes are all content, or none is.
  TracedText(std::string text, bool is_content)
      : bytes(std::move(text)), marks(is_content ? bytes.size() : 0, '\1') {}

  bool has_content() const { return marks.find('\1') != std::string::npos; }

  // Appends a text of the template.
  void AppendPlain(std::string_view text) {
    bytes.append(text);
    if (!marks.empty()) marks.resize(bytes.size());
  }
  // Appends the bytes [begin, begin + size) of `text`, or those that are left.
  void Append(const TracedText& text, size_t begin = 0, size_t size = std::string::npos) {
    if (marks.empty() && !text.marks.empty()) marks.resize(bytes.size());
    bytes.append(text.bytes, begin, size);
    if (!text.marks.empty()) marks.append(text.marks, begin, size);
    if (!marks.empty()) marks.resize(bytes.size());
  }
  TracedText Sub(size_t begin, size_t size = std::string::npos) const {
    TracedText part;
    part.Append(*this, begin, size);
    return part;
  }
};

}  // namespace quire::jinja
