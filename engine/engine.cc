#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/interrupt.h"
#include "base/status_macros.h"
#include "base/timer_thread.h"
#include "engine/admission/admission_tickets.h"
#include "engine/admission/cache_ledger.h"
#include "engine/admission/running_requests.h"
#include "engine/admission/step_channel.h"
#include "engine/admission/tenant_meters.h"
#include "engine/frontend/frontend.h"
#include "engine/frontend/resume_check.h"
#include "engine/frontend/worker_pool.h"
#include "engine/kv/block_manager.h"
#include "engine/load/engine_configs.h"
#include "engine/load/kept_on_disk.h"
#include "engine/make_engine.h"
#include "engine/output/replay.h"
#include "engine/request/best_samples_sink.h"
#include "engine/sharing/prefix_registry.h"
#include "engine/sharing/session_registry.h"
#include "engine/sharing/session_seam.h"
#include "engine/sharing/session_sink.h"
#include "engine/step/engine_metrics.h"
#include "engine/step/step_loop.h"

namespace quire::engine {
namespace {

// A text of more bytes than this is long work for the WorkerPool. The pool runs long work one piece
// at a time, so that several long texts do not delay a short one.
constexpr int64_t kLongText = 64 << 10;

constexpr int64_t kBytesPerToken = 4;  // of English text

// Returns about how many tokens the prompt has, before it is tokenized.
int64_t EstimatedTokens(const GenerateParams& params) {
  const auto* ids = std::get_if<TokenIds>(&params.prompt);
  if (ids != nullptr) return std::ssize(*ids);
  return NumBytes(params.prompt) / kBytesPerToken + 1;
}

// Returns the frontend's work for a request, in bytes of text. A token id counts as one byte.
int64_t FrontendBytes(const GenerateParams& params, const PrefixContent* prefix) {
  const int64_t prompt = NumBytes(params.prompt);
  int64_t bytes = prompt;
  if (prefix != nullptr && prefix->given.index() == params.prompt.index()) {
    bytes += NumBytes(prefix->given);
  }
  // The prompt is tokenized again with each continuation that is text.
  for (const auto& given : params.continuations) {
    bytes += prompt + std::visit([](const auto& one) { return NumBytes(one); }, given);
  }
  for (const TokenIds& ids : params.resume ? params.resume->token_ids : std::vector<TokenIds>()) {
    bytes += std::ssize(ids);
  }
  return bytes + std::ssize(params.sampling.allowed_token_ids) +
         std::ssize(params.stop.stop_token_ids);
}

class EngineImpl final : public SteppedEngine, private PrefixHost {
 public:
  // `kept` uses the directory of `parts`.
  EngineImpl(EngineParts parts, const EngineConfig& config, KeptOnDisk kept);
  ~EngineImpl() override;

  absl::Status WarmUp();
  void Start() {
    if (disk_ != nullptr) disk_->Start([this] { channel_.Wake(); });
    loop_.Start();
    timers_.Start([this] { return RunTimers(); });
  }

  absl::StatusOr<std::shared_ptr<SubmittedRequest>> Submit(
      GenerateParams params, std::shared_ptr<TokenSink> sink) override;
  absl::Status Abort(std::string_view request_id, std::optional<std::string_view> owner) override;
  Sessions& sessions() override { return sessions_; }
  absl::Status RunOnFrontend(std::string_view tenant, const TenantLimits& limits, int64_t num_bytes,
                             std::function<void()> work) override {
    ASSIGN_OR_RETURN(AdmissionTicket taken, seats_.Reserve(tenant, limits));
    // Shared as the ticket of a request is, see Enqueue.
    auto seat = std::make_shared<AdmissionTicket>(std::move(taken));
    return SubmitWork(num_bytes, [seat = std::move(seat), work = std::move(work)] {
      seat->Release();
      work();
    });
  }
  absl::StatusOr<std::vector<Piece>> Tokenize(std::string_view text, text::InputKind kind,
                                              bool parse_special_tokens) const override;
  absl::StatusOr<std::string> Detokenize(const TokenIds& ids,
                                         bool skip_special_tokens) const override;
  std::string_view TokenBytes(int32_t id) const override {
    return parts_.tokenizer->TokenBytes(id);
  }
  absl::StatusOr<std::string> ApplyChatTemplate(const ChatMessages& messages,
                                                bool add_generation_prompt) const override {
    ASSIGN_OR_RETURN(text::RenderedChat chat,
                     frontend_.ApplyChatTemplate(messages, add_generation_prompt));
    return std::move(chat.text);
  }
  absl::StatusOr<TokenIds> TokenizeChat(const ChatMessages& messages,
                                        bool add_generation_prompt) const override {
    return frontend_.TokenizeChat(messages, add_generation_prompt);
  }
  NamedPrefixes& prefixes() override { return prefixes_; }
  const ModelInfo& model_info() const override { return parts_.model_info; }
  const ServerInfo& server_info() const override { return parts_.server_info; }
  Stats stats() const override;
  TenantUsage tenant_usage(std::string_view tenant, const TenantLimits& limits) const override {
    TenantUsage usage = meters_.Get(tenant, limits, parts_.clock->Now());
    usage.charged_blocks = loop_.charges().Charged(tenant);
    return usage;
  }
  TenantUsages tenant_usages() const override;
  Liveness liveness() const override;
  void StartDrain() override { tickets_.StartDrain(); }
  void FlushPrefixCache(FlushDone done) override {
    channel_.Send(FlushCommand{.done = Completion<int64_t>(std::move(done))});
  }
  void GetCacheMap(CacheMapDone done) override {
    channel_.Send(MapCommand{.done = Completion<std::shared_ptr<const CacheMap>>(std::move(done))});
  }
  absl::Status WaitIdle(absl::Duration timeout) override;
  void FailAll(const absl::Status& status) override;
  bool RunFrontend() override { return workers_->RunOne(); }
  bool Step() override {
    RunTimers();
    bool any = loop_.Step();
    while (disk_ != nullptr && disk_->RunOne()) any = true;
    return any;
  }

 private:
  class Handle;

  // Runs the timers of prefixes, of sessions, and of requests that wait for their id. Returns when
  // it must be called again.
  absl::Time RunTimers() {
    return std::min(
        {prefixes_.RunTimers(), sessions_.RunTimers(), running_.RunTimers(parts_.clock->Now())});
  }
  absl::Status Compute(std::shared_ptr<Request> request, int64_t num_bytes) override;
  absl::Status ComputeKnown(std::shared_ptr<Request> request, int64_t num_tokens) override;
  void Cancel(const std::shared_ptr<Request>& request) override;
  void Unpin(uint64_t pin, std::function<void()> done) override {
    channel_.Send(UnpinCommand{.pin = pin, .done = std::move(done)});
  }

  PrefixRegistryConfig PrefixConfig();
  SessionRegistryConfig SessionConfig();
  // Begins the turn of a request with a session, and puts a SessionSink before its sink.
  absl::StatusOr<std::shared_ptr<SessionSink>> BeginTurn(const std::shared_ptr<Request>& request);
  // Takes a request in, which then is among those that run. `num_tokens`: about the tokens of its
  // prompt.
  absl::StatusOr<AdmittedRequest> TakeIn(const std::shared_ptr<Request>& request,
                                         int64_t num_tokens);
  // Takes a request in, and into the queue of the frontend, when nothing else runs under its id.
  // `session` is null for a request without a session.
  absl::Status Enqueue(const std::shared_ptr<Request>& request, int64_t num_bytes,
                       int64_t num_tokens, std::shared_ptr<SessionSink> session);
  absl::Status SubmitWork(int64_t num_bytes, std::function<void()> work) {
    return workers_->Submit(
        num_bytes > kLongText ? WorkerPool::Lane::kLong : WorkerPool::Lane::kShort,
        std::move(work));
  }
  // These run on a frontend thread. Prepare returns the request's lease of the cache.
  absl::StatusOr<CacheLease> Prepare(Request& request, SessionSink* session);
  void PrepareAndAdmit(AdmittedRequest admitted, const std::shared_ptr<SessionSink>& session);
  // Ends a request that never reached the step thread.
  void Refuse(AdmittedRequest admitted, const absl::Status& status);
  // Returns the keys on disk of the blocks of named prefixes.
  std::vector<BlockKey> NamedBlocks() const;
  // Returns what the disk has of a prepared request's prompt; null: nothing.
  std::shared_ptr<const DiskChain> LookUpOnDisk(const Request& request) const;

  EngineParts parts_;
  const std::unique_ptr<DiskTier> disk_;  // null: none
  EngineMetrics metrics_;
  CacheLedger ledger_;
  Frontend frontend_;
  SessionSeam seam_;
  base::TimerThread timers_;
  SessionRegistry sessions_;
  AdmissionTickets tickets_;
  AdmissionTickets seats_;  // of what waits in the frontend and is no request
  TenantMeters meters_;
  StepChannel channel_;
  RunningRequests running_;
  PrefixRegistry prefixes_;
  StepLoop loop_;
  std::atomic<uint64_t> next_request_ = 1;
  std::unique_ptr<WorkerPool> workers_;  // the threads of the pool use everything above
};

// A handle holds the request and the channel that notifies the step thread. Handles and sinks must
// not be used after the engine is destroyed. Therefore the server destroys its streams before the
// engine.
class EngineImpl::Handle final : public SubmittedRequest {
 public:
  Handle(std::shared_ptr<Request> request, EngineImpl& engine)
      : request_(std::move(request)), engine_(engine) {}

  const std::string& request_id() const override { return request_->id; }
  void Cancel() override { engine_.Cancel(request_); }

 private:
  const std::shared_ptr<Request> request_;
  EngineImpl& engine_;  // not owned
};

EngineImpl::EngineImpl(EngineParts parts, const EngineConfig& config, KeptOnDisk kept)
    : parts_(std::move(parts)),
      disk_(std::move(kept.blocks)),
      ledger_(LedgerGroups(parts_.cache, parts_.limits), config.max_pinned_share),
      frontend_(*parts_.tokenizer, parts_.chat_template.get(),
                FrontendLimitsOf(parts_, config, [this] { return ledger_.num_pinned(); })),
      seam_(frontend_, *parts_.tokenizer, parts_.limits.max_model_len, parts_.limits.block_size),
      timers_(*parts_.clock),
      sessions_(seam_, *parts_.clock, SessionConfig()),
      tickets_(config.max_queue),
      seats_(config.frontend_queue, "frontend_queue"),
      prefixes_(PrefixConfig(), frontend_, ledger_, *parts_.clock, *this, std::move(kept.prefixes)),
      loop_(parts_, config, disk_.get(), channel_, running_, metrics_),
      workers_(std::make_unique<WorkerPool>(config.frontend_threads, config.frontend_queue)) {
  if (disk_ != nullptr) disk_->set_named([this] { return NamedBlocks(); });
}

EngineImpl::~EngineImpl() {
  tickets_.StartDrain();
  timers_.Stop();
  prefixes_.Stop();
  running_.CancelAll();
  // Runs the remaining work of the pool, which ends its requests or hands them to the step thread.
  // So the step thread must stop later.
  workers_.reset();
  loop_.Stop();
  if (disk_ != nullptr) disk_->Stop();  // its thread uses the channel
}

absl::StatusOr<std::shared_ptr<SubmittedRequest>> EngineImpl::Submit(
    GenerateParams params, std::shared_ptr<TokenSink> sink) {
  const auto reject = [&](absl::Status status) {
    metrics_.requests_rejected.Add(1);
    return status;
  };
  if (!params.model.empty() && params.model != parts_.model_info.name) {
    return reject(absl::NotFoundError(absl::StrFormat(
        "model \"%s\" is not served here; want \"%s\"", params.model, parts_.model_info.name)));
  }
  auto request = std::make_shared<Request>();
  request->params = std::move(params);
  request->sink = std::move(sink);
  request->deadline = parts_.clock->FromDate(request->params.deadline);
  if (!request->params.prefix_name.empty()) {
    auto prefix = prefixes_.Resolve(request->params.sched.tenant, request->params.limits,
                                    request->params.prefix_name);
    if (!prefix.ok()) return reject(prefix.status());
    request->prefix = *std::move(prefix);
  }
  if (request->params.request_id.empty()) {
    request->params.request_id =
        absl::StrCat("req-", next_request_.fetch_add(1, std::memory_order_relaxed));
    request->params.id_is_name = true;
  }
  if (const GenerateParams& given = request->params; given.ranks_samples()) {
    request->sink = std::make_shared<BestSamplesSink>(std::move(request->sink), given.sampling.n,
                                                      given.output.top_logprobs.has_value());
  }
  std::shared_ptr<SessionSink> session;
  int64_t session_tokens = 0;
  if (!request->params.session.name.empty()) {
    auto begun = BeginTurn(request);
    if (!begun.ok()) return reject(begun.status());
    session = *std::move(begun);
    request->sink = session;
    session_tokens = session->turn().before().num_tokens();
  }
  auto handle = std::make_shared<Handle>(request, *this);
  const absl::Status queued =
      Enqueue(request, FrontendBytes(request->params, request->prefix.get()) + session_tokens,
              session_tokens + EstimatedTokens(request->params), std::move(session));
  if (!queued.ok()) return reject(queued);
  return handle;
}

absl::Status EngineImpl::Compute(std::shared_ptr<Request> request, int64_t num_bytes) {
  return Enqueue(request, num_bytes, num_bytes / kBytesPerToken + 1, nullptr);
}

absl::Status EngineImpl::ComputeKnown(std::shared_ptr<Request> request, int64_t num_tokens) {
  ASSIGN_OR_RETURN(AdmittedRequest admitted, TakeIn(request, num_tokens));
  absl::Status status = prefixes_.Prepare(*request);
  if (status.ok()) {
    admitted.on_disk = LookUpOnDisk(*request);
    channel_.Admit(std::move(admitted));
    return status;
  }
  return running_.Erase(*request) ? status : absl::OkStatus();  // else FailAll has ended it
}

absl::StatusOr<AdmittedRequest> EngineImpl::TakeIn(const std::shared_ptr<Request>& request,
                                                   int64_t num_tokens) {
  const std::string& tenant = request->params.sched.tenant;
  const TenantLimits& limits = request->params.limits;
  request->arrival = parts_.clock->Now();
  ASSIGN_OR_RETURN(AdmissionTicket ticket, tickets_.Reserve(tenant, limits));
  ASSIGN_OR_RETURN(TenantCharge charge,
                   meters_.Charge(tenant, limits, num_tokens, request->arrival));
  RETURN_IF_ERROR(running_.Insert(request));
  if (request->params.on_id) request->params.on_id(request->id);
  request->sink->SetOnRoom(
      [this, noticed = std::weak_ptr<const Request>(request)] { channel_.Notice(noticed); });
  return AdmittedRequest{
      .request = request, .ticket = std::move(ticket), .charge = std::move(charge)};
}

absl::Status EngineImpl::Enqueue(const std::shared_ptr<Request>& request, int64_t num_bytes,
                                 int64_t num_tokens, std::shared_ptr<SessionSink> session) {
  ASSIGN_OR_RETURN(AdmittedRequest taken, TakeIn(request, num_tokens));
  // The target of a std::function must be copyable, and a ticket is not. So the ticket is shared.
  auto admitted = std::make_shared<AdmittedRequest>(std::move(taken));
  const auto enqueue = [this, admitted, num_bytes, session = std::move(session)] {
    return SubmitWork(
        num_bytes, [this, admitted, session] { PrepareAndAdmit(std::move(*admitted), session); });
  };
  const bool waits =
      running_.Wait(*request, request->arrival, [this, admitted, enqueue](absl::Status status) {
        if (status.ok()) status = enqueue();
        if (status.ok()) return;
        if (StillWanted(*admitted->request, parts_.clock->Now()).ok()) {
          metrics_.requests_rejected.Add(1);
        }
        Refuse(std::move(*admitted), status);
      });
  if (waits) {
    timers_.Wake();
    return absl::OkStatus();
  }
  absl::Status queued = enqueue();
  // A request that is not there has had its Finish from FailAll.
  return !queued.ok() && running_.Erase(*request) ? queued : absl::OkStatus();
}

// These two are called before all is made that their functions use.
PrefixRegistryConfig EngineImpl::PrefixConfig() {
  PrefixRegistryConfig config = PrefixConfigOf(parts_);
  config.charged_for = [this](auto ids) { return loop_.charges().ChargedFor(ids); };
  config.on_earlier_timer = [this] { timers_.Wake(); };
  return config;
}

SessionRegistryConfig EngineImpl::SessionConfig() {
  return {
      .model = parts_.model_info.name,
      .model_digest = parts_.server_info.model_digest,
      .resolve_prefix =
          [this](const ContextCaller& caller, std::string_view name) {
            return prefixes_.Resolve(caller.tenant, caller.limits, name);
          },
      .ledger = &ledger_,
      .block_size = parts_.limits.block_size,
      .blocks_of = PinnedBlocksOf(parts_),
      .unpin = [this](uint64_t pin, std::function<void()> done) { Unpin(pin, std::move(done)); },
      .fork_pin = [this](ForkPinCommand fork) { channel_.Send(std::move(fork)); },
      .on_earlier_timer = [this] { timers_.Wake(); }};
}

absl::StatusOr<CacheLease> EngineImpl::Prepare(Request& request, SessionSink* session) {
  if (request.pins != 0) {  // whose blocks count as pinned already
    RETURN_IF_ERROR(prefixes_.Prepare(request));
    return CacheLease();
  }
  const bool is_resumed = request.params.resume.has_value();
  if (is_resumed) {
    const ServerInfo& info = parts_.server_info;
    RETURN_IF_ERROR(CheckResume(request.params,
                                {.model_digest = info.model_digest,
                                 .numerics = info.answer_numerics,
                                 .no_resume = info.no_resume},
                                static_cast<int32_t>(parts_.model->config().vocab_size)));
  }
  RETURN_IF_ERROR(frontend_.Prepare(request));
  if (is_resumed) RETURN_IF_ERROR(ReplayOutput(*parts_.tokenizer, request));
  if (request.session_pin != nullptr) {
    // The blocks that the turn may need are those that it may pin, which the ledger counts.
    RETURN_IF_ERROR(session->ReservePin(request));
    return CacheLease();
  }
  const int32_t block_size = parts_.limits.block_size;
  const auto prompt_len = static_cast<int64_t>(request.prompt_ids.size());
  const int32_t n = request.params.sampling.num_sequences();
  const int64_t need = request.cache_window.on()
                           ? request.cache_window.MostHeld() * n / block_size
                           : MostBlocks(block_size, prompt_len, request.max_tokens, n);
  const bool is_there = request.prefix != nullptr && prefixes_.IsCounted(request.prefix->pin);
  const int64_t shared = is_there ? std::ssize(request.prefix->ids) / block_size : 0;
  return ledger_.Admit(need, shared);
}

absl::StatusOr<std::shared_ptr<SessionSink>> EngineImpl::BeginTurn(
    const std::shared_ptr<Request>& request) {
  const GenerateParams& params = request->params;
  if (!params.prefix_name.empty()) {
    return absl::InvalidArgumentError(
        "prefix_name: want none in a session, which has its own tokens");
  }
  const auto cancel = [this, weak = std::weak_ptr<Request>(request)] {
    if (const std::shared_ptr<Request> running = weak.lock()) Cancel(running);
  };
  ASSIGN_OR_RETURN(auto turn, sessions_.BeginTurn(params.sched.tenant, params.session.name,
                                                  params.session.etag, cancel));
  return std::make_shared<SessionSink>(std::move(turn), request->sink, params.output.token_ids);
}

void EngineImpl::Cancel(const std::shared_ptr<Request>& request) {
  if (request->cancelled.exchange(true, std::memory_order_acq_rel)) return;
  channel_.Notice(request);
  running_.StopWaiting(*request);
}

void EngineImpl::PrepareAndAdmit(AdmittedRequest admitted,
                                 const std::shared_ptr<SessionSink>& session) {
  const std::shared_ptr<Request> request = admitted.request;
  // A request that nobody waits for ends here. So does a request that the frontend refuses. The
  // step thread therefore sees only valid requests.
  absl::Status status = StillWanted(*request, parts_.clock->Now());
  if (status.ok()) {
    base::Interrupt interrupt([&] { return StillWanted(*request, parts_.clock->Now()); });
    if (session != nullptr) status = session->Prepare(seam_, *request);
    if (status.ok()) {
      absl::StatusOr<CacheLease> prepared = Prepare(*request, session.get());
      status = prepared.status();
      if (prepared.ok()) admitted.lease = *std::move(prepared);
    }
    if (!interrupt.status().ok()) {
      status = interrupt.status();
    } else if (!status.ok() && request->pins == 0) {
      metrics_.requests_rejected.Add(1);
    }
    if (request->params.resume) metrics_.NoteResume(status);
  }
  if (status.ok()) {
    admitted.on_disk = LookUpOnDisk(*request);
    return channel_.Admit(std::move(admitted));
  }
  Refuse(std::move(admitted), status);
}

void EngineImpl::Refuse(AdmittedRequest admitted, const absl::Status& status) {
  const std::shared_ptr<Request> request = admitted.request;
  admitted.ticket.Release();
  admitted.charge.Settle(0);
  running_.Erase(*request);
  const Timings timings = {.queue = parts_.clock->Now() - request->arrival};
  request->sink->Finish(status, {.timings = timings});
}

std::vector<BlockKey> EngineImpl::NamedBlocks() const {
  std::vector<BlockKey> all;
  for (const PrefixRegistry::Known& known : prefixes_.AllKnown()) {
    Request request;  // that computes the prefix
    request.params.sched.tenant = known.tenant;
    request.params.cache.salt = known.salt;
    const TokenIds& ids = known.content->ids;
    const std::vector<BlockKey> keys =
        disk_->KeysOf(RootKeyOf(parts_.model_info.name, disk_->epoch(), request), ids,
                      ids.size() / static_cast<size_t>(parts_.limits.block_size));
    all.insert(all.end(), keys.begin() + 1, keys.end());
  }
  return all;
}

std::shared_ptr<const DiskChain> EngineImpl::LookUpOnDisk(const Request& request) const {
  const GenerateParams& params = request.params;
  // What follows a named prefix is not kept. Logprobs of the prompt want every row computed.
  const bool reads = request.prefix == nullptr && !params.cache.bypass_read &&
                     !params.output.prompt_logprobs.has_value();
  if (disk_ == nullptr || !reads) return nullptr;
  std::span<const int32_t> tokens = request.prompt_ids;
  if (const CacheWindow& window = request.cache_window; window.on()) {
    tokens = tokens.first(std::min<size_t>(tokens.size(), window.capacity()));
  }
  const uint64_t epoch = disk_->epoch();
  return disk_->LookUp(RootKeyOf(parts_.model_info.name, epoch, request), epoch, tokens);
}

absl::Status EngineImpl::Abort(std::string_view request_id, std::optional<std::string_view> owner) {
  ASSIGN_OR_RETURN(const auto aborted, running_.Abort(request_id, owner));
  for (const std::shared_ptr<const Request>& request : aborted) channel_.Notice(request);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Piece>> EngineImpl::Tokenize(std::string_view text, text::InputKind kind,
                                                        bool parse_special_tokens) const {
  ASSIGN_OR_RETURN(
      const std::vector<text::EncodedToken> tokens,
      frontend_.Encode(text, {.kind = kind, .parse_special_tokens = parse_special_tokens}));
  std::vector<Piece> pieces;
  pieces.reserve(tokens.size());
  for (const text::EncodedToken& token : tokens) {
    pieces.push_back({.id = token.id,
                      .piece = std::string(parts_.tokenizer->Piece(token.id)),
                      .begin = token.begin,
                      .end = token.end});
  }
  return pieces;
}

absl::StatusOr<std::string> EngineImpl::Detokenize(const TokenIds& ids,
                                                   bool skip_special_tokens) const {
  return frontend_.Decode(ids, skip_special_tokens);
}

Stats EngineImpl::stats() const {
  Stats stats{.num_waiting = tickets_.num_waiting() + metrics_.num_preempted.value(),
              .num_running = metrics_.num_running.value(),
              .blocks_total = parts_.cache.groups()[0].num_blocks,
              .blocks_free = metrics_.blocks_free.value(),
              .blocks_cached = metrics_.blocks_cached.value(),
              .blocks_held = metrics_.blocks_held.value(),
              .blocks_pinned = metrics_.blocks_pinned.value(),
              .prefixes = prefixes_.CountByState(),
              .sessions = sessions_.Counts(),
              .prefix_hits = metrics_.prefix_hits.value(),
              .prefix_saved_tokens = metrics_.prefix_saved_tokens.value(),
              .prompt_tokens_computed = metrics_.prompt_tokens_computed.value(),
              .prompt_tokens_cached = metrics_.prompt_tokens_cached.value(),
              .generated_tokens = metrics_.generated_tokens.value(),
              .scored_tokens = metrics_.scored_tokens.value(),
              .recomputed_tokens = metrics_.recomputed_tokens.value(),
              .drafted_tokens = metrics_.drafted_tokens.value(),
              .accepted_tokens = metrics_.accepted_tokens.value(),
              .drafts_expected = metrics_.drafts_expected.value(),
              .drafts_price = metrics_.drafts_price.value(),
              .block_copies = metrics_.block_copies.value(),
              .beam_copies = metrics_.beam_copies.value(),
              .preemptions = metrics_.preemptions.value(),
              .steps = metrics_.steps.value(),
              .steps_failed = metrics_.steps_failed.value(),
              .shared_prefixes = metrics_.shared_prefixes.value(),
              .saved_keys = metrics_.saved_keys.value(),
              .requests_rejected = metrics_.requests_rejected.value(),
              .deadlines_refused = metrics_.deadlines_refused.value(),
              .ttft = Snapshot(metrics_.ttft),
              .tpot = Snapshot(metrics_.tpot),
              .draining = tickets_.draining(),
              .cache_roots = metrics_.cache_roots.value(),
              .kept = {.requests = metrics_.kept_requests.value(),
                       .ids = running_.size(),
                       .sequences = metrics_.kept_sequences.value(),
                       .outputs = metrics_.kept_outputs.value(),
                       .scores = metrics_.kept_scores.value(),
                       .tenants = metrics_.kept_tenants.value()}};
  if (disk_ != nullptr) stats.disk = disk_->stats();
  for (size_t i = 0; i < stats.device.size(); ++i) stats.device[i] = metrics_.device[i].value();
  for (size_t i = 0; i < stats.followers.size(); ++i) {
    stats.followers[i] = metrics_.followers[i].value();
  }
  for (size_t i = 0; i < stats.resumes.size(); ++i) stats.resumes[i] = metrics_.resumes[i].value();
  for (size_t i = 0; i < stats.finished_by_reason.size(); ++i) {
    stats.finished_by_reason[i] = metrics_.finished_by_reason[i].value();
  }
  return stats;
}

TenantUsages EngineImpl::tenant_usages() const {
  TenantUsages all = meters_.GetAll(parts_.clock->Now());
  const std::map<std::string, double> charged = loop_.charges().AllCharged();
  for (const auto& [tenant, blocks] : charged) all.others_charged_blocks += blocks;
  for (size_t i = 0; i < all.tenants.size(); ++i) {
    const auto it = charged.find(all.tenants[i].name);
    if (it == charged.end()) continue;
    all.tenants[i].charged_blocks = it->second;
    if (i < all.num_lasting) all.others_charged_blocks -= it->second;
  }
  return all;
}

Liveness EngineImpl::liveness() const {
  return {.step_busy = metrics_.step.busy_for(),
          .step_sequences = metrics_.step_sequences.value(),
          .step_tokens = metrics_.step_tokens.value(),
          .frontend_busy = workers_->longest_busy(),
          .failed_steps = metrics_.failed_steps.value(),
          .since_failure = metrics_.since_failure.busy_for(),
          .device_lost = metrics_.device_lost.value() != 0};
}

absl::Status EngineImpl::WaitIdle(absl::Duration timeout) {
  if (!running_.WaitUntilIdle(timeout)) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "%d requests still run after %s", running_.size(), absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::WarmUp() {
  return WithMemoryCure(loop_.WarmUp(),
                        ": steps need it beside weights and KV cache; lower "
                        "--gpu_memory_utilization or --kv_cache_mib");
}

void EngineImpl::FailAll(const absl::Status& status) {
  tickets_.StartDrain();
  loop_.LogLastSteps();
  for (const std::shared_ptr<Request>& request : running_.TakeAll()) {
    request->sink->Finish(status, {});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineParts parts, const EngineConfig& config) {
  ASSIGN_OR_RETURN(KeptOnDisk kept, OpenKept(parts, config));
  auto engine = std::make_unique<EngineImpl>(std::move(parts), config, std::move(kept));
  RETURN_IF_ERROR(engine->WarmUp());
  engine->Start();
  return engine;
}

absl::StatusOr<std::unique_ptr<SteppedEngine>> MakeSteppedEngine(EngineParts parts,
                                                                 EngineConfig config) {
  config.frontend_threads = 0;
  ASSIGN_OR_RETURN(KeptOnDisk kept, OpenKept(parts, config));
  auto engine = std::make_unique<EngineImpl>(std::move(parts), config, std::move(kept));
  RETURN_IF_ERROR(engine->WarmUp());
  return engine;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config) {
  ASSIGN_OR_RETURN(EngineParts parts, LoadEngineParts(config));
  return MakeEngine(std::move(parts), config);
}

}  // namespace quire::engine
