#pragma once

// Writes the answers of calls. The step thread puts deltas into a sink, and the egress thread
// writes the deltas to the sink's call.
//
// Writing a message takes far longer than adding a token to it, and the step thread must not spend
// that time. So a sink only collects deltas, and the egress thread starts the writes. Each stream
// has at most one write in flight. Deltas that arrive during a write are sent together in the next
// write. When a client does not read, the write stays in flight, the sink fills, and the engine
// stops planning that request. Other requests are not affected.
//
// This file does not use gRPC. It sees calls through StreamWriter and UnaryWriter.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/heartbeat.h"
#include "base/mutex.h"
#include "engine/request/delta_buffer.h"
#include "engine/request/token_sink.h"

namespace quire::server {

// The egress thread. Must outlive every call that a sink serves.
class Egress {
 public:
  // An object that has work for the egress thread.
  class Outlet {
   public:
    virtual ~Outlet() = default;

   private:
    friend class Egress;
    // Called on the egress thread. Does the work that can be done now, without waiting.
    virtual void Pump() = 0;

    std::atomic<bool> woken_ = false;  // is in Egress::woken_
  };

  Egress();
  ~Egress();  // pumps the outlets that have been woken, and joins the thread
  Egress(const Egress&) = delete;
  Egress& operator=(const Egress&) = delete;

  // Returns the time since the thread began its current pump, or zero while it waits for work.
  absl::Duration busy_for() const { return heartbeat_.busy_for(); }

  // Pumps `outlet` soon. Thread-safe and cheap. Several calls before the pump count as one.
  void Wake(std::shared_ptr<Outlet> outlet);
  // Runs `work`, which must not wait, on the egress thread soon. Thread-safe and cheap.
  void Post(std::function<void()> work);
  // Pumps `outlet` after `delay`, if `outlet` still exists. Thread-safe. Every call must have the
  // same delay, because the alarms are kept in the order of the calls.
  void WakeAfter(std::weak_ptr<Outlet> outlet, absl::Duration delay);

 private:
  struct Alarm {
    absl::Time due;
    std::weak_ptr<Outlet> outlet;
  };

  void Run();
  // Waits for outlets that must be pumped now, and moves them to `work`. Returns false when the
  // egress stops and no woken outlet is left. Alarms that are not due yet are then ignored.
  bool WaitForWork(std::vector<std::shared_ptr<Outlet>>& work);

  base::Mutex mu_;
  base::CondVar work_or_stop_;
  std::vector<std::shared_ptr<Outlet>> woken_ ABSL_GUARDED_BY(mu_);
  std::deque<Alarm> alarms_ ABSL_GUARDED_BY(mu_);  // soonest first
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  base::Heartbeat heartbeat_;
  std::thread thread_;  // declared last, because it uses the other members
};

// A server-streaming call. Called by the egress thread alone.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // Starts a write. When the write has ended, the writer must call StreamSink::OnWriteDone.
  // `summary` is null until the last message.
  virtual void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) = 0;
  // Ends the RPC. Close is the last call on a writer, which may be destroyed when Close returns.
  virtual void Close(const absl::Status& status, const engine::RequestSummary& summary) = 0;
  // Cancels the RPC because its reader does not read. The write in flight then fails.
  virtual void Abandon() = 0;
};

struct StreamSinkOptions {
  int32_t num_samples = 1;
  bool token_ids = false;  // sends the token ids
  // The largest number of deltas and of bytes that may wait while a write is in flight.
  int64_t max_deltas = 256;
  int64_t max_bytes = 1 << 20;
  // The time that a reader may take for the rest of the answer after the request has ended.
  absl::Duration linger = absl::Seconds(30);
};

class StreamSink : public engine::TokenSink,
                   public Egress::Outlet,
                   public std::enable_shared_from_this<StreamSink> {
 public:
  // `egress` must outlive the RPC. `writer` must live until the sink calls its Close.
  StreamSink(const StreamSinkOptions& options, Egress& egress, StreamWriter& writer);

  bool CanTake(int32_t num_deltas) const override;
  void SetOnRoom(std::function<void()> on_room) override { on_room_ = std::move(on_room); }
  void Put(engine::TokenDelta delta) override;
  void Finish(const absl::Status& status, const engine::RequestSummary& summary) override;

  // Must be called when the write in flight has ended. If !ok, the reader has disconnected, and the
  // sink writes nothing more.
  void OnWriteDone(bool ok);

 private:
  void Pump() override;

  const StreamSinkOptions options_;  // constant
  Egress& egress_;                   // not owned
  StreamWriter& writer_;             // not owned
  std::function<void()> on_room_;    // constant once submitted

  std::deque<engine::TokenDelta> outgoing_;  // egress thread only: taken out, not yet written
  bool closed_ = false;                      // egress thread only
  bool lingering_ = false;                   // egress thread only: the alarm is set
  absl::Time abandon_at_;                    // egress thread only

  mutable base::Mutex mu_;
  engine::DeltaBuffer waiting_ ABSL_GUARDED_BY(mu_);
  mutable bool room_is_wanted_ ABSL_GUARDED_BY(mu_) = false;  // CanTake returned false
  int32_t num_ended_ ABSL_GUARDED_BY(mu_) = 0;                // samples
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool reader_gone_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  engine::RequestSummary summary_ ABSL_GUARDED_BY(mu_);
};

// Cancels a unary call whose client does not read the answer in time. Otherwise gRPC would keep the
// answer until the client reads it.
class AnswerLinger final : public Egress::Outlet,
                           public std::enable_shared_from_this<AnswerLinger> {
 public:
  // `egress` must outlive this object. `abandon` must start the cancellation and return without
  // waiting for it.
  AnswerLinger(Egress& egress, absl::Duration linger, std::function<void()> abandon)
      : egress_(egress), linger_(linger), abandon_(std::move(abandon)) {}

  // Starts the linger time. Must be called before the answer is handed to gRPC. Thread-safe.
  void Answered() { egress_.WakeAfter(weak_from_this(), linger_); }
  // Must be called when the call has ended. `abandon` is never called after Done.
  void Done();

 private:
  void Pump() override;

  Egress& egress_;                       // not owned
  const absl::Duration linger_;          // constant
  const std::function<void()> abandon_;  // constant

  base::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

// A unary call. Called by the egress thread alone.
class UnaryWriter {
 public:
  virtual ~UnaryWriter() = default;
  // Ends the RPC with `status` and an answer of complete samples. The writer may be destroyed when
  // Close returns.
  virtual void Close(std::vector<engine::TokenDelta> samples, const absl::Status& status,
                     const engine::RequestSummary& summary) = 0;
};

// Collects the deltas of all samples until the request has ended. The caller must set
// GenerateParams::answers_at_once, so that the engine limits the output that the sink keeps in
// memory.
class UnarySink : public engine::TokenSink,
                  public Egress::Outlet,
                  public std::enable_shared_from_this<UnarySink> {
 public:
  // `egress` must outlive the call. `writer` must live until the sink calls its Close. If
  // `token_ids` is true, the answer has token ids.
  UnarySink(bool token_ids, Egress& egress, UnaryWriter& writer);

  bool CanTake(int32_t) const override { return true; }
  void Put(engine::TokenDelta delta) override;
  void Finish(const absl::Status& status, const engine::RequestSummary& summary) override;

 private:
  void Pump() override;

  const bool token_ids_;  // constant
  Egress& egress_;        // not owned
  UnaryWriter& writer_;   // not owned
  bool closed_ = false;   // egress thread only

  base::Mutex mu_;
  engine::DeltaBuffer samples_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  engine::RequestSummary summary_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
