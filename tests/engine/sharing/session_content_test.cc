#include "engine/sharing/session_content.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SessionContentTest, EveryFirstPartIsThatOfTheIds) {
  SessionContent content;
  content.Append({1, 2, 3});
  content.Append({4});
  content.AppendGenerated({5, 6});
  const TokenIds ids = content.ToIds();
  EXPECT_THAT(ids, ElementsAre(1, 2, 3, 4, 5, 6));
  for (int64_t n = 0; n <= content.num_tokens(); ++n) {
    SessionContent first = content.First(n);
    EXPECT_EQ(first.num_tokens(), n);
    EXPECT_EQ(first.ToIds(), TokenIds(ids.begin(), ids.begin() + n));
    first.Append({9, 9});
    EXPECT_EQ(first.Ids(n, n + 2), TokenIds(2, 9)) << "the child goes on at its own end";
  }
  EXPECT_EQ(content.ToIds(), ids) << "what a child appends is not the parent's";
  EXPECT_THAT(content.Ids(2, 5), ElementsAre(3, 4, 5));
  EXPECT_THAT(content.Ids(3, 3), IsEmpty());
}

TEST(SessionContentTest, AForkIsComputedAsFarAsItsParent) {
  SessionContent content;
  content.Append({1, 2, 3, 4});
  content.NoteComputed(9);
  EXPECT_EQ(content.num_computed(), 4);
  content.Append({5, 6});
  content.NoteComputed(2);
  EXPECT_EQ(content.num_computed(), 4) << "never fewer";
  EXPECT_EQ(content.First(5).num_computed(), 4);
  EXPECT_EQ(content.First(2).num_computed(), 2);
}

// Messages at tokens [0, 3) with an answer up to 5, and further ones up to 8 without an answer.
SessionContent Conversation() {
  SessionContent content;
  content.Append({1, 2, 3, 4, 5, 6, 7, 8});
  SessionConversation conversation;
  conversation.messages = std::make_shared<const ChatMessages>(
      ChatMessages{{"u", "a"}, {"assistant", "b"}, {"u", "c"}});
  conversation.text = std::make_shared<const std::string>("ua assistantb uc");
  conversation.marks = {{.num_tokens = 3, .num_messages = 1, .text_bytes = 3, .answer_end = 5},
                        {.num_tokens = 8, .num_messages = 3, .text_bytes = 16, .answer_end = 8}};
  content.SetConversation(std::make_shared<const SessionConversation>(conversation));
  return content;
}

TEST(SessionContentTest, AForkIsAConversationAtAMarkAndInAnAnswer) {
  const SessionContent content = Conversation();
  for (const int64_t n : {1, 2, 6, 7}) {
    EXPECT_EQ(content.First(n).conversation(), nullptr) << n << " is inside a message";
  }
  for (const int64_t n : {3, 4, 5}) {
    const SessionContent first = content.First(n);
    ASSERT_NE(first.conversation(), nullptr) << n;
    ASSERT_EQ(first.conversation()->marks.size(), 1);
    EXPECT_EQ(first.conversation()->marks.back().answer_end, n);
    EXPECT_EQ(first.conversation()->messages, content.conversation()->messages) << "shared";
  }
  EXPECT_EQ(content.First(8).conversation(), content.conversation());
}

TEST(SessionContentTest, OtherTokensEndAConversationAndGeneratedOnesAnswerIt) {
  SessionContent content = Conversation();
  content.AppendGenerated({9, 9});
  ASSERT_NE(content.conversation(), nullptr);
  EXPECT_EQ(content.conversation()->marks.back().answer_end, 10);
  content.AppendGenerated({9});
  EXPECT_EQ(content.conversation()->marks.back().answer_end, 11);
  content.Append({1});
  EXPECT_EQ(content.conversation(), nullptr);
  content.AppendGenerated({1});
  EXPECT_EQ(content.conversation(), nullptr);
}

}  // namespace
}  // namespace quire::engine
