#include "tests/server/fake_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/strings.h"
#include "engine/sharing/session_sink.h"

namespace quire::testing {
namespace {

constexpr int32_t kVocabSize = 1000;
constexpr uint64_t kDrawnSeed = 7;
constexpr int64_t kMaxModelLen = 2048;
constexpr char kChatTemplate[] =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

}  // namespace

struct FakeEngine::Running : engine::SubmittedRequest {
  const std::string& request_id() const override { return params.request_id; }
  void Cancel() override { cancelled = true; }

  engine::GenerateParams params;
  std::shared_ptr<engine::TokenSink> sink;
  absl::Status refused;  // the error of a refused request
  std::atomic<bool> cancelled = false;
  int32_t position = 0;
};

FakeEngine::FakeEngine(FakeEngineOptions options)
    : options_(std::move(options)),
      chat_template_(*text::ChatTemplate::Create(kChatTemplate, {})),
      frontend_(tokenizer_, chat_template_.get(),
                {.vocab_size = kVocabSize, .max_prompt_bytes = 1 << 20}),
      seam_(frontend_, tokenizer_, kMaxModelLen),
      sessions_(seam_, base::SteadyClock(), {.model = "fake-model"}),
      held_(options_.held),
      thread_([this] { Run(); }) {
  model_info_.name = "fake-model";
  model_info_.architecture = "llama";
  model_info_.vocab_size = kVocabSize;
  model_info_.max_model_len = kMaxModelLen;
  model_info_.kv_bytes_per_token = 23040;
  model_info_.has_chat_template = true;
  model_info_.bos_id = 1;
  model_info_.end_ids = {2, 3};
  server_info_.version = "1.2.3";
  server_info_.backend = "cpu";
  server_info_.isa_path = "portable";
  server_info_.block_size = 16;
  server_info_.hash_scheme = "xxh3-128";
  server_info_.numerics = "cpu-7";
  server_info_.model_digest = "fake-digest";
  server_info_.answer_numerics = "fake-numerics";
}

FakeEngine::~FakeEngine() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
    held_ = false;
    for (const auto& request : running_) request->Cancel();
  }
  changed_.NotifyAll();
  thread_.join();
}

void FakeEngine::Release() {
  base::MutexLock lock(mu_);
  held_ = false;
  changed_.NotifyAll();
}

int64_t FakeEngine::num_running() const {
  base::MutexLock lock(mu_);
  return static_cast<int64_t>(running_.size());
}

void FakeEngine::GetCacheMap(engine::CacheMapDone done) {
  std::shared_ptr<const engine::CacheMap> map;
  {
    base::MutexLock lock(mu_);
    map = cache_map_;
  }
  std::move(done)(std::move(map));
}

void FakeEngine::SetCacheMap(engine::CacheMap map) {
  base::MutexLock lock(mu_);
  cache_map_ = std::make_shared<const engine::CacheMap>(std::move(map));
}

engine::GenerateParams FakeEngine::last_params() const {
  base::MutexLock lock(mu_);
  return last_params_;
}

bool FakeEngine::WaitFor(const std::function<bool()>& condition) const {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    base::MutexLock lock(mu_);
    changed_.WaitFor(mu_, std::chrono::milliseconds(1));
  }
  return true;
}

absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> FakeEngine::Submit(
    engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) {
  base::MutexLock lock(mu_);
  if (draining_) return absl::UnavailableError("draining");
  if (!params.model.empty() && params.model != model_info_.name) {
    return absl::NotFoundError(absl::StrFormat("model: \"%s\" is not served here", params.model));
  }
  std::string id = params.request_id;
  for (const auto& request : running_) {
    if (request->params.request_id != params.request_id) continue;
    if (params.id_is_name) {
      id = absl::StrCat(params.request_id, "~", running_.size());
    } else if (!request->params.id_is_name) {
      return absl::AlreadyExistsError("request_id: is running");
    }
  }
  if (running_.size() >= static_cast<size_t>(options_.max_requests)) {
    return absl::ResourceExhaustedError("the queue is full");
  }
  last_params_ = params;
  auto request = std::make_shared<Running>();
  if (const engine::SessionUse use = params.session; !use.name.empty()) {
    auto turn = sessions_.BeginTurn(params.sched.tenant, use.name, use.etag,
                                    [weak = std::weak_ptr<Running>(request)] {
                                      if (const auto running = weak.lock()) running->Cancel();
                                    });
    if (!turn.ok()) return turn.status();
    auto session = std::make_shared<engine::SessionSink>(*std::move(turn), std::move(sink),
                                                         params.output.token_ids);
    engine::Request prepared;
    prepared.params = std::move(params);
    request->refused = session->Prepare(seam_, prepared);
    params = std::move(prepared.params);
    sink = std::move(session);
  }
  if (request->refused.ok()) {
    request->refused = engine::Validate(params.sampling, params.stop, params.output, params.cache,
                                        params.sched, kVocabSize);
  }
  if (params.on_id) params.on_id(id);
  request->params = std::move(params);
  request->sink = std::move(sink);
  running_.push_back(request);
  changed_.NotifyAll();
  return request;
}

absl::Status FakeEngine::Abort(std::string_view request_id, std::optional<std::string_view> owner) {
  base::MutexLock lock(mu_);
  bool any = false;
  for (const auto& request : running_) {
    if (request->params.request_id == request_id &&
        (!owner.has_value() || request->params.owner == *owner)) {
      request->Cancel();
      any = true;
    }
  }
  if (any) return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat("request_id: you have no \"%s\" running", request_id));
}

std::string FakeEngine::last_frontend_tenant() const {
  base::MutexLock lock(mu_);
  return last_frontend_tenant_;
}

absl::Status FakeEngine::RunOnFrontend(std::string_view tenant, const engine::TenantLimits&,
                                       int64_t /*num_bytes*/, std::function<void()> work) {
  base::MutexLock lock(mu_);
  last_frontend_tenant_ = tenant;
  if (work_.size() >= 4) return absl::ResourceExhaustedError("the frontend is busy");
  work_.push_back(std::move(work));
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<engine::Piece>> FakeEngine::Tokenize(std::string_view text,
                                                                text::InputKind kind,
                                                                bool parse_special_tokens) const {
  std::vector<engine::Piece> pieces;
  if (kind != text::InputKind::kPart) {
    pieces.push_back({.id = 1,
                      .piece = kind == text::InputKind::kPrompt ? "<s>"
                               : kind == text::InputKind::kChat ? "chat"
                                                                : "whole"});
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto begin = static_cast<int64_t>(i);
    pieces.push_back({.id = static_cast<unsigned char>(text[i]),
                      .piece = std::string(text.substr(i, 1)),
                      .begin = begin,
                      .end = begin + 1});
  }
  if (parse_special_tokens) pieces.push_back({.id = 2, .piece = "parsed"});
  return pieces;
}

absl::StatusOr<std::string> FakeEngine::Detokenize(const engine::TokenIds& ids,
                                                   bool skip_special_tokens) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= kVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token_ids: want 0..%d, got %d", kVocabSize - 1, id));
    }
    if (!skip_special_tokens || id > 3) text.push_back(static_cast<char>(id));
  }
  return text;
}

absl::StatusOr<std::string> FakeEngine::ApplyChatTemplate(const engine::ChatMessages& messages,
                                                          bool add_generation_prompt) const {
  std::string text;
  for (const text::ChatMessage& message : messages) {
    absl::StrAppend(&text, message.role, ": ", message.content, "\n");
  }
  if (add_generation_prompt) absl::StrAppend(&text, "assistant: ");
  return text;
}

engine::Stats FakeEngine::stats() const {
  base::MutexLock lock(mu_);
  engine::Stats stats;
  stats.num_running = static_cast<int64_t>(running_.size());
  stats.num_waiting = 3;
  stats.blocks_total = 10;
  stats.blocks_free = 5;
  stats.blocks_cached = 3;
  stats.blocks_held = 2;
  stats.blocks_pinned = 1;
  stats.prefixes = {1, 2, 3, 31};
  stats.prefix_hits = 4;
  stats.prefix_saved_tokens = 90;
  stats.prompt_tokens_computed = 11;
  stats.prompt_tokens_cached = 12;
  stats.generated_tokens = num_generated_;
  stats.recomputed_tokens = 14;
  stats.scored_tokens = 13;
  stats.drafted_tokens = 25;
  stats.accepted_tokens = 24;
  stats.drafts_expected = 27;
  stats.drafts_price = 9;
  stats.block_copies = 15;
  stats.beam_copies = 14;
  stats.disk = {.bytes = 35, .hits = 36, .misses = 37, .errors = 38, .dropped = 39};
  stats.preemptions = 16;
  stats.steps = 17;
  stats.steps_failed = 19;
  stats.shared_prefixes = 26;
  stats.saved_keys = 27;
  stats.device = {41, 42, 43, 44, 45, 46, 47, 48, 49};
  stats.requests_rejected = 18;
  stats.deadlines_refused = 31;
  stats.followers = {32, 33, 34};
  stats.resumes = {28, 29, 30};
  stats.finished_by_reason = {0, 21, 22, 23};
  stats.ttft = {.bounds = {0.1, 1.0}, .counts = {4, 5, 6}, .sum = 12.5};
  stats.tpot = {.bounds = {0.01}, .counts = {1, 0}, .sum = 0.005};
  stats.draining = draining_;
  return stats;
}

engine::Liveness FakeEngine::liveness() const {
  base::MutexLock lock(mu_);
  return liveness_;
}

void FakeEngine::SetLiveness(const engine::Liveness& liveness) {
  base::MutexLock lock(mu_);
  liveness_ = liveness;
}

engine::TenantUsage FakeEngine::tenant_usage(std::string_view tenant,
                                             const engine::TenantLimits& limits) const {
  base::MutexLock lock(mu_);
  for (const engine::TenantUsage& usage : tenant_usages_.tenants) {
    if (usage.name == tenant) return usage;
  }
  return {.name = std::string(tenant), .limits = limits};
}

engine::TenantUsages FakeEngine::tenant_usages() const {
  base::MutexLock lock(mu_);
  return tenant_usages_;
}

void FakeEngine::SetTenantUsages(engine::TenantUsages usages) {
  base::MutexLock lock(mu_);
  tenant_usages_ = std::move(usages);
}

void FakeEngine::StartDrain() {
  base::MutexLock lock(mu_);
  draining_ = true;
}

absl::Status FakeEngine::WaitIdle(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  base::MutexLock lock(mu_);
  while (!running_.empty()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("requests still run");
    changed_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  return absl::OkStatus();
}

void FakeEngine::Run() {
  while (true) {
    std::vector<std::shared_ptr<Running>> requests;
    std::vector<std::function<void()>> work;
    {
      base::MutexLock lock(mu_);
      if (stopping_ && running_.empty() && work_.empty()) return;
      // Checks for cancellation and stalled sinks every millisecond.
      if (work_.empty()) changed_.WaitFor(mu_, std::chrono::milliseconds(1));
      work.swap(work_);
      requests = running_;
      if (held_) {  // cancelled requests end even while the steps are held
        std::erase_if(requests, [](const auto& request) { return !request->cancelled; });
      }
    }
    for (const auto& item : work) item();
    std::vector<std::shared_ptr<Running>> ended;
    for (const auto& request : requests) {
      if (Step(*request)) ended.push_back(request);
    }
    base::MutexLock lock(mu_);
    std::erase_if(running_, [&](const auto& request) {
      return std::ranges::find(ended, request) != ended.end();
    });
    changed_.NotifyAll();
  }
}

int64_t FakeEngine::ScoreAll(const engine::GenerateParams& params, engine::TokenSink& sink) {
  int64_t num_tokens = 0;
  // Counts down, because continuations may end out of order.
  for (size_t k = params.continuations.size(); k-- > 0;) {
    engine::TokenDelta delta{.index = static_cast<int32_t>(k),
                             .finish_reason = engine::FinishReason::kLength};
    if (const auto* text = std::get_if<std::string>(&params.continuations[k])) {
      delta.token_ids.assign(text->begin(), text->end());
    } else {
      delta.token_ids = std::get<engine::TokenIds>(params.continuations[k]);
    }
    for (const int32_t id : delta.token_ids) {
      delta.logprobs.push_back(
          {.chosen = {.token_id = id, .logprob = -0.01f * static_cast<float>(id)},
           .top = {{.token_id = id - id % 2, .logprob = -0.25f}},
           .rank = params.output.logprob_text ? 1 + id % 2 : 0});
    }
    num_tokens += std::ssize(delta.token_ids);
    sink.Put(std::move(delta));
  }
  return num_tokens;
}

bool FakeEngine::Step(Running& request) {
  const engine::GenerateParams& params = request.params;
  const int32_t n = params.sampling.n;
  engine::RequestSummary summary;
  summary.usage.prompt_tokens = 5;
  summary.usage.cached_tokens = 2;
  summary.usage.completion_tokens = request.position * n;
  summary.timings.ttft = absl::Milliseconds(250);
  const auto finish = [&](const absl::Status& status) {
    request.sink->Finish(status, summary);
    return true;
  };
  if (!request.refused.ok()) return finish(request.refused);
  if (request.cancelled) return finish(absl::CancelledError("cancelled"));
  if (absl::Now() > params.deadline) return finish(absl::DeadlineExceededError("too late"));
  if (!request.sink->CanTake(n)) {
    ++num_stalled_steps_;
    return false;
  }
  if (!params.continuations.empty()) {
    summary.usage.completion_tokens = ScoreAll(params, *request.sink);
    return finish(absl::OkStatus());
  }
  const int32_t position = request.position++;
  const bool last =
      request.position == params.stop.max_tokens.value_or(options_.default_max_tokens);
  for (int32_t k = 0; k < n; ++k) {
    engine::TokenDelta delta{.index = k};
    delta.text = options_.token_text ? options_.token_text(k, position)
                                     : std::string(absl::StrCat(k, ":", position, " "));
    delta.token_ids = {100 * k + position};
    if (params.output.top_logprobs) {
      delta.logprobs.push_back({.chosen = {.token_id = 100 * k + position, .logprob = -0.5f},
                                .rank = params.output.logprob_text ? 7 : 0});
    }
    if (last) delta.finish_reason = engine::FinishReason::kLength;
    if (position == 0 && k == 0 && !params.answers_at_once) {
      delta.resolved = std::make_shared<engine::ResolvedParams>(
          engine::ResolvedParams{.max_tokens = params.stop.max_tokens.value_or(kMaxModelLen),
                                 .sampling = params.sampling});
    }
    delta.seed = params.sampling.seed.value_or(kDrawnSeed) + static_cast<uint64_t>(k);
    request.sink->Put(std::move(delta));
    ++num_generated_;
  }
  summary.usage.completion_tokens += n;
  return last && finish(absl::OkStatus());
}

}  // namespace quire::testing
