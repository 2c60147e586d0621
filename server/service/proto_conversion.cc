#include "server/service/proto_conversion.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "base/utf8.h"

namespace quire::server {
namespace {

// Converts a count in a message to int32, the type of the engine's counts. Returns InvalidArgument
// if `value` is too large.
absl::StatusOr<int32_t> ToCount(std::string_view field, uint32_t value) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  if (value <= kMax) return static_cast<int32_t>(value);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want at most %d, got %d", field, kMax, value));
}

absl::StatusOr<engine::BeamParams> BeamOf(const v1::BeamParams& in) {
  using EarlyStopping = engine::BeamParams::EarlyStopping;
  engine::BeamParams out;
  ASSIGN_OR_RETURN(out.width, ToCount("sampling.beam.width", in.width()));
  if (in.has_length_penalty()) out.length_penalty = in.length_penalty();
  if (in.has_num_return()) {
    ASSIGN_OR_RETURN(out.num_return, ToCount("sampling.beam.num_return", in.num_return()));
  }
  switch (in.early_stopping()) {
    case v1::BeamParams::EARLY_STOPPING_UNSPECIFIED:
    case v1::BeamParams::EARLY_STOPPING_HEURISTIC:
      return out;
    case v1::BeamParams::EARLY_STOPPING_ALWAYS:
      out.early_stopping = EarlyStopping::kAlways;
      return out;
    case v1::BeamParams::EARLY_STOPPING_NEVER:
      out.early_stopping = EarlyStopping::kNever;
      return out;
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "sampling.beam.early_stopping: want one of HEURISTIC, ALWAYS, NEVER, got %d",
          static_cast<int>(in.early_stopping())));
  }
}

absl::StatusOr<engine::SamplingParams> SamplingOf(const v1::SamplingParams& in) {
  engine::SamplingParams out;
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_k()) {
    ASSIGN_OR_RETURN(out.top_k, ToCount("sampling.top_k", in.top_k()));
  }
  if (in.has_typical_p()) out.typical_p = in.typical_p();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  if (in.has_penalty_last_n()) {
    ASSIGN_OR_RETURN(out.penalty_last_n, ToCount("sampling.penalty_last_n", in.penalty_last_n()));
  }
  if (in.has_seed()) out.seed = in.seed();
  if (in.has_n()) {
    ASSIGN_OR_RETURN(out.n, ToCount("sampling.n", in.n()));
  }
  if (in.has_beam()) {
    ASSIGN_OR_RETURN(out.beam, BeamOf(in.beam()));
  }
  if (in.has_best_of()) {
    ASSIGN_OR_RETURN(out.best_of, ToCount("sampling.best_of", in.best_of()));
  }
  for (const auto& [token_id, bias] : in.logit_bias()) {
    out.logit_bias.push_back({.token_id = token_id, .bias = bias});
  }
  // A protobuf map has no fixed order. Sorting the entries makes the engine's errors deterministic.
  std::ranges::sort(out.logit_bias, {}, &engine::LogitBias::token_id);
  out.allowed_token_ids.assign(in.allowed_token_ids().begin(), in.allowed_token_ids().end());
  return out;
}

absl::StatusOr<engine::StopParams> StopOf(const v1::StopParams& in) {
  engine::StopParams out;
  if (in.has_max_tokens()) {
    ASSIGN_OR_RETURN(out.max_tokens, ToCount("stop.max_tokens", in.max_tokens()));
  }
  if (in.has_min_tokens()) {
    ASSIGN_OR_RETURN(out.min_tokens, ToCount("stop.min_tokens", in.min_tokens()));
  }
  out.stop.assign(in.stop().begin(), in.stop().end());
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  if (in.has_include_stop()) out.include_stop = in.include_stop();
  if (in.has_ignore_eos()) out.ignore_eos = in.ignore_eos();
  return out;
}

absl::StatusOr<engine::OutputOptions> OutputOf(const v1::OutputOptions& in) {
  engine::OutputOptions out;
  if (in.has_text()) out.text = in.text();
  if (in.has_token_ids()) out.token_ids = in.token_ids();
  if (in.has_top_logprobs()) {
    ASSIGN_OR_RETURN(out.top_logprobs, ToCount("output.top_logprobs", in.top_logprobs()));
  }
  if (in.has_prompt_logprobs()) {
    ASSIGN_OR_RETURN(out.prompt_logprobs, ToCount("output.prompt_logprobs", in.prompt_logprobs()));
  }
  if (in.has_echo()) out.echo = in.echo();
  if (in.has_usage_per_chunk()) out.usage_per_chunk = in.usage_per_chunk();
  if (in.has_skip_special_tokens()) out.skip_special_tokens = in.skip_special_tokens();
  if (in.has_logprob_text()) out.logprob_text = in.logprob_text();
  if (in.has_resumable()) out.resumable = in.resumable();
  out.token_ids = out.token_ids || out.resumable;
  return out;
}

absl::StatusOr<engine::CacheParams> CacheOf(const v1::CacheParams& in) {
  engine::CacheParams out;
  if (in.has_salt()) out.salt = in.salt();
  if (in.has_bypass_read()) out.bypass_read = in.bypass_read();
  if (in.has_bypass_write()) out.bypass_write = in.bypass_write();
  if (in.has_window_tokens()) {
    ASSIGN_OR_RETURN(out.window_tokens, ToCount("cache.window_tokens", in.window_tokens()));
  }
  if (in.has_sink_tokens()) {
    ASSIGN_OR_RETURN(out.sink_tokens, ToCount("cache.sink_tokens", in.sink_tokens()));
  }
  return out;
}

engine::SchedParams SchedOf(const v1::SchedParams& in) {
  engine::SchedParams out;
  if (in.has_priority()) out.priority = in.priority();
  if (in.has_tenant()) out.tenant = in.tenant();
  return out;
}

// A `rank` of 0 was not asked for, and then the bytes were not either.
template <typename Out>
void Write(const engine::TokenLogprob& in, int32_t rank, const engine::Engine& engine, Out& out) {
  out.set_token_id(in.token_id);
  out.set_logprob(in.logprob);
  if (rank == 0) return;
  out.set_rank(static_cast<uint32_t>(rank));
  out.set_text(std::string(engine.TokenBytes(in.token_id)));
}

void Append(const std::vector<engine::PositionLogprobs>& in, const engine::Engine& engine,
            google::protobuf::RepeatedPtrField<v1::PositionLogprobs>& out) {
  for (const engine::PositionLogprobs& position : in) {
    v1::PositionLogprobs& added = *out.Add();
    Write(position.chosen, position.rank, engine, *added.mutable_chosen());
    int32_t rank = 0;  // the list is in the order of ranks
    for (const engine::TokenLogprob& token : position.top) {
      if (position.rank > 0) ++rank;
      Write(token, rank, engine, *added.add_top());
    }
  }
}

std::optional<v1::StoppedBy> ToStoppedBy(const engine::TokenDelta& delta) {
  v1::StoppedBy stop;
  if (!delta.stop_string.empty()) {
    stop.set_text(delta.stop_string);
  } else if (delta.stop_token_id.has_value()) {
    stop.set_token_id(*delta.stop_token_id);
  } else {
    return std::nullopt;
  }
  return stop;
}

v1::SamplingParams SamplingToProto(const engine::SamplingParams& in) {
  v1::SamplingParams out;
  out.set_temperature(in.temperature);
  out.set_top_k(ToWireCount(in.top_k));
  out.set_typical_p(in.typical_p);
  out.set_top_p(in.top_p);
  out.set_min_p(in.min_p);
  out.set_presence_penalty(in.presence_penalty);
  out.set_frequency_penalty(in.frequency_penalty);
  out.set_repetition_penalty(in.repetition_penalty);
  if (in.penalty_last_n >= 0) out.set_penalty_last_n(ToWireCount(in.penalty_last_n));
  if (in.seed) out.set_seed(*in.seed);
  out.set_n(ToWireCount(in.n));
  if (in.best_of) out.set_best_of(ToWireCount(*in.best_of));
  return out;
}

uint64_t ToWireTotal(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); }

}  // namespace

absl::StatusOr<engine::ChatMessages> FromProto(v1::ChatMessages chat) {
  if (chat.messages().empty()) {
    return absl::InvalidArgumentError("chat.messages: want at least one");
  }
  return ToMessages(std::move(chat));
}

engine::ChatMessages ToMessages(v1::ChatMessages chat) {
  engine::ChatMessages messages;
  messages.reserve(static_cast<size_t>(chat.messages_size()));
  for (v1::ChatMessage& message : *chat.mutable_messages()) {
    messages.push_back({.role = std::move(*message.mutable_role()),
                        .content = std::move(*message.mutable_content()),
                        .literal = chat.literal_contents()});
  }
  return messages;
}

namespace {

// Takes the text, the ids or the conversation out of `request`. `which` is the case of the oneof
// that has them, and `field` its name.
template <typename Request, typename Case>
absl::StatusOr<engine::PromptContent> TextIdsOrChat(Request& request, Case which,
                                                    const char* field) {
  switch (which) {
    case Request::kText:
      return engine::PromptContent(std::move(*request.mutable_text()));
    case Request::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      if (ids.empty()) return absl::InvalidArgumentError("token_ids.ids: want at least one");
      return engine::PromptContent(engine::TokenIds(ids.begin(), ids.end()));
    }
    case Request::kChat: {
      ASSIGN_OR_RETURN(engine::ChatMessages messages,
                       FromProto(std::move(*request.mutable_chat())));
      return engine::PromptContent(std::move(messages));
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: want one of text, token_ids, chat", field));
  }
}

template <typename Request>
absl::StatusOr<engine::PromptContent> PromptOf(Request& request) {
  return TextIdsOrChat(request, request.prompt_case(), "prompt");
}

// Returns nullopt if the request resumes nothing.
absl::StatusOr<std::optional<engine::ResumeParams>> ResumeOf(const v1::GenerateRequest& request) {
  if (request.resume_token_ids().empty()) {
    if (request.resume_text_bytes().empty() && !request.has_resume_model_digest() &&
        !request.has_resume_numerics() && !request.has_resume_resolved()) {
      return std::nullopt;
    }
    return absl::InvalidArgumentError(
        "resume_token_ids: want one entry for each sample beside the other fields of a resume, got "
        "none");
  }
  engine::ResumeParams resume;
  for (const v1::TokenIds& sample : request.resume_token_ids()) {
    resume.token_ids.emplace_back(sample.ids().begin(), sample.ids().end());
  }
  resume.text_bytes.assign(request.resume_text_bytes().begin(), request.resume_text_bytes().end());
  resume.model_digest = request.resume_model_digest();
  resume.numerics = request.resume_numerics();
  return resume;
}

}  // namespace

absl::StatusOr<engine::PromptContent> TakeContent(v1::CreatePrefixRequest& request) {
  return TextIdsOrChat(request, request.content_case(), "content");
}

absl::Status CheckModel(const engine::Engine& engine, std::string_view model) {
  const std::string& served = engine.model_info().name;
  if (model.empty() || model == served) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrFormat("model: \"%s\" is not served here, \"%s\" is", model, served));
}

absl::Status CheckPrefixName(std::string_view field, std::string_view name) {
  constexpr std::string_view kCollection = "prefixes/";
  constexpr size_t kIdLength = 26;
  const auto is_id_character = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  if (name.starts_with(kCollection) && name.size() == kCollection.size() + kIdLength &&
      std::ranges::all_of(name.substr(kCollection.size()), is_id_character)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want \"prefixes/\" and %d characters of a-z and 0-9, got \"%s\"", field,
                      kIdLength, name));
}

absl::StatusOr<engine::GenerateParams> FromProto(v1::GenerateRequest request) {
  engine::GenerateParams params;
  params.model = request.model();
  params.session = {.name = request.session_name(), .etag = request.session_etag()};
  if (request.session_name().empty() && !request.session_etag().empty()) {
    return absl::InvalidArgumentError("session_etag: want none without session_name");
  }
  if (request.session_name().empty() ||
      request.prompt_case() != v1::GenerateRequest::PROMPT_NOT_SET) {
    ASSIGN_OR_RETURN(params.prompt, PromptOf(request));
  } else {
    params.prompt = engine::TokenIds();
  }
  v1::SamplingParams sampling = request.sampling();
  sampling.MergeFrom(request.resume_resolved().sampling());
  ASSIGN_OR_RETURN(params.sampling, SamplingOf(sampling));
  ASSIGN_OR_RETURN(params.stop, StopOf(request.stop()));
  ASSIGN_OR_RETURN(params.output, OutputOf(request.output()));
  ASSIGN_OR_RETURN(params.cache, CacheOf(request.cache()));
  params.sched = SchedOf(request.sched());
  if (request.has_prefix_name()) {
    RETURN_IF_ERROR(CheckPrefixName("prefix_name", request.prefix_name()));
    params.prefix_name = request.prefix_name();
  }
  ASSIGN_OR_RETURN(params.resume, ResumeOf(request));
  if (request.has_resume_resolved()) {
    ASSIGN_OR_RETURN(params.stop.max_tokens,
                     ToCount("resume_resolved.max_tokens", request.resume_resolved().max_tokens()));
    params.resume->max_tokens_is_resolved = true;
  }
  return params;
}

absl::StatusOr<engine::GenerateParams> FromProto(v1::ScoreRequest request) {
  engine::GenerateParams params;
  params.model = request.model();
  ASSIGN_OR_RETURN(params.prompt, PromptOf(request));
  if (request.continuations().empty()) {
    return absl::InvalidArgumentError("continuations: want at least one");
  }
  for (v1::Continuation& continuation : *request.mutable_continuations()) {
    switch (continuation.content_case()) {
      case v1::Continuation::kText:
        params.continuations.emplace_back(std::move(*continuation.mutable_text()));
        break;
      case v1::Continuation::kTokenIds:
        params.continuations.emplace_back(engine::TokenIds(continuation.token_ids().ids().begin(),
                                                           continuation.token_ids().ids().end()));
        break;
      case v1::Continuation::CONTENT_NOT_SET:
        return absl::InvalidArgumentError(absl::StrFormat(
            "continuations[%d]: want one of text, token_ids", params.continuations.size()));
    }
  }
  params.output.token_ids = true;
  params.output.logprob_text = request.logprob_text();
  ASSIGN_OR_RETURN(params.cache, CacheOf(request.cache()));
  params.sched = SchedOf(request.sched());
  return params;
}

uint32_t ToWireCount(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<uint32_t>::max()));
}

v1::Usage ToProto(const engine::Usage& usage) {
  v1::Usage out;
  out.set_prompt_tokens(ToWireCount(usage.prompt_tokens));
  out.set_completion_tokens(ToWireCount(usage.completion_tokens));
  out.set_cached_tokens(ToWireCount(usage.cached_tokens));
  out.set_recomputed_tokens(ToWireCount(usage.recomputed_tokens));
  out.set_num_preemptions(ToWireCount(usage.num_preemptions));
  out.set_prefix_tokens(ToWireCount(usage.prefix_tokens));
  out.set_resumed_tokens(ToWireCount(usage.resumed_tokens));
  out.set_fork_recomputed_tokens(ToWireCount(usage.fork_recomputed_tokens));
  out.set_disk_tokens(ToWireCount(usage.disk_tokens));
  out.set_kept_tokens(ToWireCount(usage.kept_tokens));
  out.set_block_copies(ToWireCount(usage.block_copies));
  return out;
}

v1::Timings ToProto(const engine::Timings& timings) {
  v1::Timings out;
  out.set_queue_seconds(absl::ToDoubleSeconds(timings.queue));
  out.set_prefill_seconds(absl::ToDoubleSeconds(timings.prefill));
  out.set_ttft_seconds(absl::ToDoubleSeconds(timings.ttft));
  out.set_decode_seconds(absl::ToDoubleSeconds(timings.decode));
  return out;
}

v1::FinishReason ToProto(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case engine::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kAbort:
      return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::ModelInfo ToProto(const engine::ModelInfo& info) {
  v1::ModelInfo out;
  out.set_name(base::LossyUtf8(info.name));
  out.set_architecture(info.architecture);
  out.set_weight_type(info.weight_type);
  out.set_activation_dtype(info.activation_dtype);
  out.set_kv_dtype(info.kv_dtype);
  out.set_num_parameters(ToWireTotal(info.num_parameters));
  out.set_weight_bytes(ToWireTotal(info.weight_bytes));
  out.set_vocab_size(ToWireCount(info.vocab_size));
  out.set_hidden_size(ToWireCount(info.hidden_size));
  out.set_num_layers(ToWireCount(info.num_layers));
  out.set_num_heads(ToWireCount(info.num_heads));
  out.set_num_kv_heads(ToWireCount(info.num_kv_heads));
  out.set_head_dim(ToWireCount(info.head_dim));
  out.set_max_model_len(ToWireCount(info.max_model_len));
  out.set_max_position_embeddings(ToWireCount(info.max_position_embeddings));
  out.set_kv_bytes_per_token(ToWireTotal(info.kv_bytes_per_token));
  out.set_has_chat_template(info.has_chat_template);
  if (info.bos_id >= 0) out.set_bos_id(info.bos_id);
  out.mutable_end_ids()->Assign(info.end_ids.begin(), info.end_ids.end());
  return out;
}

v1::GetServerInfoResponse ToProto(const engine::ServerInfo& info) {
  v1::GetServerInfoResponse out;
  out.set_version(info.version);
  out.set_backend(info.backend);
  out.set_isa_path(info.isa_path);
  out.set_num_threads(ToWireCount(info.num_threads));
  out.set_block_size(ToWireCount(info.block_size));
  out.set_num_blocks(ToWireCount(info.num_blocks));
  out.set_kv_cache_bytes(ToWireTotal(info.kv_cache_bytes));
  out.set_max_num_seqs(ToWireCount(info.max_num_seqs));
  out.set_max_num_batched_tokens(ToWireCount(info.max_num_batched_tokens));
  out.set_max_draft_tokens(ToWireCount(info.max_draft_tokens));
  out.set_hash_scheme(info.hash_scheme);
  out.set_numerics(info.numerics);
  out.set_model_digest(info.model_digest);
  out.set_answer_numerics(info.answer_numerics);
  return out;
}

v1::GetStatsResponse ToProto(const engine::Stats& stats) {
  const auto finished = [&](engine::FinishReason reason) {
    return ToWireTotal(stats.finished_by_reason[static_cast<size_t>(reason)]);
  };
  v1::GetStatsResponse out;
  out.mutable_queue()->set_num_waiting(ToWireCount(stats.num_waiting));
  out.mutable_queue()->set_num_running(ToWireCount(stats.num_running));
  v1::BlockStats& blocks = *out.mutable_blocks();
  blocks.set_total(ToWireCount(stats.blocks_total));
  blocks.set_free(ToWireCount(stats.blocks_free));
  blocks.set_cached(ToWireCount(stats.blocks_cached));
  blocks.set_held(ToWireCount(stats.blocks_held));
  blocks.set_pinned(ToWireCount(stats.blocks_pinned));
  v1::TokenStats& tokens = *out.mutable_tokens();
  tokens.set_prompt_computed(ToWireTotal(stats.prompt_tokens_computed));
  tokens.set_prompt_cached(ToWireTotal(stats.prompt_tokens_cached));
  tokens.set_generated(ToWireTotal(stats.generated_tokens));
  tokens.set_recomputed(ToWireTotal(stats.recomputed_tokens));
  tokens.set_scored(ToWireTotal(stats.scored_tokens));
  tokens.set_drafted(ToWireTotal(stats.drafted_tokens));
  tokens.set_accepted(ToWireTotal(stats.accepted_tokens));
  v1::SequenceStats& sequences = *out.mutable_sequences();
  sequences.set_finished_stop(finished(engine::FinishReason::kStop));
  sequences.set_finished_length(finished(engine::FinishReason::kLength));
  sequences.set_finished_abort(finished(engine::FinishReason::kAbort));
  sequences.set_requests_rejected(ToWireTotal(stats.requests_rejected));
  sequences.set_preemptions(ToWireTotal(stats.preemptions));
  sequences.set_block_copies(ToWireTotal(stats.block_copies));
  sequences.set_steps(ToWireTotal(stats.steps));
  out.set_draining(stats.draining);
  v1::LatencyStats& latency = *out.mutable_latency();
  latency.set_first_tokens(
      std::accumulate(stats.ttft.counts.begin(), stats.ttft.counts.end(), uint64_t{0}));
  latency.set_ttft_seconds(stats.ttft.sum);
  return out;
}

absl::StatusOr<text::InputKind> KindOf(const v1::TokenizeRequest& request) {
  text::InputKind kind = text::InputKind::kPrompt;
  switch (request.use()) {
    case v1::TokenizeRequest::USE_UNSPECIFIED:
    case v1::TokenizeRequest::USE_PROMPT:
      break;
    case v1::TokenizeRequest::USE_CHAT:
      kind = text::InputKind::kChat;
      break;
    case v1::TokenizeRequest::USE_CONTINUATION:
      kind = text::InputKind::kPart;
      break;
    case v1::TokenizeRequest::USE_WHOLE:
      kind = text::InputKind::kWhole;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("use: want one of PROMPT, CHAT, CONTINUATION, WHOLE, got %d",
                          static_cast<int>(request.use())));
  }
  const bool adds = !request.has_add_special_tokens() || request.add_special_tokens();
  return adds ? kind : text::InputKind::kPart;
}

v1::Token ToProto(const engine::Piece& piece) {
  v1::Token out;
  out.set_id(piece.id);
  out.set_piece(base::LossyUtf8(piece.piece));
  out.set_begin(ToWireCount(piece.begin));
  out.set_end(ToWireCount(piece.end));
  return out;
}

v1::Tenant ToProto(const engine::TenantUsage& usage) {
  const engine::TenantLimits& limits = usage.limits;
  v1::Tenant out;
  out.set_name(usage.name);
  out.set_share(ToWireCount(limits.share));
  out.set_max_waiting(ToWireCount(limits.max_waiting));
  out.set_max_running(ToWireCount(limits.max_running));
  out.set_max_blocks(ToWireCount(limits.max_blocks));
  out.set_charged_blocks(usage.charged_blocks);
  out.set_requests_per_minute(ToWireCount(limits.requests_per_minute));
  out.set_tokens_per_minute(ToWireCount(limits.tokens_per_minute));
  if (limits.requests_per_minute > 0) out.set_requests_left(usage.requests_left);
  if (limits.tokens_per_minute > 0) out.set_tokens_left(usage.tokens_left);
  out.set_num_requests(ToWireCount(usage.num_requests));
  out.set_accepted_requests(usage.counts.requests);
  out.set_refused_requests(usage.counts.refused);
  out.set_served_tokens(usage.counts.served_tokens);
  return out;
}

v1::GenerateStreamResponse ToProto(engine::TokenDelta delta, const engine::Engine& engine) {
  v1::GenerateStreamResponse out;
  out.set_index(static_cast<uint32_t>(delta.index));
  out.set_text_delta(std::move(delta.text));
  out.mutable_token_ids()->Assign(delta.token_ids.begin(), delta.token_ids.end());
  Append(delta.logprobs, engine, *out.mutable_logprobs());
  Append(delta.prompt_logprobs, engine, *out.mutable_prompt_logprobs());
  out.set_finish_reason(ToProto(delta.finish_reason));
  if (const auto stop = ToStoppedBy(delta)) *out.mutable_stop() = *stop;
  out.set_seed(delta.seed);
  if (delta.usage.has_value()) *out.mutable_usage() = ToProto(*delta.usage);
  if (delta.resolved != nullptr) {
    v1::ResolvedParams& resolved = *out.mutable_resolved();
    resolved.set_max_tokens(ToWireCount(delta.resolved->max_tokens));
    *resolved.mutable_sampling() = SamplingToProto(delta.resolved->sampling);
  }
  return out;
}

v1::GenerateResponse ToProto(std::vector<engine::TokenDelta> samples,
                             const engine::RequestSummary& summary, const engine::Engine& engine) {
  std::ranges::sort(samples, {}, &engine::TokenDelta::index);
  v1::GenerateResponse out;
  for (engine::TokenDelta& sample : samples) {
    Append(sample.prompt_logprobs, engine, *out.mutable_prompt_logprobs());
    v1::Completion& completion = *out.add_completions();
    completion.set_index(static_cast<uint32_t>(sample.index));
    completion.set_text(std::move(sample.text));
    completion.mutable_token_ids()->Assign(sample.token_ids.begin(), sample.token_ids.end());
    Append(sample.logprobs, engine, *completion.mutable_logprobs());
    completion.set_finish_reason(ToProto(sample.finish_reason));
    if (const auto stop = ToStoppedBy(sample)) *completion.mutable_stop() = *stop;
    completion.set_seed(sample.seed);
    if (sample.score) completion.set_score(*sample.score);
  }
  *out.mutable_usage() = ToProto(summary.usage);
  *out.mutable_timings() = ToProto(summary.timings);
  return out;
}

v1::ScoreResponse ToScores(std::vector<engine::TokenDelta> samples,
                           const engine::RequestSummary& summary, const engine::Engine& engine) {
  std::ranges::sort(samples, {}, &engine::TokenDelta::index);
  v1::ScoreResponse out;
  for (const engine::TokenDelta& sample : samples) {
    v1::ContinuationScore& score = *out.add_scores();
    double sum = 0.0;
    bool all_greedy = true;
    for (const engine::PositionLogprobs& position : sample.logprobs) {
      const bool greedy =
          !position.top.empty() && position.top[0].token_id == position.chosen.token_id;
      v1::ScoredToken& token = *score.add_tokens();
      Write(position.chosen, position.rank, engine, token);
      token.set_is_greedy(greedy);
      sum += position.chosen.logprob;
      all_greedy = all_greedy && greedy;
    }
    score.set_logprob(sum);
    score.set_is_greedy(all_greedy);
  }
  *out.mutable_usage() = ToProto(summary.usage);
  *out.mutable_timings() = ToProto(summary.timings);
  return out;
}

}  // namespace quire::server
