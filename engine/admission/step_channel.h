#pragma once

// The bounded channel into the step thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/admission/admission_tickets.h"
#include "engine/admission/cache_ledger.h"
#include "engine/admission/completion.h"
#include "engine/admission/tenant_meters.h"
#include "engine/kv/cache_roots.h"
#include "engine/request/cache_map.h"
#include "engine/request/request.h"

namespace quire::engine {

class StepChannel;
struct DiskChain;  // engine/disk/disk_tier.h

// A place among the commands that are not complete yet. Its destructor releases the place.
// Move-only.
class CommandPlace {
 public:
  CommandPlace() = default;
  CommandPlace(CommandPlace&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
  CommandPlace& operator=(CommandPlace&&) = delete;
  ~CommandPlace();

 private:
  friend class StepChannel;
  explicit CommandPlace(StepChannel* channel) : channel_(channel) {}

  StepChannel* channel_ = nullptr;  // not owned
};

struct AdmittedRequest {
  std::shared_ptr<Request> request;
  AdmissionTicket ticket;
  TenantCharge charge = {};
  CacheLease lease = {};
  std::shared_ptr<const DiskChain> on_disk = {};  // of the prompt; null: nothing
};

// Makes the prefix cache forget its contents. The answer is the number of blocks freed.
struct FlushCommand {
  Completion<int64_t> done;
  CommandPlace place = {};  // filled in by the channel
};

// Ends the pin of a named prefix. There is at most one for each pin, so it takes no place and is
// never refused.
struct UnpinCommand {
  PinId pin = kNoPin;
  absl::AnyInvocable<void() &&> done;  // called on the step thread; must not wait
};

// Pins the leading tokens of a session's pin for its forks. There is at most one for each pin, so
// it takes no place and is never refused.
struct ForkPinCommand {
  PinId from = kNoPin;
  TokenIds tokens;
  // The pins of the forks. The step thread sets num_tokens of those that it has pinned.
  std::vector<std::shared_ptr<SessionPin>> pins;
  absl::AnyInvocable<void() &&> done;  // called on the step thread; must not wait
};

// Asks for a picture of the cache.
struct MapCommand {
  Completion<std::shared_ptr<const CacheMap>> done;
  CommandPlace place = {};  // filled in by the channel
};

using StepCommand =
    std::variant<AdmittedRequest, FlushCommand, UnpinCommand, ForkPinCommand, MapCommand>;

// Any thread may send commands. The step thread takes them in the order in which they were sent.
// Tickets bound the number of requests. max_commands bounds the number of other commands that are
// sent but not complete; a full channel refuses further ones. Requests with a ticket and notices
// are never refused. Must outlive its commands. Thread-safe.
class StepChannel {
 public:
  static constexpr int32_t kMaxCommands = 64;

  explicit StepChannel(int32_t max_commands = kMaxCommands) : max_commands_(max_commands) {}

  // Hands a request over and wakes the step thread; never refuses.
  void Admit(AdmittedRequest admitted);

  // Hands a command over and wakes the step thread. If max_commands commands are not complete, the
  // command is completed at once with ResourceExhausted.
  void Send(FlushCommand command);
  void Send(MapCommand command);
  void Send(UnpinCommand command);
  void Send(ForkPinCommand command);

  // Asks the step thread to reconsider this request, because the request was cancelled or its sink
  // has room.
  void Notice(std::weak_ptr<const Request> request);
  // Makes WaitForWork return, because the engine stops. A Wake without a waiter is kept for the
  // next wait; several Wakes count as one.
  void Wake();

  // For the step thread. Waits for a command, a notice or a Wake, for at most `timeout`. Returns
  // false on time-out.
  bool WaitForWork(absl::Duration timeout);
  // For the step thread. Moves the commands to the end of `commands`, in order. Appends to
  // `noticed` the requests that were given to Notice and still exist.
  void Drain(std::vector<StepCommand>& commands,
             std::vector<std::shared_ptr<const Request>>& noticed);

 private:
  friend class CommandPlace;

  template <typename Command>
  void SendIfRoom(Command command);
  void Add(StepCommand command);

  const int32_t max_commands_;
  std::atomic<int32_t> num_commands_ = 0;  // not complete; requests do not count

  base::Mutex mu_;
  base::CondVar work_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<StepCommand> commands_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<const Request>> noticed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
