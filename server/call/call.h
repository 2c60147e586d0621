#pragma once

// One call of a client, on whatever carries it: gRPC in the server, memory in tests. A call knows
// its caller and its id, and is counted and logged when it ends.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "server/call/access_log.h"
#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/door/peer_directory.h"
#include "server/identity/identity_store.h"
#include "server/identity/principal.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace quire::server {

// What carries one call. All functions are thread-safe, and none waits.
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the value of the call's metadata `key`, or nullopt if the call has none.
  virtual std::optional<std::string_view> Metadata(std::string_view key) const = 0;
  // Returns the name of the client's connection in PeerDirectory.
  virtual std::string PeerName() const = 0;
  // Returns a time of the wall clock.
  virtual absl::Time Deadline() const = 0;

  // Sends metadata with the beginning of the answer. Must precede the first Write and End.
  virtual void AddMetadata(std::string_view key, std::string_view value) = 0;
  // Reads the client's next message. Call::OnMessage or Call::OnNoMessage follows; no second read
  // may begin before.
  virtual void Read() = 0;
  // Starts to write a message. Call::OnWritten follows; no second write may begin before.
  virtual void Write(const google::protobuf::MessageLite& message) = 0;
  // Ends the call, with `answer` as the last message unless it is null. Call::OnDone follows. After
  // End, only Cancel may be called.
  virtual void End(const absl::Status& status, const google::protobuf::MessageLite* answer) = 0;
  // Cancels the call because its client does not read. What is being written then fails.
  virtual void Cancel() = 0;
};

// The id of a call: its field request_id, or else the `x-request-id` metadata, or else a new id.
struct RequestId {
  std::string id;
  // True unless it is the field's. Whoever is between caller and server may send one id with many
  // calls.
  bool is_name = false;
};
// Returns InvalidArgument unless `id` is 1..128 characters of printable ASCII without spaces.
absl::Status CheckRequestId(std::string_view id);
// Returns `field`, or a new id if it is empty. Returns what CheckRequestId returns for `field`.
absl::StatusOr<RequestId> RequestIdOrNew(std::string_view field);

using PrincipalPtr = std::shared_ptr<const Principal>;

// What every call needs. All referenced objects must outlive the calls.
struct CallParts {
  Egress& egress;
  RpcCounters& counters;
  AccessLog& access_log;
  const door::PeerDirectory& peers;
  const IdentityStore& identities;
  absl::Duration linger;  // how long a client may take to read the end of its answer
};

// A call, from its beginning to its end. The transport calls the public functions: Start once, then
// OnMessage and OnNoMessage one at a time, and OnDone when all others have returned. OnCancel may
// come at the same time as others, but only after the first OnMessage has returned.
class Call {
 public:
  // `transport` must live until OnDone. A call without `rpc` is neither counted nor logged.
  Call(const CallParts& parts, std::optional<Rpc> rpc, Transport& transport)
      : parts_(parts), rpc_(rpc), transport_(transport) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  virtual void Start() { transport_.Read(); }
  // A message of the client, before it is parsed. `bytes` are valid until OnMessage returns.
  virtual void OnMessage(std::string_view bytes) = 0;
  // The end of a Read that brings no message: the client sends no further one. `is_cancelled`: it
  // is known that the call is cancelled, and OnCancel comes too. A call that has had no message
  // gets no OnCancel, and so this without `is_cancelled` also when the client or the door has reset
  // it. Such a call is not a request: by default it ends, and is not counted.
  virtual void OnNoMessage(bool is_cancelled);
  // The end of a Write. If !ok, the client has disconnected.
  virtual void OnWritten(bool /*ok*/) {}
  // The client has cancelled the call or disconnected, or the deadline has passed.
  virtual void OnCancel() {}
  // The transport is done with the call.
  void OnDone();

 protected:
  // Finds the caller by a bearer token or a client certificate. Returns UNAUTHENTICATED for an
  // unknown caller, and UNAVAILABLE when the client has disconnected.
  absl::Status Authenticate();
  // Finds the id. `field` is the message's request_id, or empty. Returns what CheckRequestId
  // returns for the id.
  absl::Status TakeId(std::string_view field);
  // Both, for a call whose messages have no such field. An unknown caller's call has an id too, for
  // the log.
  absl::Status Identify();
  // Sends the id to the client, once. Called before the answer begins.
  void SendId();
  // Counts and logs the end of the call.
  void Note(const absl::Status& status, const engine::RequestSummary* summary = nullptr);
  // Sends the id, notes the end, and ends the call. `answer` may be null. A client that does not
  // read the end in CallParts::linger is cut off: its transport would keep the answer until then.
  // Must be the last call on this object, which may be destroyed when End returns.
  void End(const absl::Status& status, const google::protobuf::MessageLite* answer = nullptr,
           const engine::RequestSummary* summary = nullptr);
  // Returns the status of a call that OnCancel ends.
  absl::Status CancelStatus() const;

  // Must not be called before Authenticate has returned OK.
  const Principal& caller() const { return *caller_; }
  const RequestId& id() const { return id_; }
  void set_id(std::string id) { id_.id = std::move(id); }
  Transport& transport() const { return transport_; }

 private:
  // Destroys the call, now or later.
  virtual void Destroy() { delete this; }

  const CallParts& parts_;  // not owned
  const std::optional<Rpc> rpc_;
  Transport& transport_;                        // not owned
  const absl::Time start_ = base::SteadyNow();  // constant
  PrincipalPtr caller_;                         // null for an unknown caller
  RequestId id_;
  bool has_sent_id_ = false;
  std::shared_ptr<AnswerLinger> linger_;  // null until End
};

// The calls that are served at an address, by their paths.
class CallTable {
 public:
  // Returns a new call, which OnDone destroys.
  using Begin = std::function<Call*(Transport&)>;

  // `path` is "/quire.v1.TokenService/Tokenize", say.
  void Add(std::string path, Begin begin) { calls_.emplace(std::move(path), std::move(begin)); }
  void Add(Rpc rpc, Begin begin) { Add(PathOf(rpc), std::move(begin)); }
  // Returns null if `path` is not served.
  const Begin* Find(std::string_view path) const;

 private:
  absl::flat_hash_map<std::string, Begin> calls_;
};

}  // namespace quire::server
