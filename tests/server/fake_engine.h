#pragma once

// An Engine without a model: scripted tokens, one step thread, steps that a test may hold.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "engine/engine.h"

namespace quire::testing {

struct FakeEngineOptions {
  int32_t max_requests = 64;       // running; more are ResourceExhausted
  int32_t default_max_tokens = 4;  // where the request has none
  bool held = false;               // no step until Release()
  // The text of output token `position` of sample `index`.
  std::function<std::string(int32_t index, int32_t position)> token_text;
};

// Continuations are scored in one step: a token's log-probability is a hundredth of its id, below
// zero; the even ids, and those alone, are the likeliest. A text's tokens are its bytes.
//
// Every step gives each sample of each running request one token, as long as its sink can take
// them. Token `position` of sample k has id 100 * k + position. Parameters are checked by
// engine::Validate against a vocabulary of 1000, after Submit, as a frontend would.
class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  // Lets steps run from now on.
  void Release();
  // Steps that gave nothing to at least one request because its sink was full.
  int64_t num_stalled_steps() const { return num_stalled_steps_; }
  int64_t num_running() const;
  // What liveness() says from now on.
  void SetLiveness(const engine::Liveness& liveness);
  // The request submitted last, as the server made it.
  engine::GenerateParams last_params() const;
  // Waits until `condition` holds, which is checked after each step; false after ten seconds.
  bool WaitFor(const std::function<bool()>& condition) const;

  absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) override;
  absl::Status Abort(std::string_view request_id, std::optional<std::string_view> owner) override;
  absl::Status RunOnFrontend(int64_t num_bytes, std::function<void()> work) override;
  absl::StatusOr<std::vector<engine::Piece>> Tokenize(std::string_view text,
                                                      bool add_special_tokens,
                                                      bool parse_special_tokens) const override;
  absl::StatusOr<std::string> Detokenize(const engine::TokenIds& ids,
                                         bool skip_special_tokens) const override;
  absl::StatusOr<std::string> ApplyChatTemplate(const engine::ChatMessages& messages,
                                                bool add_generation_prompt) const override;
  const engine::ModelInfo& model_info() const override { return model_info_; }
  const engine::ServerInfo& server_info() const override { return server_info_; }
  engine::Stats stats() const override;
  engine::Liveness liveness() const override;
  void StartDrain() override;
  absl::Status WaitIdle(absl::Duration timeout) override;

 private:
  struct Running;

  void Run();
  // The tokens of all continuations.
  static int64_t ScoreAll(const engine::GenerateParams& params, engine::TokenSink& sink);
  // One step of one request; true when it has ended.
  bool Step(Running& request);

  const FakeEngineOptions options_;
  engine::ModelInfo model_info_;
  engine::ServerInfo server_info_;
  std::atomic<int64_t> num_stalled_steps_ = 0;
  std::atomic<int64_t> num_generated_ = 0;

  mutable base::Mutex mu_;
  mutable base::CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Running>> running_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  engine::GenerateParams last_params_ ABSL_GUARDED_BY(mu_);
  engine::Liveness liveness_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the others
};

}  // namespace quire::testing
