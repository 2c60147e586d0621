#include "engine/frontend/frontend.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/frontend/token_ids.h"
#include "engine/kv/block_manager.h"
#include "engine/request/answer_size.h"
#include "text/tokenizer/incremental_detokenizer.h"

namespace quire::engine {
namespace {

constexpr int32_t kMaxContinuations = 64;  // the same as the limit of samples

// The most tokens that end an answer of a beam search. With more, a step would look at more than
// kernels::kMostBest continuations.
constexpr int32_t kMaxBeamEnds = kernels::kMostBest / kMaxBeamWidth - 1;

// The bytes counted for each message after the first, in addition to role and content. A template
// may write about this many bytes around role and content.
constexpr int64_t kMessageBytes = 64;

// The most tokens, over all samples, that a request with a cache window may get in one message.
// Without a cache window, max_model_len bounds the answer.
constexpr int64_t kMaxAnswerTokens = int64_t{1} << 18;

// Returns a random seed, for a request that names none. The seed is reported to the client.
uint64_t DrawSeed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

}  // namespace

absl::Status Frontend::Prepare(Request& request) const {
  const GenerateParams& params = request.params;
  const int32_t most = MostRunning(params.limits, limits_.max_num_seqs);
  if (!params.continuations.empty()) {
    const int32_t limit = std::min(kMaxContinuations, most);
    if (std::ssize(params.continuations) > limit) {
      return absl::InvalidArgumentError(
          absl::StrFormat("continuations: want at most %d (64, max_num_seqs, and what the tenant "
                          "may run at once), got %d; send the others in another request, the "
                          "prompt stays cached",
                          limit, params.continuations.size()));
    }
    request.params.sampling.n = static_cast<int32_t>(params.continuations.size());
    request.params.sampling.best_of.reset();
    request.params.sampling.beam.reset();
  }
  RETURN_IF_ERROR(Validate(params.sampling, params.stop, params.output, params.cache, params.sched,
                           limits_.vocab_size));
  if (params.sampling.num_sequences() > most) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: want at most %s (%d) samples, got %d",
        params.sampling.beam      ? "sampling.beam.width"
        : params.sampling.best_of ? "sampling.best_of"
                                  : "sampling.n",
        most < limits_.max_num_seqs ? "what the tenant may run at once" : "max_num_seqs", most,
        params.sampling.num_sequences()));
  }
  if (!params.answers_at_once && params.sampling.num_samples() > params.sampling.n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.best_of: want n (%d) in a stream, which sends samples before the "
                        "best are known, got %d; use Generate",
                        params.sampling.n, *params.sampling.best_of));
  }
  request.allowed_ids = kernels::TokenSet(params.sampling.allowed_token_ids, limits_.vocab_size);
  request.stop_ids = kernels::TokenSet(params.stop.stop_token_ids, limits_.vocab_size);
  // The prompt of a session's turn has the tokens of the prefix already.
  const bool follows = request.prefix != nullptr && params.session.name.empty();
  ASSIGN_OR_RETURN(const std::optional<PromptText> prompt,
                   follows ? FillPromptAfterPrefix(request) : FillPrompt(request));
  RETURN_IF_ERROR(FillContinuations(request, prompt));
  RETURN_IF_ERROR(ResolveCacheWindow(request));
  RETURN_IF_ERROR(ResolveBeams(request));
  RETURN_IF_ERROR(ResolveLengths(request));
  RETURN_IF_ERROR(CheckLeastAnswer(request));
  request.seed = params.sampling.seed.value_or(DrawSeed());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Frontend::PromptText>> Frontend::FillPrompt(Request& request) const {
  const GenerateParams& params = request.params;
  std::optional<PromptText> prompt;
  if (const TokenIds* ids = std::get_if<TokenIds>(&params.prompt)) {
    RETURN_IF_ERROR(CheckPromptLength(params, std::ssize(*ids)));
    RETURN_IF_ERROR(CheckTokenIds("token_ids", *ids));
    request.prompt_ids = *ids;
    if (params.output.echo) FillEcho(request);
  } else {
    auto& [text, options] = prompt.emplace();
    if (const ChatMessages* messages = std::get_if<ChatMessages>(&params.prompt)) {
      ASSIGN_OR_RETURN(text::RenderedChat chat,
                       ApplyChatTemplate(*messages, /*add_generation_prompt=*/true));
      text = std::move(chat.text);
      options.contents = std::move(chat.contents);
      options.kind = text::InputKind::kChat;
    } else {
      text = std::get<std::string>(params.prompt);
    }
    RETURN_IF_ERROR(CheckFits("prompt", params, std::ssize(text)));
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens, Encode(text, options));
    request.prompt_ids = Ids(tokens);
    RETURN_IF_ERROR(CheckTokenIds("prompt: tokens", request.prompt_ids));
    if (params.output.echo) request.prompt_text = text;
  }
  // If the model has no BOS, an empty text has no tokens, and the model has nothing to continue.
  if (request.prompt_ids.empty()) {
    return absl::InvalidArgumentError("prompt: want at least one token, got an empty prompt");
  }
  return prompt;
}

int64_t Frontend::LongestOf(const GenerateParams& params) const {
  return params.cache.window_tokens > 0 ? kMaxStreamTokens : limits_.max_model_len;
}

absl::Status Frontend::CheckPromptLength(const GenerateParams& params, int64_t prompt_len) const {
  const int64_t longest = LongestOf(params);
  if (prompt_len < longest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "prompt: want at most %d tokens (%s %d less one to generate), got %d", longest - 1,
      params.cache.window_tokens > 0 ? "a stream's limit" : "max_model_len", longest, prompt_len));
}

absl::Status Frontend::CheckFits(const std::string& field, const GenerateParams& params,
                                 int64_t num_bytes) const {
  const int64_t most_bytes = LongestOf(params) * tokenizer_.max_token_bytes();
  if (most_bytes == 0 || num_bytes <= most_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: want at most %d bytes, since no token has more than %d and %d tokens fit, got %d", field,
      most_bytes, tokenizer_.max_token_bytes(), LongestOf(params), num_bytes));
}

// Sets prompt_text to the text that Tokenizer::Decode returns, without the bytes of an unfinished
// last character. Sets prompt_rest to these bytes.
void Frontend::FillEcho(Request& request) const {
  text::IncrementalDetokenizer detokenizer(tokenizer_, request.params.output.skip_special_tokens);
  request.prompt_text.clear();
  for (const int32_t id : request.prompt_ids) request.prompt_text += detokenizer.Push(id);
  if (tokenizer_.strips_leading_space() && request.prompt_text.starts_with(' ')) {
    request.prompt_text.erase(0, 1);
  }
  request.prompt_rest = detokenizer.pending();
}

absl::Status Frontend::FillContinuations(Request& request,
                                         const std::optional<PromptText>& prompt) const {
  const auto& given = request.params.continuations;
  request.continuation_ids.clear();
  int64_t bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string field = absl::StrFormat("continuations[%d]", i);
    TokenIds ids;
    if (const TokenIds* taken = std::get_if<TokenIds>(&given[i])) {
      ids = *taken;
    } else {
      const std::string& text = std::get<std::string>(given[i]);
      RETURN_IF_ERROR(CheckFits(field, request.params, std::ssize(text)));
      bytes += static_cast<int64_t>(text.size() + (prompt ? prompt->text.size() : 0));
      if (bytes > limits_.max_prompt_bytes) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: want at most %d bytes (max_prompt_bytes) to tokenize, the prompt "
                            "counted with each "
                            "text; send fewer, or prompt and continuations as token_ids",
                            field, limits_.max_prompt_bytes));
      }
      ASSIGN_OR_RETURN(ids, EncodeContinuation(field, text, request.prompt_ids, prompt));
    }
    if (ids.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: want at least one token, got none", field));
    }
    RETURN_IF_ERROR(CheckTokenIds(field.c_str(), ids));
    request.continuation_ids.push_back(std::move(ids));
  }
  return absl::OkStatus();
}

absl::Status Frontend::ResolveCacheWindow(Request& request) const {
  const CacheParams& cache = request.params.cache;
  request.cache_window = {};
  if (cache.window_tokens == 0) return absl::OkStatus();
  if (request.is_scoring()) {
    return absl::InvalidArgumentError(
        "cache.window_tokens: want 0 where continuations are scored, which keep all they follow");
  }
  if (!limits_.no_cache_window.empty()) {
    return absl::InvalidArgumentError("cache.window_tokens: want 0, since " +
                                      limits_.no_cache_window);
  }
  if (cache.window_tokens <= limits_.block_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cache.window_tokens: want more than a block of %d tokens, got %d",
                        limits_.block_size, cache.window_tokens));
  }
  const CacheWindow window =
      CacheWindow::Of(cache.sink_tokens, cache.window_tokens, limits_.block_size);
  if (window.capacity() > limits_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache.window_tokens: want sink_tokens + window_tokens, each in whole blocks of %d, to be "
        "at most max_model_len (%d), got %d + %d",
        limits_.block_size, limits_.max_model_len, window.sinks, window.window));
  }
  const int32_t n = request.params.sampling.num_samples();
  if (window.MostHeld() * n > limits_.cache_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache.window_tokens: want (sink_tokens + 2 x window_tokens) x n, each in whole blocks of "
        "%d, to fit the KV cache of %d tokens, got (%d + 2 x %d) x %d",
        limits_.block_size, limits_.cache_tokens, window.sinks, window.window, n));
  }
  const int64_t quota = request.params.limits.max_blocks;
  if (quota > 0 && window.MostHeld() * n > quota * limits_.block_size) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "max_blocks: want (sink_tokens + 2 x window_tokens) x n to fit the %d blocks of %d tokens "
        "that the tenant may hold, got (%d + 2 x %d) x %d",
        quota, limits_.block_size, window.sinks, window.window, n));
  }
  request.cache_window = window;
  return absl::OkStatus();
}

absl::Status Frontend::ResolveBeams(Request& request) const {
  request.num_candidates = 0;
  if (!request.has_beams()) return absl::OkStatus();
  const GenerateParams& params = request.params;
  if (!params.answers_at_once) {
    return absl::InvalidArgumentError(
        "sampling.beam: want it absent in a stream, since beams are answers only at the end; use "
        "Generate");
  }
  if (!limits_.no_beams.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.beam: want it absent here, since ", limits_.no_beams));
  }
  if (const int32_t width = params.sampling.beam->width; width > limits_.most_together) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sampling.beam.width: want at most %d, for which the KV cache has room in the windows of "
        "the model's layers beside what may be pinned, got %d; serve with a larger --kv_cache_mib "
        "or --max_num_seqs, or a smaller --max_pinned_share",
        limits_.most_together, width));
  }
  // Each token that may end an answer may end all beams at once, and still others must go on.
  std::vector<int32_t> ends = params.stop.stop_token_ids;
  if (!params.stop.ignore_eos) {
    const std::span<const int32_t> end_ids = tokenizer_.end_ids();
    ends.insert(ends.end(), end_ids.begin(), end_ids.end());
  }
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  const auto num_ends = static_cast<int32_t>(ends.size());
  if (num_ends > kMaxBeamEnds) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "stop.stop_token_ids: want at most %d tokens that end an answer with sampling.beam, the "
        "model's own included, got %d",
        kMaxBeamEnds, num_ends));
  }
  request.num_candidates = params.sampling.beam->width * std::max(2, 1 + num_ends);
  return absl::OkStatus();
}

absl::StatusOr<TokenIds> Frontend::EncodeContinuation(
    const std::string& field, const std::string& text, const TokenIds& prompt_ids,
    const std::optional<PromptText>& prompt) const {
  const text::EncodeOptions options =
      prompt ? prompt->options : text::EncodeOptions{.kind = text::InputKind::kPart};
  ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                   tokenizer_.Encode(prompt ? prompt->text + text : text, options));
  TokenIds whole = Ids(tokens);
  if (!prompt) return whole;
  std::optional<TokenIds> behind = IdsBehind(tokenizer_.frame(), prompt_ids, whole);
  if (!behind) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: want a text whose tokens begin where the prompt's end, but one spans the border; move "
        "white space from the prompt's end to the continuation, or send token_ids",
        field));
  }
  return *std::move(behind);
}

absl::Status Frontend::ResolveLengths(Request& request) const {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt_ids.size());
  RETURN_IF_ERROR(CheckPromptLength(request.params, prompt_len));
  const bool stream = request.cache_window.on();
  const int64_t longest = LongestOf(request.params);
  const char* const name = stream ? "a stream's limit" : "max_model_len";
  const int64_t context_left = longest - prompt_len;
  const StopParams& stop = request.params.stop;
  const auto& resume = request.params.resume;
  // Returns the error for a stream that ran with more tokens than fit here, if the request resumes
  // one and says so.
  const auto check_resolved = [&](const char* where, int64_t room, int64_t left) {
    if (!resume || !resume->max_tokens_is_resolved || *stop.max_tokens <= left) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("resume_resolved.max_tokens: the stream ran with %d tokens, %s of %d "
                        "leaves %d here, so its "
                        "end could differ",
                        *stop.max_tokens, where, room, left));
  };
  RETURN_IF_ERROR(check_resolved(name, longest, context_left));
  // The output ends at `given` tokens; absent: where context or cache end. There must be room for
  // `least`, which `field` asks for.
  std::optional<int64_t> given;
  const char* field = "prompt";
  int64_t least = 1;
  if (request.is_scoring()) {
    for (const TokenIds& ids : request.continuation_ids) {
      given = std::max(given.value_or(0), std::ssize(ids));
    }
    field = "continuations";
  } else if (stop.max_tokens.has_value() && *stop.max_tokens <= context_left) {
    given = stop.max_tokens;
    field = "stop.max_tokens";
  } else if (stop.min_tokens > 0) {
    least = stop.min_tokens;
    field = "stop.min_tokens";
  }
  least = given.value_or(least);
  if (least > context_left) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want at most %d tokens (%s %d less the prompt's %d tokens), got %d",
                        field, context_left, name, longest, prompt_len, least));
  }
  const int32_t n = request.params.sampling.num_sequences();
  if (stream) {
    const bool at_once = request.params.answers_at_once;
    const int64_t most = at_once ? std::min(context_left, kMaxAnswerTokens / n) : context_left;
    const int64_t asked = std::max<int64_t>(stop.max_tokens.value_or(least), least);
    if (at_once && asked > most) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: want at most %d tokens of each sample in an answer that is one message, got %d; "
          "use GenerateStream",
          stop.max_tokens ? "stop.max_tokens" : field, most, asked));
    }
    request.max_tokens = static_cast<int32_t>(given.value_or(most));
    return absl::OkStatus();
  }
  // The samples, or the beams, of one request must be able to run side by side.
  const int64_t num_blocks = limits_.cache_tokens / limits_.block_size;
  const auto left_of = [&](int64_t blocks) {
    return MaxNewTokens(blocks, limits_.block_size, prompt_len, n);
  };
  const int64_t cache_left = left_of(num_blocks);
  RETURN_IF_ERROR(check_resolved("the KV cache", limits_.cache_tokens, cache_left));
  if (least > cache_left) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: want prompt + max_tokens x n to fit the KV cache of %d tokens, got %d + %d x %d",
        field, limits_.cache_tokens, prompt_len, least, n));
  }
  // The blocks of named prefixes stay. Those of its own prefix, or session, serve the request.
  const int64_t pinned = limits_.num_pinned_blocks ? limits_.num_pinned_blocks() : 0;
  const int64_t of_prefix =
      request.prefix == nullptr ? 0 : std::ssize(request.prefix->ids) / limits_.block_size;
  const int64_t shared = std::max(of_prefix, request.num_kept_blocks);
  int64_t left_now = left_of(num_blocks - std::max(int64_t{0}, pinned - shared));
  if (least > left_now) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: want prompt + max_tokens x n to fit what named prefixes leave of the "
                        "KV cache of %d blocks, of which they hold %d, got %d + %d x %d tokens",
                        field, num_blocks, pinned, prompt_len, least, n));
  }
  if (const int64_t quota = request.params.limits.max_blocks; quota > 0) {
    const int64_t left_of_quota = left_of(quota);
    if (least > left_of_quota) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "max_blocks: want prompt + max_tokens x n to fit the %d blocks of %d tokens that the "
          "tenant may hold, got %d + %d x %d tokens",
          quota, limits_.block_size, prompt_len, least, n));
    }
    left_now = std::min(left_now, left_of_quota);
  }
  request.max_tokens = static_cast<int32_t>(given.value_or(std::min(context_left, left_now)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<text::EncodedToken>> Frontend::Encode(
    std::string_view text, const text::EncodeOptions& options) const {
  if (static_cast<int64_t>(text.size()) > limits_.max_prompt_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text: want at most %d bytes (max_prompt_bytes), got %d",
                        limits_.max_prompt_bytes, text.size()));
  }
  return tokenizer_.Encode(text, options);
}

absl::StatusOr<text::RenderedChat> Frontend::ApplyChatTemplate(const ChatMessages& messages,
                                                               bool add_generation_prompt) const {
  if (chat_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "chat: ", limits_.no_chat.empty() ? "this model has no chat template" : limits_.no_chat,
        "; send text or token_ids"));
  }
  if (messages.empty()) {
    return absl::InvalidArgumentError("chat.messages: want at least one message, got none");
  }
  int64_t bytes = 0;
  for (const text::ChatMessage& message : messages) {
    bytes += std::ssize(message.role) + std::ssize(message.content) + kMessageBytes;
  }
  bytes -= kMessageBytes;  // a single message counts only its text
  if (bytes > limits_.max_prompt_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chat.messages: want at most %d bytes (max_prompt_bytes) of roles and contents, %d more "
        "for each message after the first, got %d",
        limits_.max_prompt_bytes, kMessageBytes, bytes));
  }
  absl::StatusOr<text::RenderedChat> prompt = chat_->Render(messages, add_generation_prompt);
  if (prompt.ok()) {
    // A content that looks like the prefix is none.
    const size_t own_bytes =
        prompt->contents.empty() ? prompt->text.size() : prompt->contents.front().begin;
    const size_t before = prompt->text.size();
    prompt->text = tokenizer_.frame().BeginChat(std::move(prompt->text), own_bytes);
    const auto num_added = static_cast<uint32_t>(prompt->text.size() - before);
    for (text::ByteRange& range : prompt->contents) {
      range = {range.begin + num_added, range.end + num_added};
    }
    return prompt;
  }
  // The error message comes from the template itself (raise_exception), or tells why the template
  // failed.
  return absl::Status(prompt.status().code(),
                      absl::StrCat("chat.messages: ", prompt.status().message()));
}

absl::StatusOr<TokenIds> Frontend::TokenizeChat(const ChatMessages& messages,
                                                bool add_generation_prompt) const {
  ASSIGN_OR_RETURN(text::RenderedChat chat, ApplyChatTemplate(messages, add_generation_prompt));
  ASSIGN_OR_RETURN(
      const std::vector<text::EncodedToken> tokens,
      Encode(chat.text, {.kind = text::InputKind::kChat, .contents = std::move(chat.contents)}));
  return Ids(tokens);
}

absl::StatusOr<std::string> Frontend::Decode(const TokenIds& ids, bool skip_special_tokens) const {
  RETURN_IF_ERROR(CheckTokenIds("token_ids", ids));
  int64_t bytes = 0;
  for (const int32_t id : ids) bytes += std::ssize(tokenizer_.TokenBytes(id));
  if (bytes > limits_.max_prompt_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_ids: want ids whose text has at most %d bytes (max_prompt_bytes), "
                        "got %d",
                        limits_.max_prompt_bytes, bytes));
  }
  return tokenizer_.Decode(ids, skip_special_tokens);
}

absl::Status Frontend::CheckTokenIds(const char* field, const TokenIds& ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limits_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s[%d]: want 0..%d, got %d", field, i, limits_.vocab_size - 1, ids[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
