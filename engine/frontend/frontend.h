#pragma once

// Turns the request of a client into token ids that the scheduler can plan: renders the template,
// tokenizes and validates.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/request/request.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct FrontendLimits {
  int32_t vocab_size = 0;        // ids of the model; the tokenizer may have fewer ids, or more
  int64_t max_model_len = 0;     // prompt and generated tokens together
  int64_t max_prompt_bytes = 0;  // the most bytes of text to tokenize
  int64_t cache_tokens = 0;      // tokens for which the whole KV cache has room
  int32_t block_size = 0;
  int32_t max_num_seqs = 0;
  // The reason why the model's chat template cannot be used. Empty if it can, or if there is none.
  std::string no_chat = {};
  // The reason why no request may have a cache window. Empty if requests may have one.
  std::string no_cache_window;
  // The reason why no request may search with beams. Empty if requests may.
  std::string no_beams = {};
  // The most beams of one request for which the windows of the KV cache have room.
  int64_t most_together = std::numeric_limits<int32_t>::max();
  // Returns the number of blocks that named prefixes hold now. If empty, they hold none.
  std::function<int64_t()> num_pinned_blocks = {};
};

// The most tokens, prompt and output together, of a request with a cache window. The ids of all
// these tokens, up to 64 MiB, stay in host memory, since a preempted request computes all tokens
// again.
inline constexpr int64_t kMaxStreamTokens = int64_t{1} << 24;

// Constant after construction, so thread-safe. `tokenizer` and `chat` must outlive the Frontend.
// `chat` may be null.
class Frontend {
 public:
  Frontend(const text::Tokenizer& tokenizer, const text::ChatTemplate* chat,
           const FrontendLimits& limits)
      : tokenizer_(tokenizer), chat_(chat), limits_(limits) {}

  // Fills the members of `request` that follow from its params and, if it has one, its prefix. Sets
  // sampling.n of a scoring request to the number of continuations. An InvalidArgument names the
  // field and says what is wanted.
  //
  // The text of a continuation is tokenized together with the text of the prompt. The tokens of the
  // prompt are then removed from the front. The continuation is refused if the joint text does not
  // begin with the tokens of the prompt. After a prompt of token ids, the text is tokenized by
  // itself, without special tokens.
  //
  // The prompt of a request with a prefix follows the prefix. A text is tokenized together with the
  // prefix's text, and messages are rendered together with the prefix's messages. The tokens must
  // then begin with those of the prefix. Token ids follow any prefix. ResourceExhausted: named
  // prefixes hold too many blocks now.
  absl::Status Prepare(Request& request) const;

  // Returns the token ids of a named prefix. Those of messages are the ones with which the template
  // begins whatever message comes next. InvalidArgument if there are none, or more than a prompt
  // may have.
  absl::StatusOr<TokenIds> EncodePrefix(const PromptContent& given) const;

  // A prompt that follows a named prefix, tokenized.
  struct AfterPrefix {
    TokenIds ids;      // begin with those of the prefix
    std::string text;  // the text that was tokenized; empty if the prompt is token ids
    text::EncodeOptions options;
  };
  // Tokenizes `prompt` after a prefix. A conversation is rendered with the beginning of an answer
  // if `generates`. `params` tell how long the whole may be. `is_owner`: the caller may read the
  // prefix. Errors as of Prepare.
  absl::StatusOr<AfterPrefix> EncodeAfterPrefix(const PrefixContent& prefix,
                                                const PromptContent& prompt,
                                                const GenerateParams& params, bool is_owner,
                                                bool generates) const;

  // Returns PermissionDenied if the output shows the prompt and the caller may not read its prefix.
  static absl::Status CheckMayRead(bool is_owner, const OutputOptions& output);

  // Tokenizes `text`. Returns InvalidArgument if the text is longer than max_prompt_bytes, or the
  // tokenizer cannot split it.
  absl::StatusOr<std::vector<text::EncodedToken>> Encode(std::string_view text,
                                                         const text::EncodeOptions& options) const;
  // Returns the text of a conversation, which is tokenized as an input of the kind kChat: what the
  // template renders, and before it the BOS that the model wants there if the template does not
  // write it. Returns FailedPrecondition, with the reason, when there is no template.
  absl::StatusOr<text::RenderedChat> ApplyChatTemplate(const ChatMessages& messages,
                                                       bool add_generation_prompt) const;
  // Returns the tokens of a rendered conversation. Errors as of ApplyChatTemplate and Encode.
  absl::StatusOr<TokenIds> TokenizeChat(const ChatMessages& messages,
                                        bool add_generation_prompt) const;
  // Returns the text of `ids`. Returns InvalidArgument when an id is outside the vocabulary, or the
  // text is longer than max_prompt_bytes.
  absl::StatusOr<std::string> Decode(const TokenIds& ids, bool skip_special_tokens) const;
  // Returns InvalidArgument when an id is outside the model's vocabulary.
  absl::Status CheckTokenIds(const char* field, const TokenIds& ids) const;

 private:
  // Returns the most tokens that prompt and output may have together.
  int64_t LongestOf(const GenerateParams& params) const;
  absl::Status CheckPromptLength(const GenerateParams& params, int64_t prompt_len) const;
  // Called before a text is tokenized. Returns InvalidArgument if num_bytes is more than
  // LongestOf(params) tokens can hold.
  absl::Status CheckFits(const std::string& field, const GenerateParams& params,
                         int64_t num_bytes) const;
  // A prompt that is text, and the options with which it was tokenized.
  struct PromptText {
    std::string text;
    text::EncodeOptions options;
  };
  absl::StatusOr<std::optional<PromptText>> FillPrompt(Request& request) const;
  // FillPrompt for a request with a prefix.
  absl::StatusOr<std::optional<PromptText>> FillPromptAfterPrefix(Request& request) const;
  // Returns InvalidArgument that says where `whole`, the tokens of `text`, parts from the prefix.
  absl::Status PartsFromPrefix(const PrefixContent& prefix, bool is_owner, std::string_view text,
                               std::span<const text::EncodedToken> whole) const;
  void FillEcho(Request& request) const;
  absl::Status FillContinuations(Request& request, const std::optional<PromptText>& prompt) const;
  absl::StatusOr<TokenIds> EncodeContinuation(const std::string& field, const std::string& text,
                                              const TokenIds& prompt_ids,
                                              const std::optional<PromptText>& prompt) const;
  // Sets cache_window. Returns InvalidArgument if the model cannot have a cache window, or the
  // window does not fit the cache.
  absl::Status ResolveCacheWindow(Request& request) const;
  // Sets num_candidates of a beam search. Returns InvalidArgument if the server or the parameters
  // allow none.
  absl::Status ResolveBeams(Request& request) const;
  // Sets max_tokens: stop.max_tokens, or what context and cache leave if that is absent or more
  // than the context leaves. Returns InvalidArgument if prompt and output do not fit the context or
  // the cache, FailedPrecondition if the max_tokens of a resumed stream do not.
  absl::Status ResolveLengths(Request& request) const;

  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* const chat_;
  const FrontendLimits limits_;
};

}  // namespace quire::engine
