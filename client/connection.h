#pragma once

// The connection to one server. Subcommands pass proto messages in, and get proto messages and
// absl::Status back. Only connection.cc uses gRPC, so no header of the client needs it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/session_service.pb.h"
#include "quire/v1/tenant_service.pb.h"
#include "quire/v1/token_service.pb.h"

namespace quire::client {

struct ConnectionOptions {
  std::string server = "127.0.0.1:8100";  // see ServerTarget
  // A `server` that begins with "https://" implies it. If tls_ca is empty, the system's certificate
  // authorities are trusted.
  bool tls = false;
  // PEM files. Each of them implies tls.
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;  // name that the certificate must have; empty: `server`'s host
  std::string token_file;       // empty: environment variable QUIRE_TOKEN; neither: no token
  // The timeout of each call. If it is absent, calls that compute have no timeout, and other calls
  // have kUnaryTimeout.
  std::optional<absl::Duration> timeout;
};

inline constexpr absl::Duration kUnaryTimeout = absl::Seconds(10);

// A running stream.
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  // Cancels the stream, at any time; on_done is then called with CANCELLED. Thread-safe.
  virtual void Cancel() = 0;
};

// Returns the address to which a channel for `server` connects: without "http://", and with the
// port 8100 if it names none. Returns InvalidArgument for an address with a path. Other targets of
// gRPC, such as "unix:PATH" and "dns:///HOST", stay as they are.
absl::StatusOr<std::string> ServerTarget(std::string_view server);

// Returns how long the server asked to wait before the request is sent again; absent if it did not.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// Thread-safe. Where the user can do something about an error, its message ends with advice, such
// as "; retry after 2s".
class Connection {
 public:
  using OnMessage = std::function<void(StreamCall& call, const v1::GenerateStreamResponse&)>;
  using OnDone = std::function<void(const absl::Status&)>;
  using OnAnswer = std::function<void(const v1::GenerateBatchResponse&)>;

  // Reads the token and PEM files that `options` names. Does not connect; the first call does.
  // Returns InvalidArgument when a file cannot be read.
  static absl::StatusOr<std::unique_ptr<Connection>> Create(const ConnectionOptions& options);
  // Waits until gRPC has released every stream. Every stream must have ended or been cancelled.
  ~Connection();

  // Each of the following methods sends a request and waits for the answer. Generate, Score and
  // GenerateBatch have no default timeout. The default timeout of the other methods is
  // kUnaryTimeout.
  absl::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response);
  // Calls `on_answer` for each answer, in the order in which the answers arrive.
  absl::Status GenerateBatch(const v1::GenerateBatchRequest& request, const OnAnswer& on_answer);
  absl::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* response);
  absl::Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
  absl::Status Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response);
  absl::Status ApplyChatTemplate(const v1::ApplyChatTemplateRequest& request,
                                 v1::ApplyChatTemplateResponse* response);
  absl::Status ListModels(const v1::ListModelsRequest& request, v1::ListModelsResponse* response);
  absl::Status GetModelInfo(const v1::GetModelInfoRequest& request,
                            v1::GetModelInfoResponse* response);
  absl::Status GetServerInfo(const v1::GetServerInfoRequest& request,
                             v1::GetServerInfoResponse* response);
  absl::Status GetStats(const v1::GetStatsRequest& request, v1::GetStatsResponse* response);
  absl::Status GetCacheMap(const v1::GetCacheMapRequest& request,
                           v1::GetCacheMapResponse* response);
  absl::Status GetQuota(const v1::GetQuotaRequest& request, v1::Tenant* response);
  absl::Status ListTenants(const v1::ListTenantsRequest& request,
                           v1::ListTenantsResponse* response);
  absl::Status CreateSession(const v1::CreateSessionRequest& request, v1::Session* session);
  absl::Status GetSession(const v1::GetSessionRequest& request, v1::Session* session);
  absl::Status ListSessions(const v1::ListSessionsRequest& request,
                            v1::ListSessionsResponse* response);
  // Has no default timeout either, if the request computes.
  absl::Status AppendToSession(const v1::AppendToSessionRequest& request,
                               v1::AppendToSessionResponse* response);
  absl::Status ForkSession(const v1::ForkSessionRequest& request,
                           v1::ForkSessionResponse* response);
  absl::Status CloseSession(const v1::CloseSessionRequest& request);
  // CreatePrefix and WarmPrefix have no default timeout.
  absl::Status CreatePrefix(const v1::CreatePrefixRequest& request, v1::Prefix* prefix);
  absl::Status GetPrefix(const v1::GetPrefixRequest& request, v1::Prefix* prefix);
  absl::Status ListPrefixes(const v1::ListPrefixesRequest& request,
                            v1::ListPrefixesResponse* response);
  absl::Status UpdatePrefix(const v1::UpdatePrefixRequest& request, v1::Prefix* prefix);
  absl::Status DeletePrefix(const v1::DeletePrefixRequest& request);
  absl::Status WarmPrefix(const v1::WarmPrefixRequest& request, v1::Prefix* prefix);
  // Returns "SERVING", "NOT_SERVING" or "UNKNOWN"; NotFound for a service that the server lacks.
  absl::StatusOr<std::string> CheckHealth(std::string_view service);

  // Starts a stream. Both callbacks run on gRPC's threads, one at a time. on_done is called once
  // and last, even when the server cannot be reached.
  // `timeout` replaces that of the options.
  std::shared_ptr<StreamCall> StartStream(const v1::GenerateRequest& request, OnMessage on_message,
                                          OnDone on_done,
                                          std::optional<absl::Duration> timeout = std::nullopt);
  // Like StartStream, but returns at the end of the stream.
  absl::Status Stream(const v1::GenerateRequest& request, const OnMessage& on_message,
                      std::optional<absl::Duration> timeout = std::nullopt);

  // Cancels all running calls, including the calls of other threads that wait for an answer. Meant
  // for Ctrl-C.
  void CancelAll();
  // The number of calls of CancelAll so far.
  int64_t num_cancels() const;
  // Waits for `delay`. Returns false, perhaps earlier, if num_cancels() is not `num_cancels`.
  bool Wait(absl::Duration delay, int64_t num_cancels) const;

  const ConnectionOptions& options() const;

 private:
  struct Impl;
  explicit Connection(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::client
