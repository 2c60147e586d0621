#pragma once

// The content of a session: its token ids, and the conversation that they are, if they are one.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request/prefix_content.h"
#include "engine/request/request.h"
#include "engine/request/sessions.h"

namespace quire::engine {

// The messages of a session, rendered by the chat template. All parts are shared with the contents
// that were forked from this one, and never change.
struct SessionConversation {
  // A place at which the tokens are the rendering of the first messages.
  struct Mark {
    int64_t num_tokens = 0;
    size_t num_messages = 0;
    size_t text_bytes = 0;
    // The tokens [num_tokens, answer_end) were generated as the answer to the messages. Equal to
    // num_tokens if there is no answer.
    int64_t answer_end = 0;
    bool begins_answer = false;  // the text ends where an answer begins

    bool has_answer() const { return answer_end > num_tokens; }
  };

  // The messages, answers included, up to the last mark. The answer after the last mark is only in
  // the tokens: the next turn decodes it.
  std::shared_ptr<const ChatMessages> messages;
  std::shared_ptr<const std::string> text;  // rendered, with the generated text of all answers
  std::vector<Mark> marks;                  // ascending; the last one has all messages and text
};

// A value. Copies share the tokens, so a copy costs a few bytes for each append and turn.
class SessionContent {
 public:
  SessionContent() = default;
  // Begins with the tokens of a named prefix, which the session keeps when the prefix ends.
  // `owns_prefix`: the session's tenant is the prefix's owner, and may read it.
  SessionContent(std::shared_ptr<const PrefixContent> prefix, bool owns_prefix);

  int64_t num_tokens() const { return num_tokens_; }
  // The number of leading tokens whose K and V some turn has computed.
  int64_t num_computed() const { return num_computed_; }
  // The prefix with which the session began; null if there is none.
  const std::shared_ptr<const PrefixContent>& prefix() const { return prefix_; }
  bool owns_prefix() const { return owns_prefix_; }
  // True if the tokens are those of the prefix, and nothing follows them yet.
  bool is_bare_prefix() const {
    return prefix_ != nullptr && chunks_.size() == 1 && num_tokens_ == std::ssize(prefix_->ids);
  }
  // The memory of ids, messages and text, in bytes, as if none were shared.
  int64_t num_bytes() const;
  void NoteComputed(int64_t num_tokens);
  // Null if the tokens are not a conversation.
  const std::shared_ptr<const SessionConversation>& conversation() const { return conversation_; }
  void SetConversation(std::shared_ptr<const SessionConversation> conversation) {
    conversation_ = std::move(conversation);
  }

  // True if there is no prefix, or if all its tokens come first.
  bool begins_with_prefix() const;

  TokenIds ToIds() const { return Ids(0, num_tokens_); }
  TokenIds Ids(int64_t begin, int64_t end) const;

  // Adds tokens. The tokens are then no conversation, unless SetConversation is called.
  void Append(TokenIds ids);
  // Adds a turn's output. In a conversation, it is an answer or the rest of one.
  void AppendGenerated(TokenIds ids);
  // Returns what comes behind the prefix, with which the session must begin, without the hash.
  SessionCopy Copy() const;
  // Returns the first `num_tokens` tokens, 0..num_tokens(). They are a conversation if they end at
  // a mark or inside an answer.
  SessionContent First(int64_t num_tokens) const;

 private:
  struct Chunk {
    std::shared_ptr<const TokenIds> ids;
    int64_t num_used = 0;  // only the first tokens of `ids` belong to the session
  };

  std::vector<Chunk> chunks_;
  int64_t num_tokens_ = 0;
  int64_t num_computed_ = 0;
  std::shared_ptr<const PrefixContent> prefix_;
  bool owns_prefix_ = false;
  std::shared_ptr<const SessionConversation> conversation_;
};

}  // namespace quire::engine
