#pragma once

// Helpers of the tests of attention kernels: a batch of sequences over a paged cache, its tensors
// on a device, and a check of a kernel's output against float64.

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "kernels/cuda/device/device.h"
#include "kernels/dtype.h"
#include "kernels/ops/paged_attention.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

struct AttentionSequence {
  int32_t context_len = 0;
  int32_t query_len = 0;
  // The seed of the sequence's random numbers. 0 means 1 plus the index of the sequence in the
  // batch. With any other seed, the numbers do not depend on the rest of the batch.
  uint64_t seed = 0;
  // The number of queries with this seed before those of this step. So the chunks of one sequence
  // have the queries of the whole sequence.
  int32_t queries_before = 0;
};

// Sequences whose first num_keys keys are those of the first one, in its blocks.
struct SharedPrefix {
  std::vector<int32_t> sequences;
  int32_t num_keys = 0;  // a multiple of the block size, and as in kernels::SharedKeys
};
void PrintTo(const SharedPrefix& shared, std::ostream* out);

struct AttentionCase {
  std::vector<AttentionSequence> sequences;
  int32_t num_heads = 4, num_kv_heads = 1, head_dim = 64;
  std::optional<int32_t> other_value_dim;  // elements of a value; absent: head_dim, as of a key
  int32_t block_size = 16;
  kernels::DType dtype = kernels::DType::kBF16;
  std::optional<kernels::DType> cache_dtype;  // absent: the same as dtype
  kernels::AttentionPattern pattern;
  float soft_cap = 0.0f;
  float scale = 0.0f;            // 0: 1 / sqrt(head_dim)
  float cache_deviation = 1.0f;  // the standard deviation of the stored elements of keys and values
  kernels::CacheScales cache_scales = {};
  bool alibi = false, sinks = false;
  bool alibi_is_rounded = false;
  // If true, the heads are the second half of the heads of a model, as on the second of two tensor
  // parallel ranks.
  bool second_half = false;
  std::vector<SharedPrefix> shared;
  // If false, the plan is not told which keys are shared.
  bool shares_keys = true;
  // If true, the cache has norms of its keys, and far keys may be skipped (attn_horizon.cuh).
  bool skips_far_keys = false;
  std::optional<float> key_norm;  // of every KV head; absent: the largest norm of a key
  std::vector<float> slopes;      // with alibi; empty: those of a model
  int32_t fixed_split_keys = 0;   // keys of a piece in a fixed split; 0: no fixed split
  int64_t part_rows = 1 << 17;    // AttentionPlanOptions::part_rows
  // If true, the cache is NaN wherever no query may look: slots past the end or before every
  // window, all slots of a sequence without a query, and the gaps between blocks. Must be false for
  // a kernel that reads such slots and gives them the weight 0.
  bool poisoned = true;

  int32_t value_dim() const { return other_value_dim.value_or(head_dim); }
};
std::ostream& operator<<(std::ostream& out, const AttentionCase& c);

// The precision of the attention weights when a kernel multiplies them by V: float32, or rounded to
// the dtype of the queries, as tensor cores need.
enum class AttentionWeights { kFloat32, kRounded };

// The inputs of a case, in host memory. The blocks are scattered in the cache, with gaps between
// them.
class AttentionBatch {
 public:
  explicit AttentionBatch(const AttentionCase& c);

  // Replace the numbers of a query head, and those of a key and its value. The elements of a row
  // are all the same, but for the signs of the queries and the keys: those of Sign(element).
  void SetQuery(size_t seq, int64_t i, int64_t head, float element);
  void SetKeyAndValue(size_t seq, int64_t key, int64_t kv_head, float key_element,
                      float value_element);
  static float Sign(int64_t element) { return element % 3 == 0 ? -1.0f : 1.0f; }
  // Replaces by NaN what no row needs under ALiBi: all keys and values of tiles of which the keys
  // weigh too little for each row of a sequence and KV head that reads them. Returns how many keys
  // there were. No sequences may share keys.
  int64_t PoisonFarKeys();

  kernels::AttentionPlanArgs PlanArgs() const;  // the result refers to this object
  // Returns the rows of `out` that belong to sequence `seq`.
  std::vector<float> RowsOf(size_t seq, const std::vector<float>& out) const;

  // Fails the test if a row of `out` differs from the float64 result by more than the bound on its
  // rounding errors. Returns the largest ratio of a difference to its bound.
  double Check(const std::vector<float>& out, AttentionWeights weights) const;

 private:
  friend struct AttentionOnDevice;

  // Returns the index of a row in the cache. `part` is the kv head for a key row, and num_kv_heads
  // plus the kv head for a value row.
  int64_t At(size_t seq, int64_t key, int64_t part) const;
  // Returns the largest norm of a key of each KV head, with the keys that PoisonFarKeys replaced.
  std::vector<float> KeyNorms() const;
  double WorstErrorOfRow(size_t seq, int64_t i, int64_t head, const float* got,
                         AttentionWeights weights) const;

  const AttentionCase case_;
  const kernels::DType cache_dtype_;
  const float scale_;
  int64_t max_blocks_ = 1, block_stride_ = 0;
  std::vector<int32_t> context_lens_, query_lens_, query_starts_ = {0}, block_table_, shared_seqs_;
  std::vector<kernels::SharedKeys> shared_keys_;
  std::vector<float> query_, cache_, slopes_, sinks_;
  std::vector<float> norms_before_;  // PoisonFarKeys
};

// The tensors of a batch on a device, and the arguments of the op, except the plan.
struct AttentionOnDevice {
  AttentionOnDevice(kernels::cuda::Device& device, const AttentionBatch& batch);

  DeviceFloats query, cache, out, slopes, sinks, key_norms;
  DeviceArray<int32_t> block_table, context_lens, query_starts;
  kernels::PagedAttentionArgs args;
};

// Returns whether all floats of `a` and `b` have the same bits.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace quire::testing
