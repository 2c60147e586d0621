#include "client/terminal_text.h"

#include <unistd.h>

#include <sys/ioctl.h>

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

ScreenSize TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

std::string WordWrap::Take(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = base::DecodeUtf8(text, i).length;
    const std::string_view character = text.substr(i, length);
    i += length;
    if (character == "\n") {
      PutWord(out);
      out += '\n';
      spaces_.clear();
      column_ = 0;
    } else if (character == " ") {
      PutWord(out);
      spaces_ += ' ';
    } else {
      word_ += character;
      if (++word_width_ >= columns_) PutWord(out);
    }
  }
  return out;
}

std::string WordWrap::Finish() {
  std::string out;
  PutWord(out);
  return out;
}

void WordWrap::PutWord(std::string& out) {
  if (word_.empty()) return;
  const int width = static_cast<int>(spaces_.size()) + word_width_;
  if (column_ > 0 && column_ + width > columns_) {
    out += '\n';
    column_ = word_width_;
  } else {
    out += spaces_;
    column_ += width;
  }
  out += word_;
  spaces_.clear();
  word_.clear();
  word_width_ = 0;
}

}  // namespace quire::client
