#pragma once

// The named prefixes of an engine: who owns them, who may use them, and when they end.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/admission/cache_ledger.h"
#include "engine/frontend/frontend.h"
#include "engine/request/named_prefixes.h"
#include "engine/sharing/context_table.h"
#include "engine/sharing/prefix_log.h"
#include "engine/sharing/prefix_record.h"

namespace quire::engine {

// The services that the registry asks of its engine. Called without a lock of the registry.
class PrefixHost {
 public:
  virtual ~PrefixHost() = default;
  // Takes a request of the engine's own, whose pins is set. Calls PrefixRegistry::Prepare on a
  // frontend thread, computes and pins the prompt, and calls the sink's Finish, exactly once unless
  // this returns an error. The status is OK if the prompt is pinned. `num_bytes` of text are to be
  // tokenized.
  virtual absl::Status Compute(std::shared_ptr<Request> request, int64_t num_bytes) = 0;
  // As Compute, for a prompt of `num_tokens` whose ids are known: calls Prepare on this thread. A
  // request on the prefix that is submitted after this comes to the step thread after it.
  virtual absl::Status ComputeKnown(std::shared_ptr<Request> request, int64_t num_tokens) = 0;
  virtual void Cancel(const std::shared_ptr<Request>& request) = 0;
  // Ends a pin and then calls `done`, on the step thread.
  virtual void Unpin(uint64_t pin, std::function<void()> done) = 0;
};

struct PrefixRegistryConfig {
  std::string model;         // the served one
  std::string model_digest;  // of its file: see files/model_digest.h
  int32_t block_size = 0;
  // Returns the blocks, by KV group, that a pin of so many tokens holds.
  std::function<std::vector<int64_t>(int64_t num_tokens)> blocks_of;
  std::vector<int64_t> bytes_per_block;  // by KV group
  // Returns what the owner is charged for blocks that its pin holds. Called under the lock of the
  // registry.
  std::function<double(std::span<const int32_t> ids)> charged_for;
  // Called when RunTimers has something to do earlier than it said. Must not call back.
  std::function<void()> on_earlier_timer = {};
};

// The registry says what should be; the step thread knows what is pinned. A prefix is
//
//   COMPUTING -> READY, while the engine's own request computes it, or -> FAILED, for a minute;
//   any of these -> gone: deleted, or past its end;
//   after a restart: COLD -> COMPUTING, by a use or Warm(), -> READY, or COLD again.
//
// With a log, a prefix is on disk before it is READY, and so is known after a restart.
//
// A request resolves the name once and then shares the content, so the end of a prefix takes
// nothing from it. A hit only writes its time. The timer of the prefix, when it fires, looks
// whether a hit has moved the end, and is set anew.
//
// One mutex guards the records; no other function is called under it but those of the ledger and of
// the config. `frontend`, `ledger`, `clock` and `host` must outlive the registry.
class PrefixRegistry final : public NamedPrefixes {
 public:
  static constexpr absl::Duration kFailedKept = absl::Minutes(1);
  // After a cold prefix could not be brought back, uses do not try again for this time.
  static constexpr absl::Duration kWarmPause = absl::Seconds(10);
  // After an error of the disk, the log is written again after this time.
  static constexpr absl::Duration kLogPause = absl::Seconds(30);

  // `log` may be null: the prefixes then end with the registry.
  PrefixRegistry(PrefixRegistryConfig config, const Frontend& frontend, CacheLedger& ledger,
                 const base::Clock& clock, PrefixHost& host, std::unique_ptr<PrefixLog> log);
  ~PrefixRegistry() override { Stop(); }

  // Writes what is to be written, after the last call of RunTimers. The prefixes stay as they are.
  // One that is computed afterwards fails.
  void Stop();
  // Ends what is past its end, and writes the log. Returns when it must be called again.
  absl::Time RunTimers();

  // What is known of each prefix that is tokenized.
  struct Known {
    std::string tenant;
    std::string salt;
    std::shared_ptr<const PrefixContent> content;
  };
  std::vector<Known> AllKnown() const;

  absl::StatusOr<std::string> Create(PrefixParams params, Done done) override;
  absl::StatusOr<PrefixInfo> Get(const ContextCaller& caller, std::string_view name) const override;
  absl::StatusOr<Page> List(const ContextCaller& caller, std::optional<std::string> tenant,
                            uint64_t after, int32_t at_most) const override;
  absl::StatusOr<PrefixInfo> Update(const ContextCaller& caller,
                                    const PrefixUpdate& update) override;
  absl::Status Delete(const ContextCaller& caller, std::string_view name,
                      std::string_view etag) override;
  void Warm(const ContextCaller& caller, std::string_view name, Done done) override;

  // Returns the content on which a request of `tenant` runs. NotFound as above; FailedPrecondition
  // if the prefix has failed; Unavailable while it is not tokenized yet. A cold prefix begins to be
  // computed. `limits` are those of the tenant.
  absl::StatusOr<std::shared_ptr<const PrefixContent>> Resolve(std::string_view tenant,
                                                               const TenantLimits& limits,
                                                               std::string_view name);
  // True if the ledger counts the blocks of the prefix with this pin, so that a request on it need
  // not bring them along.
  bool IsCounted(uint64_t pin) const;
  // Fills the members of the engine's own request for a prefix. On a frontend thread, or in
  // PrefixHost::ComputeKnown.
  absl::Status Prepare(Request& request);
  // The number of prefixes in each PrefixState.
  std::array<int64_t, kNumPrefixStates> CountByState() const;

 private:
  class Sink;
  using RecordPtr = std::shared_ptr<PrefixRecord>;

  // ResourceExhausted if the prefixes of the record's tenant would hold more than max_blocks.
  absl::Status CheckQuota(const PrefixRecord& record, int64_t num_blocks, int32_t max_blocks) const;
  // OnComputed is called on any thread. Complete ends the computation of a prefix: with the error
  // if it failed, or after the log has it. `is_pinned`: the step thread holds its blocks.
  void OnComputed(const RecordPtr& record, const absl::Status& status);
  void Complete(const RecordPtr& record, const absl::Status& status, bool is_pinned);
  // Returns the engine's own request for a prefix. Nobody changes it after the record has it: other
  // threads may cancel it from then on.
  std::shared_ptr<Request> NewRequest(const RecordPtr& record, const TenantLimits& limits);
  // Gives back what a record holds, once it is gone and nothing computes it.
  void GiveBack(const RecordPtr& record);

  absl::StatusOr<RecordPtr> Find(const ContextCaller& caller, std::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Find, for what only the owner may do.
  absl::StatusOr<RecordPtr> FindOwn(const ContextCaller& caller, std::string_view name,
                                    std::string_view etag) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PrefixInfo InfoOf(const PrefixRecord& record, bool for_owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetExpiration(PrefixRecord& record, const PrefixExpiration& expiration) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetTimer(PrefixRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // In prefix_registry_log.cc: what becomes of prefixes on disk.
  void Restore();
  // Returns the time from which on WriteLog has something to do.
  absl::Time NextWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes and syncs what has changed, then completes the prefixes that were computed.
  void WriteLog();
  absl::Status RewriteLog();
  // Notes that the log is to be told of a change.
  void NoteChange(const PrefixRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SavedPrefix SavedOf(const PrefixRecord& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to compute a cold prefix, and returns its request. After mu_ is released, StartWarming
  // hands the request to the host.
  std::shared_ptr<Request> BeginWarming(const RecordPtr& record, const TenantLimits& limits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartWarming(const RecordPtr& record, std::shared_ptr<Request> request);

  const PrefixRegistryConfig config_;
  const Frontend& frontend_;
  CacheLedger& ledger_;
  const base::Clock& clock_;
  PrefixHost& host_;

  const std::unique_ptr<PrefixLog> log_;  // null: none; used by whoever runs the timers

  mutable base::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ContextTable<PrefixRecord> table_ ABSL_GUARDED_BY(mu_);  // each record has a timer
  // Only with a log: pins whose state on disk is old, those that are gone, and prefixes that are
  // computed and not on disk yet. The times before which nothing is written because the disk had an
  // error, and no change because it had no space.
  std::set<uint64_t> changed_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> ended_ ABSL_GUARDED_BY(mu_);
  std::vector<RecordPtr> computed_ ABSL_GUARDED_BY(mu_);
  absl::Time log_again_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time grow_again_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace quire::engine
