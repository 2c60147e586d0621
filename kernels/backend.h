#pragma once

// Backend is the only interface to a device. Each op is one fused kernel, and models call nothing
// finer. An op enqueues its work and returns. On the CPU the work is done when the op returns.
//
// Not thread-safe: one step thread calls it.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/qkv_post.h"
#include "kernels/ops/shift_keys.h"
#include "kernels/prepared_weight.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels {

struct BackendInfo {
  std::string name;      // "cpu"
  std::string isa_path;  // "amx", "avx512", "avx2", "portable"; a CUDA backend names the chip
  int num_threads = 0;
  bool host_memory = true;  // the host can use memory from Allocate
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendInfo info() const = 0;
  // The dtype of activations between ops.
  virtual DType activation_dtype() const = 0;
  // False when attention on such a KV cache has only a kernel that is many times slower than
  // others.
  virtual bool HasFastAttention(DType cache_dtype, int64_t head_dim, int64_t block_size) const = 0;
  // Bytes that the KV cache and weights may still allocate; 0 when unknown.
  virtual int64_t available_bytes() const = 0;

  // Returns zero-filled memory, or ResourceExhausted when there is none. Not for the hot path.
  virtual absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) = 0;
  // CopyToDevice and CopyToHost return when the copy is complete.
  virtual absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) = 0;

  // Stacks `parts` by rows, as for fused QKV or for gate and up, and converts them to the form that
  // this backend computes with. The types of the parts may differ, but their cols must be equal.
  // After the call the bytes of the parts are no longer needed, unless the backend maps them.
  // InvalidArgument names an unsupported type or shape.
  virtual absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareWeight(
      std::span<const WeightView> parts) = 0;

  // Divides the attention of one step into pieces of work, on the host, for all layers that have
  // the window args.window. The plan stays valid until the second later Plan call for the same
  // window. So the plan of a step in flight stays valid while the next step is planned.
  virtual absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args) = 0;

  virtual absl::Status Embed(const EmbedArgs& args) = 0;
  virtual absl::Status Norm(const NormArgs& args) = 0;
  virtual absl::Status Linear(const LinearArgs& args) = 0;
  virtual absl::Status Moe(const MoeArgs& args) = 0;
  virtual absl::Status QkvPost(const QkvPostArgs& args) = 0;
  virtual absl::Status PagedAttention(const PagedAttentionArgs& args) = 0;
  virtual absl::Status GatherRows(const GatherRowsArgs& args) = 0;
  virtual absl::Status CopyBlocks(const CopyBlocksArgs& args) = 0;
  virtual absl::Status ShiftKeys(const ShiftKeysArgs& args) = 0;

  // Runs host work between ops, on the backend's own threads if it has some. Calls work(0) ..
  // work(n - 1) in any order, and returns when all calls have returned.
  virtual void RunOnHost(int64_t n, const std::function<void(int64_t)>& work) = 0;

  // Waits for all enqueued ops; reports a fault of any of them.
  virtual absl::Status Synchronize() = 0;
};

}  // namespace quire::kernels
