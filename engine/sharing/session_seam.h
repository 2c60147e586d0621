#pragma once

// Continues the tokens of a session with what a client sends.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/frontend/frontend.h"
#include "engine/sharing/session_content.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Constant after construction, so thread-safe. Runs on a frontend thread.
//
// Token ids are added as given. A text is tokenized behind the session's last tokens, so that it
// gets the tokens that it would have in the middle of a text. New messages are rendered together
// with the earlier ones. If the result begins with the text that the session has, generated text
// included, only the rest is tokenized. Otherwise, for example if the template drops the thoughts
// of earlier answers, all of it is tokenized, and the session keeps the common beginning. What
// follows the tokens of a named prefix at once is joined to it as a request's prompt is; see
// Frontend::EncodeAfterPrefix.
class SessionSeam {
 public:
  // `frontend` and `tokenizer` must outlive this. A session may have max_model_len - 1 tokens, so
  // that one can be generated.
  SessionSeam(const Frontend& frontend, const text::Tokenizer& tokenizer, int64_t max_model_len,
              int32_t block_size = 16)
      : frontend_(frontend),
        tokenizer_(tokenizer),
        max_model_len_(max_model_len),
        block_size_(block_size) {}

  int32_t block_size() const { return block_size_; }

  struct Extended {
    SessionContent content;
    int64_t kept_tokens = 0;  // the tokens of `before` that `content` begins with
  };

  // If `generates`, a turn follows: an answer to a conversation begins, and `given` may be empty.
  // Returns InvalidArgument if the result is too long, or if `given` cannot follow the session: a
  // text behind a conversation, or messages behind tokens that are no conversation.
  absl::StatusOr<Extended> Extend(const SessionContent& before, const PromptContent& given,
                                  bool generates) const;

  // Returns the content of which `copy` is what comes behind `prefix`, an empty content or the
  // tokens of a prefix alone. Renders the messages. Returns InvalidArgument for a copy that no
  // session can have had.
  absl::StatusOr<SessionContent> Restore(SessionContent prefix, const SessionCopy& copy) const;

 private:
  // Returns InvalidArgument unless one token can be generated behind the content.
  absl::Status CheckLength(const char* field, const SessionContent& content) const;
  absl::StatusOr<Extended> ExtendWithText(const SessionContent& before,
                                          const std::string& text) const;
  absl::StatusOr<Extended> ExtendWithIds(const SessionContent& before, const TokenIds& ids) const;
  absl::StatusOr<Extended> ExtendWithNothing(const SessionContent& before) const;
  absl::StatusOr<Extended> ExtendWithMessages(const SessionContent& before,
                                              const ChatMessages& messages, bool generates) const;
  // Adds what comes first behind a named prefix, by the rules of such prompts.
  absl::StatusOr<Extended> ExtendPrefix(const SessionContent& before, const PromptContent& given,
                                        bool generates) const;
  // Returns the tokens of `text`, of which the tokens of `before` come first. `contents` are ranges
  // of `text` (text::EncodeOptions).
  absl::StatusOr<TokenIds> EncodeBehind(const SessionContent& before, std::string_view text,
                                        std::span<const text::ByteRange> contents = {}) const;
  // Returns the text of generated tokens, with or without special tokens.
  std::string TextOf(const TokenIds& ids, bool skip_special_tokens) const;

  const Frontend& frontend_;
  const text::Tokenizer& tokenizer_;
  const int64_t max_model_len_;
  const int32_t block_size_;
};

}  // namespace quire::engine
