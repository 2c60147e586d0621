#pragma once

// Sends a workload to a server. In an open loop each request is sent at its planned time, even when
// earlier requests are unanswered. In a closed loop a fixed number of requests is always running.

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
  std::optional<uint64_t> num_requests;    // num_requests or duration must be set
  std::optional<absl::Duration> duration;  // after this, no request is sent; running ones go on
  v1::GenerateRequest request;             // all fields but the prompt and the length
  std::optional<uint64_t>
      first_sampling_seed;  // request k has first_sampling_seed + k; absent: the server chooses
};

struct LoadProgress {
  absl::Duration elapsed;
  uint64_t num_sent = 0;
  uint64_t num_done = 0;
  uint64_t num_failed = 0;
  uint64_t num_tokens = 0;
};

// Sends the requests of a workload and records the answers. Run blocks its caller, while the
// callbacks of the streams run on gRPC's threads. The callbacks do little work, because the load
// may share the machine with the server.
class Load {
 public:
  // Distributes the requests round robin over `connections`, which must outlive this object.
  Load(LoadOptions options, Workload workload, std::vector<Connection*> connections);
  ~Load();

  // Sends the load and waits for its end, or for Stop. `on_progress` is called a few times a
  // second.
  std::vector<RequestRecord> Run(const std::function<void(const LoadProgress&)>& on_progress);
  absl::Duration wall() const;  // the time that Run took, once it has returned
  // Sends no more requests and cancels the running ones. Thread-safe.
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
