#pragma once

// NamedPrefixes in memory, without an engine: what a caller sees of names, owners, allow lists,
// etags, ends and quotas, but no blocks.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"

#include "base/mutex.h"
#include "engine/request/named_prefixes.h"

namespace quire::testing {

// Thread-safe. A token is a byte of a text, an id, or a byte of a message. Time is that of Advance,
// from absl::Now() at construction on.
class FakePrefixes final : public engine::NamedPrefixes {
 public:
  // A tenant may own this number of prefixes.
  static constexpr int64_t kMaxPrefixes = 2000;
  // A prefix with more tokens fails.
  static constexpr int64_t kMaxTokens = 1000;

  // While held, new prefixes stay COMPUTING.
  void Hold();
  // Completes the prefixes that compute.
  void Release();
  void Advance(absl::Duration by);
  int64_t num_prefixes() const;
  int64_t num_computing() const;
  // The parameters of the prefix that was created last.
  engine::PrefixParams last_params() const;
  // Waits until `num_prefixes` is this. Returns false after ten seconds.
  bool WaitForPrefixes(int64_t number) const;

  absl::StatusOr<std::string> Create(engine::PrefixParams params, Done done) override;
  absl::StatusOr<engine::PrefixInfo> Get(const engine::ContextCaller& caller,
                                         std::string_view name) const override;
  absl::StatusOr<Page> List(const engine::ContextCaller& caller, std::optional<std::string> tenant,
                            uint64_t after, int32_t at_most) const override;
  absl::StatusOr<engine::PrefixInfo> Update(const engine::ContextCaller& caller,
                                            const engine::PrefixUpdate& update) override;
  absl::Status Delete(const engine::ContextCaller& caller, std::string_view name,
                      std::string_view etag) override;
  void Warm(const engine::ContextCaller& caller, std::string_view name, Done done) override;

 private:
  struct Entry {
    engine::PrefixParams params;
    engine::PrefixInfo info;
    std::vector<Done> waiting;  // while COMPUTING
  };
  using Entries = std::map<uint64_t, Entry>;  // by the order of creation
  using Calls = std::vector<std::pair<Done, absl::StatusOr<engine::PrefixInfo>>>;

  // Returns NotFound unless the caller may use a prefix of this name.
  absl::StatusOr<uint64_t> Find(const engine::ContextCaller& caller, std::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Also returns PermissionDenied unless the caller may change it, and Aborted if it has another
  // etag.
  absl::StatusOr<uint64_t> FindToChange(const engine::ContextCaller& caller, std::string_view name,
                                        std::string_view etag) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  engine::PrefixInfo InfoFor(const engine::ContextCaller& caller, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Calls Compute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void SetExpiration(const engine::PrefixExpiration& expiration, absl::Time now,
                            engine::PrefixInfo& info);
  static void Run(Calls calls);

  mutable base::Mutex mu_;
  mutable base::CondVar changed_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::Now();
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_updates_ ABSL_GUARDED_BY(mu_) = 0;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  engine::PrefixParams last_params_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::testing
