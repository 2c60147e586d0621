#include "client/terminal_text.h"

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

}  // namespace
}  // namespace quire::client
