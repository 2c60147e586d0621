// The functions of PrefixRegistry that bring a prefix into memory: the engine's own request for it,
// and what its end makes of the prefix.

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/sharing/prefix_registry.h"

namespace quire::engine {
namespace {

absl::Status Ended() { return absl::NotFoundError("prefix: it ended before it was ready"); }

}  // namespace

// The sink of the request that computes a prefix.
class PrefixRegistry::Sink final : public TokenSink {
 public:
  Sink(PrefixRegistry& registry, RecordPtr record)
      : registry_(registry), record_(std::move(record)) {}
  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta) override {}
  void Finish(const absl::Status& status, const RequestSummary&) override {
    registry_.OnComputed(record_, status);
  }

 private:
  PrefixRegistry& registry_;
  const RecordPtr record_;
};

std::shared_ptr<Request> PrefixRegistry::NewRequest(const RecordPtr& record,
                                                    const TenantLimits& limits) {
  auto request = std::make_shared<Request>();
  request->params.request_id = record->name;
  request->params.id_is_name = true;
  request->params.owner = "prefixes";
  request->params.sched.tenant = record->tenant;
  request->params.cache.salt = record->salt;
  request->params.limits = limits;
  request->pins = record->pin_id;
  request->sink = std::make_shared<Sink>(*this, record);
  return request;
}

absl::Status PrefixRegistry::Prepare(Request& request) {
  RecordPtr record;
  std::shared_ptr<const PrefixContent> known;
  {
    base::MutexLock lock(mu_);
    record = table_.FindPin(request.pins);
    if (record == nullptr) return Ended();
    known = record->content;
  }
  RETURN_IF_ERROR(Validate(request.params.sampling, request.params.stop, request.params.output,
                           request.params.cache, request.params.sched, /*vocab_size=*/1));
  // Nothing else reads `given` before the content is set.
  ASSIGN_OR_RETURN(TokenIds ids, known != nullptr ? frontend_.EncodePrefix(known->ids)
                                                  : frontend_.EncodePrefix(record->given));
  std::vector<int64_t> blocks = config_.blocks_of(std::ssize(ids));
  request.prompt_ids = ids;
  request.params.sampling.temperature = 0.0f;
  request.max_tokens = 1;
  RETURN_IF_ERROR(CheckQuota(*record, blocks[0], request.params.limits.max_blocks));
  if (known != nullptr) {
    RETURN_IF_ERROR(ledger_.Pin("prefix", record->tenant, request.params.limits, blocks));
    base::MutexLock lock(mu_);
    record->blocks = std::move(blocks);
    return absl::OkStatus();
  }
  auto content = std::make_shared<PrefixContent>();
  content->pin = record->pin_id;
  content->tenant = record->tenant;
  content->ids = std::move(ids);
  content->given = std::move(record->given);
  std::string digest = ContentDigest(config_.model_digest, content->ids);
  RETURN_IF_ERROR(ledger_.Pin("prefix", record->tenant, request.params.limits, blocks));
  base::MutexLock lock(mu_);
  record->blocks = std::move(blocks);
  record->content_sha256 = std::move(digest);
  record->content = std::move(content);
  return absl::OkStatus();
}

absl::Status PrefixRegistry::CheckQuota(const PrefixRecord& record, int64_t num_blocks,
                                        int32_t max_blocks) const {
  if (max_blocks == 0) return absl::OkStatus();
  int64_t num_pinned = 0;
  base::MutexLock lock(mu_);
  for (const auto& [pin, other] : table_.records()) {
    if (other->tenant == record.tenant && !other->blocks.empty()) num_pinned += other->blocks[0];
  }
  if (num_pinned + num_blocks <= max_blocks) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "max_blocks: the tenant may hold %d blocks, its prefixes hold %d, and this one wants %d: "
      "delete prefixes, or wait until they end",
      max_blocks, num_pinned, num_blocks));
}

void PrefixRegistry::OnComputed(const RecordPtr& record, const absl::Status& status) {
  absl::Status result = status;
  if (status.ok() && log_ != nullptr) {
    base::MutexLock lock(mu_);
    const bool is_to_write = !record->is_warming && !record->is_gone;
    if (is_to_write && !stopping_) {  // WriteLog completes it
      computed_.push_back(record);
      if (config_.on_earlier_timer) config_.on_earlier_timer();
      return;
    }
    if (is_to_write) result = absl::UnavailableError("prefix: the server stops");
  }
  Complete(record, result, /*is_pinned=*/status.ok());
}

void PrefixRegistry::Complete(const RecordPtr& record, const absl::Status& status, bool is_pinned) {
  std::vector<Done> waiters;
  std::vector<int64_t> unused;
  absl::StatusOr<PrefixInfo> result = Ended();
  bool is_gone = false;
  {
    base::MutexLock lock(mu_);
    if (record->request == nullptr)
      return;  // the engine has failed all, and ends this a second time
    if (status.ok()) record->pinned_ids = std::move(record->request->pinned_ids);
    record->request = nullptr;
    is_gone = record->is_gone;
    waiters.swap(record->waiters);
    const bool was_cold = std::exchange(record->is_warming, false);
    if (!status.ok() && !is_pinned) unused.swap(record->blocks);
    if (status.ok()) {
      record->state = PrefixState::kReady;
    } else if (was_cold) {
      // What is missing is memory, or time. The prefix is still known.
      record->state = PrefixState::kCold;
      record->warm_again = clock_.Now() + kWarmPause;
    } else {
      record->state = PrefixState::kFailed;
      record->error = status;
      record->refresh_on_hit = false;
      table_.SetEndAfter(*record, kFailedKept);
    }
    if (!is_gone) {
      SetTimer(*record);
      result = InfoOf(*record, /*for_owner=*/true);
      if (was_cold && !status.ok()) result = status;
    }
  }
  if (!unused.empty()) ledger_.Unpin(record->tenant, unused);
  if (is_gone || !status.ok()) GiveBack(record);
  for (Done& done : waiters) std::move(done)(result);
}

void PrefixRegistry::GiveBack(const RecordPtr& record) {
  std::shared_ptr<Request> request;
  std::vector<int64_t> blocks;
  {
    base::MutexLock lock(mu_);
    request = record->request;
    if (request == nullptr) blocks.swap(record->blocks);
  }
  // A prefix that is being computed comes back through OnComputed.
  if (request != nullptr) return host_.Cancel(request);
  if (blocks.empty()) return;
  host_.Unpin(record->pin_id, [this, record, blocks = std::move(blocks)] {
    ledger_.Unpin(record->tenant, blocks);
  });
}

std::shared_ptr<Request> PrefixRegistry::BeginWarming(const RecordPtr& record,
                                                      const TenantLimits& limits) {
  record->state = PrefixState::kComputing;
  record->is_warming = true;
  record->request = NewRequest(record, limits);
  return record->request;
}

void PrefixRegistry::StartWarming(const RecordPtr& record, std::shared_ptr<Request> request) {
  const int64_t num_tokens = std::ssize(record->content->ids);
  if (absl::Status status = host_.ComputeKnown(std::move(request), num_tokens); !status.ok()) {
    Complete(record, status, /*is_pinned=*/false);
  }
}

void PrefixRegistry::Warm(const ContextCaller& caller, std::string_view name, Done done) {
  RecordPtr record;
  std::shared_ptr<Request> warming;
  const auto try_info = [&]() -> absl::StatusOr<PrefixInfo> {
    base::MutexLock lock(mu_);
    ASSIGN_OR_RETURN(record, FindOwn(caller, name, ""));
    if (record->state == PrefixState::kCold) warming = BeginWarming(record, caller.limits);
    if (record->state == PrefixState::kComputing) record->waiters.push_back(std::move(done));
    return InfoOf(*record, /*for_owner=*/true);
  };
  absl::StatusOr<PrefixInfo> info = try_info();
  if (warming != nullptr) return StartWarming(record, std::move(warming));
  if (done) std::move(done)(std::move(info));
}

absl::StatusOr<std::shared_ptr<const PrefixContent>> PrefixRegistry::Resolve(
    std::string_view tenant, const TenantLimits& limits, std::string_view name) {
  RecordPtr record;
  std::shared_ptr<Request> warming;
  std::shared_ptr<const PrefixContent> content;
  {
    base::MutexLock lock(mu_);
    ASSIGN_OR_RETURN(record, Find({.tenant = std::string(tenant)}, name));
    if (record->state == PrefixState::kFailed) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "prefix: \"%s\" could not be computed: %s", name, record->error.message()));
    }
    if (record->content == nullptr) {
      return absl::UnavailableError(
          absl::StrFormat("prefix: \"%s\" is still being tokenized: try again", name));
    }
    content = record->content;
    if (record->state == PrefixState::kCold && clock_.Now() >= record->warm_again) {
      // The caller may be another tenant, whose limits are not the owner's; but if one has others,
      // all have.
      warming = BeginWarming(record, {.has_others = limits.has_others});
    }
  }
  if (warming != nullptr) StartWarming(record, std::move(warming));
  return content;
}

}  // namespace quire::engine
