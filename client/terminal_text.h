#pragma once

// Text for a terminal. Names come from other callers of the server, so a command prints none of
// them as it is.

#include <string>
#include <string_view>

namespace quire::client {

// Returns `text` on one line, without characters that a terminal takes for commands.
std::string ForTerminal(std::string_view text);

// Returns the first `columns` characters of `line`, none of which is wider than one column.
std::string Cut(std::string_view line, int columns);

// Returns the first `columns` characters of `line`, and spaces up to that width.
std::string Padded(std::string_view line, int columns);

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

// Returns the size of the terminal that is standard output, or of 80 x 24 where there is none.
ScreenSize TerminalSize();

// Breaks lines between words, in text that comes in pieces. A word is held back until it is whole,
// unless it is longer than a line.
class WordWrap {
 public:
  explicit WordWrap(int columns) : columns_(columns) {}

  // Returns what can be shown after `text`, none of whose characters is wider than one column.
  std::string Take(std::string_view text);
  // Returns the rest.
  std::string Finish();

 private:
  void PutWord(std::string& out);

  const int columns_;
  int column_ = 0;      // of the cursor
  std::string spaces_;  // before word_
  std::string word_;
  int word_width_ = 0;
};

}  // namespace quire::client
