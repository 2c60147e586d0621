#include "client/terminal_text.h"

#include "base/utf8.h"

namespace quire::client {

std::string ForTerminal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(text, i);
    // Controls, among them those of C1, which some terminals obey; and marks that turn the line.
    const bool is_command = c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0) ||
                            (c.code_point >= 0x200b && c.code_point <= 0x200f) ||
                            (c.code_point >= 0x2028 && c.code_point <= 0x202e) ||
                            (c.code_point >= 0x2066 && c.code_point <= 0x2069);
    base::AppendUtf8(is_command ? U'?' : c.code_point, out);
    i += c.length;
  }
  return out;
}

std::string Cut(std::string_view line, int columns) {
  size_t end = 0;
  for (int i = 0; i < columns && end < line.size(); ++i) end += base::DecodeUtf8(line, end).length;
  return std::string(line.substr(0, end));
}

std::string Padded(std::string_view line, int columns) {
  size_t end = 0;
  int width = 0;
  for (; width < columns && end < line.size(); ++width) end += base::DecodeUtf8(line, end).length;
  // By hand, because the width of a format counts bytes.
  return std::string(line.substr(0, end)).append(static_cast<size_t>(columns - width), ' ');
}

}  // namespace quire::client
