#pragma once

// Runs the requests of a batch, a bounded number at a time, and writes each answer when its request
// has ended.
//
// This file does not use gRPC. It sees the call through BatchWriter.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/engine.h"
#include "server/call/egress.h"

namespace quire::server {

// The answer of one request of a batch.
struct BatchAnswer {
  int32_t index = 0;    // of the request in the batch
  absl::Status status;  // the error of a request that failed
  std::vector<engine::TokenDelta> samples;
  engine::RequestSummary summary;
};

// The call of a batch. Called by the egress thread alone.
class BatchWriter {
 public:
  virtual ~BatchWriter() = default;
  // Submits request `index` to the engine. Called again after ResourceExhausted, unless no request
  // of the batch ran then.
  virtual absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      int32_t index, std::shared_ptr<engine::TokenSink> sink) = 0;
  // Returns true if the answer of request `index` has token ids.
  virtual bool HasTokenIds(int32_t index) const = 0;
  // Starts a write. When the write has ended, the writer must call Batch::OnWriteDone.
  virtual void Write(BatchAnswer answer) = 0;
  // Ends the RPC: with OK, or with Cancelled after Batch::Cancel. `total` has the sums of the usage
  // of all requests. Close is the last call on a writer, which may be destroyed when Close returns.
  virtual void Close(const absl::Status& status, const engine::RequestSummary& total) = 0;
  // Cancels the RPC because its client does not read. The write in flight then fails.
  virtual void Abandon() = 0;
};

struct BatchOptions {
  int32_t num_requests = 0;   // at least 1
  int32_t max_in_flight = 0;  // at least 1
  // The least time that a write may take before the call is abandoned. The most is twice as long.
  absl::Duration linger = absl::Seconds(30);
};

// At most max_in_flight requests run or have an answer that is not written yet. Requests start in
// their order. A request that the engine's queue has no room for is tried again when one of the
// batch has ended. If none of the batch runs, the refusal is its answer.
//
// All state belongs to the egress thread, except the atomics.
class Batch final : public Egress::Outlet, public std::enable_shared_from_this<Batch> {
 public:
  // `egress` must outlive the RPC. `writer` must live until the batch calls its Close.
  Batch(const BatchOptions& options, Egress& egress, BatchWriter& writer);
  ~Batch() override;

  // Starts the first requests soon. Called once.
  void Start() { egress_.Wake(shared_from_this()); }
  // Cancels the requests that run, and starts no more. The writer's Close follows when they have
  // ended. Thread-safe.
  void Cancel();
  // Must be called when the write in flight has ended. If !ok, the client has disconnected, and the
  // batch is cancelled. Thread-safe.
  void OnWriteDone(bool ok);

 private:
  class Item;  // a request that runs

  void Pump() override;
  void SubmitSome();
  void TakeEnd(BatchAnswer answer);
  void CheckReader();

  const BatchOptions options_;  // constant
  Egress& egress_;              // not owned
  BatchWriter& writer_;         // not owned

  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> write_done_ = false;  // the write in flight has ended

  // Egress thread only.
  std::map<int32_t, std::unique_ptr<Item>> running_;  // by index
  std::deque<BatchAnswer> unsent_;
  int32_t next_ = 0;  // the next request to start
  bool writing_ = false;
  absl::Time write_began_;
  absl::Time alarm_at_ = absl::InfinitePast();
  bool has_cancelled_ = false;  // the running requests were told of cancelled_
  bool closed_ = false;
  engine::RequestSummary total_;
};

}  // namespace quire::server
