#include "client/terminal_text.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire::client {
namespace {

TEST(TerminalTextTest, NoNameCommandsTheTerminal) {
  EXPECT_EQ(ForTerminal("a\x1b[31m\n\x7f\xc2\x9b\xe2\x80\xae z\xff"), "a?[31m???? z\xef\xbf\xbd");
  EXPECT_EQ(ForTerminal("søk ▒"), "søk ▒");
}

TEST(TerminalTextTest, WidthsCountCharacters) {
  EXPECT_EQ(Cut("søk", 2), "sø");
  EXPECT_EQ(Cut("søk", 9), "søk");
  EXPECT_EQ(Padded("søk", 5), "søk  ");
  EXPECT_EQ(Padded("søk", 2), "sø");
  EXPECT_EQ(Padded("", 1), " ");
}

// Returns what is shown of `pieces` on lines of `columns`, each piece's part behind a "|".
std::string Wrapped(int columns, const std::vector<std::string>& pieces) {
  WordWrap wrap(columns);
  std::string out;
  for (const std::string& piece : pieces) out += "|" + wrap.Take(piece);
  return out + "|" + wrap.Finish();
}

TEST(WordWrapTest, BreaksBetweenWords) {
  EXPECT_EQ(Wrapped(10, {"a cat saw a dog"}), "|a cat saw\na| dog");
  EXPECT_EQ(Wrapped(5, {"a cat saw"}), "|a cat|\nsaw");
  EXPECT_EQ(Wrapped(9, {"a søk saw"}), "|a søk| saw");
}

TEST(WordWrapTest, AWordIsShownWhenItIsWhole) {
  EXPECT_EQ(Wrapped(10, {"a c", "at s", "aw", " a d", "og\n", "x"}), "|a| cat|| saw\na| dog\n||x");
}

TEST(WordWrapTest, KeepsLinesAndTheirSpaces) {
  EXPECT_EQ(Wrapped(10, {"ab\n  c d  \n\n e"}), "|ab\n  c d\n\n| e");
  EXPECT_EQ(Wrapped(4, {"abcdef", "gh i"}), "|abcd|\nefgh|\ni");
}

}  // namespace
}  // namespace quire::client
