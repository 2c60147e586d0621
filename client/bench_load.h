#pragma once

// Puts a workload on a server: open loop (a request goes out when its time has come, however many
// are unanswered) or closed loop (a fixed number is always under way).

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"

#include "base/mutex.h"
#include "client/bench_report.h"
#include "client/bench_workload.h"
#include "client/connection.h"

namespace quire::client {

struct LoadOptions {
  uint32_t concurrency = 1;  // closed loop; not used when `open_loop`
  bool open_loop = false;
  std::optional<uint64_t> num_requests;    // at least one of the two
  std::optional<absl::Duration> duration;  // no request is sent later; those under way end
  v1::GenerateRequest request;             // all but the prompt and the length
  std::optional<uint64_t>
      first_sampling_seed;  // request k samples with this + k; absent: the server's choice
};

struct LoadProgress {
  absl::Duration elapsed;
  uint64_t num_sent = 0;
  uint64_t num_done = 0;
  uint64_t num_failed = 0;
  uint64_t num_tokens = 0;
};

// Streams run on gRPC's threads; Run waits on the caller's. Costs a few microseconds a message,
// since it shares the machine with the server.
class Load {
 public:
  // Requests take turns on `connections`, which must outlive this.
  Load(LoadOptions options, Workload workload, std::vector<Connection*> connections);
  ~Load();

  // To the end, or until Stop. `on_progress` is called some times a second.
  std::vector<RequestRecord> Run(const std::function<void(const LoadProgress&)>& on_progress);
  absl::Duration wall() const;  // of Run, once it has returned
  // From any thread: sends nothing more and cancels what is under way.
  void Stop();

 private:
  struct Live;

  absl::Duration Elapsed() const;
  void Send(const PlannedRequest& planned);
  void OnMessage(Live& live, StreamCall& call, const v1::GenerateStreamResponse& message);
  void OnDone(Live& live, const absl::Status& status);
  bool WaitForTurn(const PlannedRequest& planned,
                   const std::function<void(const LoadProgress&)>& on_progress);

  const LoadOptions options_;                   // constant after construction
  const std::vector<Connection*> connections_;  // not owned
  Workload workload_;                           // Run's thread only
  uint64_t num_sent_ = 0;
  std::chrono::steady_clock::time_point start_;
  absl::Duration next_progress_;
  absl::Duration wall_;

  mutable base::Mutex mu_;
  base::CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t num_live_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_failed_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> num_tokens_ = 0;
};

}  // namespace quire::client
