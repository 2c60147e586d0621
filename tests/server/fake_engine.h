#pragma once

// An Engine without a model. It has scripted tokens and one step thread, and a test may hold the
// steps.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/sharing/session_registry.h"
#include "engine/sharing/session_seam.h"
#include "tests/testing/fake_prefixes.h"
#include "tests/testing/fake_tokenizer.h"

namespace quire::testing {

struct FakeEngineOptions {
  int32_t max_requests = 64;       // that run at once; a further request is ResourceExhausted
  int32_t default_max_tokens = 4;  // for a request without max_tokens
  bool held = false;               // no step runs until Release()
  // Returns the text of output token `position` of sample `index`.
  std::function<std::string(int32_t index, int32_t position)> token_text;
};

// Scores continuations in one step. The log-probability of a token is minus a hundredth of the
// token's id. A token is the likeliest exactly if the id is even. The tokens of a text are its
// bytes.
//
// The sessions are real ones, on a FakeTokenizer and the chat template of ApplyChatTemplate.
//
// Every step gives one token to each sample of each running request whose sink can take them. Token
// `position` of sample k has id 100 * k + position. engine::Validate checks the parameters after
// Submit, as a frontend would, against a vocabulary of 1000.
class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  // Lets steps run from now on.
  void Release();
  // The number of times that a step gave a request nothing because the request's sink was full.
  int64_t num_stalled_steps() const { return num_stalled_steps_; }
  int64_t num_running() const;
  // Sets the result of liveness() from now on.
  void SetLiveness(const engine::Liveness& liveness);
  // Returns the parameters of the request that was submitted last.
  engine::GenerateParams last_params() const;
  // Returns the tenant of the work that RunOnFrontend got last.
  std::string last_frontend_tenant() const;
  // Waits until `condition` holds, checking it after each step. Returns false after ten seconds.
  bool WaitFor(const std::function<bool()>& condition) const;

  absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) override;
  absl::Status Abort(std::string_view request_id, std::optional<std::string_view> owner) override;
  engine::Sessions& sessions() override { return sessions_; }
  absl::Status RunOnFrontend(std::string_view tenant, const engine::TenantLimits& limits,
                             int64_t num_bytes, std::function<void()> work) override;
  absl::StatusOr<std::vector<engine::Piece>> Tokenize(std::string_view text, text::InputKind kind,
                                                      bool parse_special_tokens) const override;
  absl::StatusOr<std::string> Detokenize(const engine::TokenIds& ids,
                                         bool skip_special_tokens) const override;
  std::string_view TokenBytes(int32_t id) const override { return tokenizer_.TokenBytes(id); }
  absl::StatusOr<std::string> ApplyChatTemplate(const engine::ChatMessages& messages,
                                                bool add_generation_prompt) const override;
  absl::StatusOr<engine::TokenIds> TokenizeChat(const engine::ChatMessages& messages,
                                                bool add_generation_prompt) const override {
    return frontend_.TokenizeChat(messages, add_generation_prompt);
  }
  FakePrefixes& prefixes() override { return prefixes_; }
  const engine::ModelInfo& model_info() const override { return model_info_; }
  const engine::ServerInfo& server_info() const override { return server_info_; }
  engine::Stats stats() const override;
  engine::Liveness liveness() const override;
  // Tenants have used nothing, but for those that SetTenantUsages gave.
  engine::TenantUsage tenant_usage(std::string_view tenant,
                                   const engine::TenantLimits& limits) const override;
  engine::TenantUsages tenant_usages() const override;
  void SetTenantUsages(engine::TenantUsages usages);
  static constexpr int64_t kFlushedBlocks = 7;
  // Calls `done` with kFlushedBlocks immediately, on the caller's thread.
  void FlushPrefixCache(engine::FlushDone done) override { std::move(done)(kFlushedBlocks); }
  // Gives `done` an empty picture, or the one that SetCacheMap gave, on the caller's thread.
  void GetCacheMap(engine::CacheMapDone done) override;
  void SetCacheMap(engine::CacheMap map);
  void StartDrain() override;
  absl::Status WaitIdle(absl::Duration timeout) override;
  void FailAll(const absl::Status&) override {}

 private:
  struct Running;

  void Run();
  // Scores all continuations into `sink`, and returns the number of their tokens.
  static int64_t ScoreAll(const engine::GenerateParams& params, engine::TokenSink& sink);
  // Runs one step of one request. Returns true when the request has ended.
  bool Step(Running& request);

  const FakeEngineOptions options_;
  FakePrefixes prefixes_;
  const FakeTokenizer tokenizer_;
  const std::unique_ptr<text::ChatTemplate> chat_template_;
  const engine::Frontend frontend_;
  const engine::SessionSeam seam_;
  engine::SessionRegistry sessions_;
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
  std::string last_frontend_tenant_ ABSL_GUARDED_BY(mu_);
  engine::GenerateParams last_params_ ABSL_GUARDED_BY(mu_);
  engine::Liveness liveness_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const engine::CacheMap> cache_map_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const engine::CacheMap>();
  engine::TenantUsages tenant_usages_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::testing
