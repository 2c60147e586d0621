#pragma once

// Backend is the only interface to a device. Models call its fused ops and nothing finer. An op
// enqueues its work and returns. On the CPU the work is done when the op returns. Enqueued work
// runs in order.
//
// Not thread-safe: only one thread, the step thread, calls a Backend.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/device_buffer.h"
#include "kernels/device_counts.h"
#include "kernels/dtype.h"
#include "kernels/enqueued_work.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/qkv_post.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/shift_keys.h"
#include "kernels/ops/take_tokens.h"
#include "kernels/ops/update_table.h"
#include "kernels/prepared_weight.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels {

struct BackendInfo {
  std::string name;      // "cpu" or "cuda"
  std::string isa_path;  // "amx", "avx512", "avx2", "portable"; on CUDA the name of the GPU
  // Identifies the arithmetic. Two CPU backends with equal `numerics` compute the same bits in the
  // kernels, the RoPE and ALiBi tables, the sampler and the log-probabilities. The number in
  // `numerics` must increase whenever a bit of any answer changes.
  // "cpu-2"; "cuda-4", whose bits depend on the GPU and on the batch; "cuda-4-deterministic", whose
  // bits depend on the GPU alone.
  std::string numerics;
  int num_threads = 0;
  bool host_memory = true;  // true: the host can access memory from Allocate
  // 1: the host may enqueue a step before the results of the previous step have arrived. 0: it must
  // wait for them.
  int32_t pipeline_depth = 0;
  int64_t memory_bytes = 0;  // of a device, all of it; 0: unknown
  std::string pci_bus_id;    // of a GPU, such as "0000:17:00.0"
  bool records = false;      // true: Record and Replay work, and save the host time
  // Matrices in e4m3 that were prepared so far: those whose products round the activations to e4m3,
  // too, and the others.
  int64_t num_e4m3_products = 0, num_other_e4m3 = 0;
  int64_t num_refused_e4m3 = 0;  // those others that the device cannot multiply in e4m3
  // true: attention skips keys by CacheView::key_norms, so a cache should have them.
  bool keeps_key_norms = false;
  bool lists_best = true;  // the op Sample has SampleRow::num_best
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendInfo info() const = 0;
  // Returns what a device was asked to do so far. All are zero without a device.
  virtual DeviceCounts counts() const { return {}; }
  // The dtype of activations between ops.
  virtual DType activation_dtype() const = 0;
  // Returns true if attention has a fast kernel for layers of this key, and a KV cache with these
  // properties. Otherwise attention uses a kernel that is many times slower.
  virtual bool HasFastAttention(DType cache_dtype, const AttentionPlanKey& layer,
                                int64_t block_size) const = 0;
  // Returns the fewest keys of a KV head that must be saved in a step before decodes of this layer
  // read shared keys once (SharedKeys), or 0 if they never do. A prefix saves its keys once for
  // each sequence but the first.
  virtual int64_t LeastSavedKeys(DType /*cache_dtype*/, const AttentionPlanKey& /*layer*/) const {
    return 0;
  }
  // Returns how many bytes can still be allocated for the KV cache and weights, or 0 when unknown.
  virtual int64_t available_bytes() const = 0;

  // Returns zero-filled memory, or ResourceExhausted when no memory is left. Not for the hot path.
  virtual absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) = 0;
  // Returns host memory for CopyToDevice and CopyToHost. Copies to and from this memory run while
  // the host does other work.
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) = 0;
  // CopyToDevice and CopyToHost enqueue a copy. Until Wait() or Synchronize() has waited for the
  // copy, the caller must not change the source and must not touch the destination.
  virtual absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) = 0;

  // Stacks `parts` by rows into one weight, for example Q, K and V, or gate and up, and converts
  // the weight to the form in which this backend computes. The types of the parts may differ, but
  // their cols must be equal. The bytes of the parts may be freed after the call, unless this
  // backend keeps weights mapped. Returns an InvalidArgument error that names an unsupported type
  // or shape.
  virtual absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareWeight(
      std::span<const WeightView> parts) = 0;
  // The same for the experts of a mixture, which only Moe reads. A backend may store these in
  // another form.
  virtual absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareMoeWeight(
      std::span<const WeightView> parts) {
    return PrepareWeight(parts);
  }
  // Return how many bytes PrepareWeight and PrepareMoeWeight take for one part, without what aligns
  // it to other parts. PreparedMoeBytes assumes that all parts of a matrix have one type and a
  // number of rows that the form allows.
  virtual int64_t PreparedBytes(const WeightView& part) const {
    const WeightTypeTraits& traits = Traits(part.type);
    return part.rows * part.cols / traits.block_elements * traits.block_bytes;
  }
  virtual int64_t PreparedMoeBytes(const WeightView& part) const { return PreparedBytes(part); }
  virtual absl::StatusOr<std::unique_ptr<PreparedSampler>> PrepareSampler(
      const SamplerSpec& spec) = 0;
  // Returns the most changes that PreparedSampler::Prepare returns for a sampler of these sizes.
  virtual int64_t MostSampleChanges(int64_t /*max_rows*/, int64_t /*max_draws*/) const { return 0; }

  // Divides the attention of one step into pieces of work, on the host. All layers with
  // args.key() share the plan. The plan can be used until the next Plan call for the same
  // key. During a Plan call, only the previous step may still be running on the device.
  virtual absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args) = 0;
  // Appends to `key` the backend's own numbers that determine the kernel launches for `plan`. The
  // caller adds the other numbers, such as the number of sequences. If two plans with
  // fixed_launches have equal keys, a recording made with one can be replayed for the other. Called
  // after all Plan calls of the step.
  virtual void AppendLaunchKey(const AttentionPlan& plan, std::vector<int64_t>& key) const = 0;

  virtual absl::Status UpdateTable(const UpdateTableArgs& args) = 0;
  virtual absl::Status TakeTokens(const TakeTokensArgs& args) = 0;
  virtual absl::Status Embed(const EmbedArgs& args) = 0;
  virtual absl::Status Norm(const NormArgs& args) = 0;
  virtual absl::Status Linear(const LinearArgs& args) = 0;
  virtual absl::Status Moe(const MoeArgs& args) = 0;
  virtual absl::Status QkvPost(const QkvPostArgs& args) = 0;
  virtual absl::Status PagedAttention(const PagedAttentionArgs& args) = 0;
  virtual absl::Status GatherRows(const GatherRowsArgs& args) = 0;
  virtual absl::Status CopyBlocks(const CopyBlocksArgs& args) = 0;
  virtual absl::Status ShiftKeys(const ShiftKeysArgs& args) = 0;
  // Cannot be recorded.
  virtual absl::Status Sample(const SampleArgs& args) = 0;

  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Moves the mark of `event` to the end of the work enqueued so far.
  virtual absl::Status Mark(Event& event) = 0;
  // Waits for the work before the mark of `event`. Mark() must have been called for `event`.
  // Returns an error if that work had a fault.
  virtual absl::Status Wait(const Event& event) = 0;
  // Returns the time that the device took from one mark to the other, or InfiniteDuration if the
  // backend's events have no times. The work before both marks must have been waited for.
  virtual absl::StatusOr<absl::Duration> TimeBetween(const Event& begin, const Event& end) = 0;
  // Runs the ops that `enqueue` enqueues, and waits for them. They are those of the largest step
  // but attention and sampling: afterwards, no such op allocates. A backend that allocates nothing
  // for ops runs none. Called before anything is recorded.
  virtual absl::Status Rehearse(absl::FunctionRef<absl::Status()> /*enqueue*/) {
    return absl::OkStatus();
  }
  // Records the ops that `enqueue` enqueues, and does not run them. The recording keeps every
  // argument, but the memory that the arguments point to is read at each replay. `enqueue` must not
  // allocate, wait, plan or sample.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) = 0;
  // Enqueues the recorded ops. The recording must live until they have run.
  virtual absl::Status Replay(const Recording& recording) = 0;

  // Waits for all enqueued ops. Returns an error if any of the ops had a fault.
  virtual absl::Status Synchronize() = 0;
};

}  // namespace quire::kernels
