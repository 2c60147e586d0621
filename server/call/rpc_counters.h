#pragma once

// Counts how often each RPC ended with each code, and how many calls of InferenceService are open.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/mutex.h"

namespace quire::server {

enum class Rpc : uint8_t {
  kGenerate,
  kGenerateStream,
  kScore,
  kGenerateBatch,
  kTokenize,
  kDetokenize,
  kApplyChatTemplate,
  kListModels,
  kGetModelInfo,
  kGetServerInfo,
  kGetStats,
  kGetCacheMap,
  kAbort,
  kDrain,
  kFlushPrefixCache,
  kGetQuota,
  kListTenants,
  kCreatePrefix,
  kGetPrefix,
  kListPrefixes,
  kUpdatePrefix,
  kDeletePrefix,
  kWarmPrefix,
  kCreateSession,
  kGetSession,
  kListSessions,
  kAppendToSession,
  kForkSession,
  kCloseSession,
  kConverse,
};

struct RpcName {
  std::string_view service;  // of quire.v1
  std::string_view method;   // no two services have one of the same name
};

inline constexpr auto kRpcs = std::to_array<RpcName>({
    {"InferenceService", "Generate"},
    {"InferenceService", "GenerateStream"},
    {"InferenceService", "Score"},
    {"InferenceService", "GenerateBatch"},
    {"TokenService", "Tokenize"},
    {"TokenService", "Detokenize"},
    {"TokenService", "ApplyChatTemplate"},
    {"ControlService", "ListModels"},
    {"ControlService", "GetModelInfo"},
    {"ControlService", "GetServerInfo"},
    {"ControlService", "GetStats"},
    {"ControlService", "GetCacheMap"},
    {"ControlService", "Abort"},
    {"ControlService", "Drain"},
    {"ControlService", "FlushPrefixCache"},
    {"TenantService", "GetQuota"},
    {"TenantService", "ListTenants"},
    {"PrefixService", "CreatePrefix"},
    {"PrefixService", "GetPrefix"},
    {"PrefixService", "ListPrefixes"},
    {"PrefixService", "UpdatePrefix"},
    {"PrefixService", "DeletePrefix"},
    {"PrefixService", "WarmPrefix"},
    {"SessionService", "CreateSession"},
    {"SessionService", "GetSession"},
    {"SessionService", "ListSessions"},
    {"SessionService", "AppendToSession"},
    {"SessionService", "ForkSession"},
    {"SessionService", "CloseSession"},
    {"SessionService", "Converse"},
});

// Returns the path of an RPC, such as "/quire.v1.TokenService/Tokenize".
std::string PathOf(Rpc rpc);
// Returns the RPC that `path` names, or nullopt if it names none of quire.v1.
std::optional<Rpc> FindRpc(std::string_view path);

inline constexpr std::array<std::string_view, 17> kStatusCodeNames = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

// Thread-safe.
class RpcCounters {
 public:
  void Count(Rpc rpc, absl::StatusCode code) {
    counts_[static_cast<size_t>(rpc)][static_cast<size_t>(code)].fetch_add(
        1, std::memory_order_relaxed);
  }
  uint64_t Get(size_t rpc, size_t code) const {
    return counts_[rpc][code].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::array<std::atomic<uint64_t>, kStatusCodeNames.size()>, kRpcs.size()> counts_{};
};

// Counts the open calls of InferenceService. A call counts from the start of its handler until gRPC
// is done with it. Thread-safe.
class OpenCalls {
 public:
  void Begin();
  void End();
  int64_t Get() const;
  // Waits until no call is open. Returns false when `deadline`, a time of base::SteadyClock(),
  // passes first.
  bool WaitUntilNone(absl::Time deadline) const;

 private:
  mutable base::Mutex mu_;
  mutable base::CondVar none_;
  int64_t num_open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace quire::server
