#pragma once

// The configuration of an engine, and the data that an engine reports: model, sizes and counts.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "engine/request/disk_stats.h"
#include "engine/request/follow_end.h"
#include "engine/request/session_counts.h"
#include "kernels/device_counts.h"

namespace quire::engine {

using kernels::DeviceCount;
using kernels::DeviceCounts;

// The largest EngineConfig::max_draft_tokens. A step with drafts has at most one token more
// (SchedulerConfig::max_tokens_with_drafts).
inline constexpr int32_t kMostDraftTokens = 15;

struct EngineConfig {
  std::string model_path;          // a GGUF file or a Hugging Face directory
  std::string served_model_name;   // empty: the last part of model_path, less extension and part
  std::string chat_template;       // a file to take instead of the model's; empty: the model's
  std::string backend = "auto";    // auto | cpu | cuda[:n]; see kernels/backend_registry.h
  std::string dtype = "auto";      // of activations: auto | f32 | f16 | bf16; auto: the weights'
  bool strict = false;             // refuses a model that a reference kernel would serve
  std::string cpu_isa = "auto";    // auto | portable | avx2 | avx512 | amx
  std::string cuda_experiments;    // names of CudaExperiments, kernels/backend_registry.h
  bool deterministic = false;      // kernels/backend_registry.h
  int32_t threads = 0;             // 0: physical cores within affinity and quota
  std::string weights = "packed";  // packed | mapped; both compute the same bits
  // auto | f32 | f16 | bf16 | fp8_e4m3, or fp8 for short. auto: the dtype of the backend's
  // activations if that has 16 bits; otherwise f32 for F32 weights, and f16 for all other weights.
  std::string kv_dtype = "auto";
  // 0: room for max_num_seqs contexts of max_model_len tokens, but at most 25 % of the available
  // memory; on a device: what gpu_memory_utilization leaves
  int64_t kv_cache_mib = 0;
  double gpu_memory_utilization = 0.9;  // the part of a device's memory that Quire uses, (0, 1]
  int32_t block_size = 16;              // tokens
  int32_t max_num_seqs = 0;             // 0: 64, or 256 on a device
  // Raised to max_num_seqs if below; 0: 256, or 8192 on a device.
  int32_t max_num_batched_tokens = 0;
  absl::Duration max_step_time;   // limits a step with decodes and prompts; zero: no limit
  int32_t max_draft_tokens = -1;  // of a sequence in a step; 0: none; -1: 4 on the CPU, else 0
  int64_t max_model_len = 0;      // 0: the trained context
  int32_t max_queue = 1024;       // the most requests that may wait
  // The part of the KV cache's blocks that named prefixes may hold, above 0 and at most 1.
  double max_pinned_share = 0.5;
  // A directory in which named prefixes outlive the engine; see files/state_directory.h. Empty:
  // they end with it.
  std::string kv_disk_dir;
  int64_t kv_disk_mib = 0;         // the most MiB of the cache's K and V in kv_disk_dir; 0: none
  int64_t prefix_disk_mib = 1024;  // the most MiB of named prefixes in kv_disk_dir
  int64_t max_prompt_bytes = 4 << 20;
  int32_t frontend_threads = 2;
  int32_t frontend_queue = 256;
  absl::Duration stalled_stream_timeout = absl::Seconds(30);
  // Called once, on the step thread, when the device has a fault that stays until the process ends.
  // Every request then fails. May be null.
  std::function<void()> on_device_lost;
};

struct ModelInfo {
  std::string name;              // as served
  std::string architecture;      // such as "llama"
  std::string weight_type;       // such as "Q4_1"
  std::string activation_dtype;  // such as "bf16"
  std::string kv_dtype;          // such as "f16"
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;
  int64_t vocab_size = 0;  // ids that the model has, padding included
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  // The heads of the first layer. Other layers may have others.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;                 // elements of a key
  int64_t max_model_len = 0;            // served context, in tokens
  int64_t max_position_embeddings = 0;  // trained context
  int64_t kv_bytes_per_token = 0;
  bool has_chat_template = false;
  int32_t bos_id = -1;
  std::vector<int32_t> end_ids;
};

struct ServerInfo {
  std::string version;
  std::string backend;   // such as "cpu"
  std::string isa_path;  // such as "amx"
  std::string numerics;  // names the exact arithmetic, such as "cpu-2"; see control_service.proto
  int32_t num_threads = 0;
  std::string pci_bus_id;  // of the GPU that computes; empty: none
  int32_t block_size = 0;
  int64_t num_blocks = 0;
  int64_t kv_cache_bytes = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_draft_tokens = 0;
  std::string hash_scheme;   // the hash scheme of the prefix cache
  std::string model_digest;  // see files/model_digest.h
  // Names everything besides the model that the bits of an answer depend on; see
  // control_service.proto.
  std::string answer_numerics;
  // The reason why no stream can be resumed. Empty if streams can be resumed.
  std::string no_resume;
};

// Like a Prometheus histogram, but the counts are not cumulative.
struct HistogramSnapshot {
  std::vector<double> bounds;    // upper bounds in seconds, +Inf left out
  std::vector<uint64_t> counts;  // bounds.size() + 1, not cumulative
  double sum = 0.0;
};

// The outcome of a request to resume a stream.
enum class ResumeResult : uint8_t {
  kResumed,   // it was admitted
  kInvalid,   // INVALID_ARGUMENT: what was given does not fit together
  kMismatch,  // FAILED_PRECONDITION: the bits would not be those of the broken stream
};

// Counts of the objects that the engine keeps for unfinished requests. All are zero when the engine
// is idle.
struct Kept {
  int64_t requests = 0;   // known to the step thread
  int64_t ids = 0;        // requests that can be aborted by their id
  int64_t sequences = 0;  // waiting or running
  int64_t outputs = 0;    // sequences with unfinished text
  int64_t scores = 0;     // requests with unfinished continuations
  int64_t tenants = 0;    // tenants with requests
};

struct Stats {
  int64_t num_waiting = 0;  // requests that have not run yet, and preempted sequences
  int64_t num_running = 0;
  int64_t blocks_total = 0;
  int64_t blocks_free = 0;
  int64_t blocks_cached = 0;
  int64_t blocks_held = 0;
  int64_t blocks_pinned = 0;          // held by named prefixes, and perhaps by sequences as well
  std::array<int64_t, 4> prefixes{};  // by PrefixState
  SessionCounts sessions;
  int64_t prefix_hits = 0;          // requests that began with blocks of a named prefix
  int64_t prefix_saved_tokens = 0;  // tokens that these requests did not compute
  int64_t prompt_tokens_computed = 0;
  int64_t prompt_tokens_cached = 0;
  int64_t generated_tokens = 0;
  int64_t scored_tokens = 0;  // tokens of continuations
  int64_t recomputed_tokens = 0;
  int64_t drafted_tokens = 0;   // computed to find out whether they are right
  int64_t accepted_tokens = 0;  // correct drafts that did not end their sequence
  int64_t drafts_expected = 0;  // SchedulerStats::drafts_expected, in whole tokens
  int64_t drafts_price = 0;     // SchedulerStats::drafts_price, in whole tokens
  int64_t block_copies = 0;
  int64_t beam_copies = 0;  // those of block_copies that beams made
  int64_t preemptions = 0;
  int64_t steps = 0;
  int64_t steps_failed = 0;
  // The prefixes that several decodes of a step read together, and the keys that this saved: those
  // of a prefix, once for each decode but the first. Where the decodes have more than 64 rows of a
  // KV head, a device reads a prefix once for every 64 of them, so it saves fewer.
  int64_t shared_prefixes = 0;
  int64_t saved_keys = 0;
  DeviceCounts device{};                        // since the server was ready
  int64_t requests_rejected = 0;                // refused before admission
  int64_t deadlines_refused = 0;                // of these, for deadlines that would be missed
  std::array<int64_t, 3> followers{};           // sequences that waited, by FollowEnd
  std::array<int64_t, 3> resumes{};             // requests to resume a stream, by ResumeResult
  std::array<int64_t, 4> finished_by_reason{};  // sequences, by FinishReason
  HistogramSnapshot ttft;
  HistogramSnapshot tpot;
  bool draining = false;
  // Roots of the prefix cache that sequences or cached blocks use; see engine/kv/cache_roots.h.
  int64_t cache_roots = 0;
  Kept kept;
  DiskStats disk;
};

// The present work of the engine's threads, read without waiting for any of them.
struct Liveness {
  absl::Duration step_busy;    // time since the present step began; zero: the step thread is idle
  int64_t step_sequences = 0;  // sequences in the present step; zero until the step is planned
  int64_t step_tokens = 0;     // tokens in the present step; zero until the step is planned
  // The longest time that any frontend thread has spent on its present piece of work.
  absl::Duration frontend_busy;
  int64_t failed_steps = 0;      // steps that failed since the last one that succeeded
  absl::Duration since_failure;  // time since the last failed step; zero if none has failed
  bool device_lost = false;      // the device has a fault that stays until the process ends
};

}  // namespace quire::engine
