#pragma once

// A KernelTable has the kernels of one ISA path. The kernels are plain functions over plain
// pointers. Each path compiles the same bodies (kernel_bodies.h) with its own instructions, and all
// paths give the same bits.

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/dtype.h"
#include "kernels/expert_weights.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/ops/attention_tiles.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cpu {

constexpr int kNumWeightTypes = 13;
constexpr int kLanes = 16;       // outputs of a packed group, keys of a tile
constexpr int kQuantBlock = 32;  // activations that share a scale
constexpr int kSpanKeys = 64;
constexpr int64_t kSegmentKeys = 256;
constexpr int64_t kSuperSegmentKeys = 16 * kSegmentKeys;

// Rows of activations, quantised to int8. A value is about scale * q, and 32 adjacent values of a
// row share a scale. Rows are stored in groups of `group_rows`, which is 1 or 16. In a group of 16,
// the addresses of rows that are worked on together differ by constants. A group stores one block
// of 32 k after another. Each block stores the rows of the group side by side:
//   q [blocks][group_rows][32]   scale, scaled_sum [blocks][group_rows]
//   sums [2 * blocks][group_rows]
struct QuantizedRows {
  int8_t* q = nullptr;
  float* scale = nullptr;       // absmax / 127
  float* scaled_sum = nullptr;  // scale * sum of q
  int32_t* sums = nullptr;      // each is the sum of 16 values of q
  int64_t group_rows = 1;

  [[gnu::always_inline]] QuantizedRows Rows(int64_t row, int64_t cols) const {
    const int64_t group = row / group_rows, place = row % group_rows;
    const int64_t blocks = group * group_rows * (cols / 32);
    return {q + blocks * 32 + place * 32, scale + blocks + place, scaled_sum + blocks + place,
            sums + 2 * blocks + place, group_rows};
  }
};

// The arguments of KernelTable::quantize. The kernel quantises blocks [first_block, end_block),
// each of 32 values along k, of up to `out.group_rows` adjacent rows. It may also overwrite the
// unused places of the group.
struct QuantizeWork {
  const float* input = nullptr;  // [num_rows, cols]
  int64_t num_rows = 0;
  int64_t cols = 0;
  int64_t first_block = 0;
  int64_t end_block = 0;
  QuantizedRows out;  // begins at the first row, which is the first of a group
};

// The arguments of KernelTable::linear. The kernel computes y[row, o] = dot(input[row], weight row
// o), for any number of rows and for whole groups of 16 outputs o.
struct LinearTile {
  const uint8_t* groups = nullptr;  // the first packed group
  int64_t num_groups = 0;
  int64_t group_bytes = 0;
  int64_t cols = 0;
  const float* input = nullptr;  // [num_rows, cols]; for float weights
  // The input for block-quantised weights. Kernels may read rows past num_rows, up to the end of
  // the last group of rows.
  QuantizedRows quantized;
  int64_t num_rows = 0;
  uint8_t* scratch = nullptr;  // 16 * cols bytes, aligned to 64
  float* y = nullptr;
  int64_t y_stride = 0;
};

// The epilogue of one row: bias, activation, soft cap, residual.
struct EpilogueRow {
  const float* y = nullptr;
  const float* up = nullptr;        // the up projection, if the activation is gated
  const float* bias = nullptr;      // added to y; null: none
  const float* up_bias = nullptr;   // added to up
  const float* residual = nullptr;  // null: none
  float* out = nullptr;
  int64_t count = 0;
  Activation activation = Activation::kNone;
  float activation_limit = 0.0f;
  float soft_cap = 0.0f;  // 0: no cap
};

// The arguments of KernelTable::route. The kernel chooses the `num_chosen` experts with the largest
// logits for one token, in descending order of the logits; with kNormedLogistic the logistic values
// plus choice_bias decide instead. Among equals the lower id comes first. NaN counts as the
// largest.
struct RouteRow {
  const float* logits = nullptr;
  const float* choice_bias = nullptr;  // null: none
  int64_t num_experts = 0;
  int64_t num_chosen = 0;
  ExpertWeights kind = ExpertWeights::kSoftmaxOfChosen;
  int32_t* experts = nullptr;  // [num_chosen]
  float* weights = nullptr;    // [num_chosen]
};

// The arguments of KernelTable::combine. The kernel computes out = the sum of
// weights[i] * y[rows[i]], in the order of i, and adds the residual last.
struct CombineRow {
  const float* y = nullptr;       // [.., count]
  const int32_t* rows = nullptr;  // [num_rows]
  const float* weights = nullptr;
  int64_t num_rows = 0;
  const float* residual = nullptr;  // null: none
  float* out = nullptr;
  int64_t count = 0;
};

struct NormRow {
  const float* input = nullptr;
  float* out = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;  // null: none
  float* residual = nullptr;    // null: none
  int64_t count = 0;
  float eps = 0.0f;
  bool layer_norm = false;
};

// The cache of one layer. Its blocks are block_stride elements apart. For each head, a block has K
// in tiles of 16 tokens, each tile as [key_dim][16], and V as [block_size][value_dim].
struct CacheLayout {
  uint8_t* keys = nullptr;
  uint8_t* values = nullptr;
  DType dtype = DType::kF32;
  int64_t block_stride = 0;
  int64_t num_kv_heads = 0;
  int64_t block_size = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float k_scale = 1.0f;  // as in CacheScales
  float v_scale = 1.0f;
};

struct QkvPostRow {
  CacheLayout cache;
  const float* qkv = nullptr;
  float* query = nullptr;
  const float* cos_sin = nullptr;  // [rope_dim / 2, 2] of this position; null: no rope
  float query_scale = 1.0f;        // factor of the queries
  float value_scale = 1.0f;        // factor of the values
  int64_t slot = 0;
  int64_t num_heads = 0;
  int64_t rope_dim = 0;
  bool interleaved = false;
  const float* bias = nullptr;  // null: none
  float clip = 0.0f;            // 0: none
  // The weights of QK-norm; both are null if the model has no QK-norm.
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  bool norm_by_head = false;
  bool layer_norm = false;
  float norm_eps = 0.0f;
};

// Shifts the keys of one block, in all heads.
struct KeyShiftWork {
  CacheLayout cache;
  const float* cos_sin = nullptr;  // [rope_dim / 2, 2] for the distance of the shift
  float inverse_scale = 1.0f;      // 1 / the factor in cos_sin
  int64_t block = 0;
  int64_t rope_dim = 0;
  bool interleaved = false;
};

struct AttentionCall {
  CacheLayout cache;
  const float* query = nullptr;   // [num_tokens, num_heads, key_dim]
  float* out = nullptr;           // [num_tokens, num_heads, value_dim]
  const float* slopes = nullptr;  // [num_heads] or null
  bool alibi_is_rounded = false;
  const float* sinks = nullptr;  // [num_heads] or null
  int64_t num_heads = 0;
  float scale = 0.0f;
  float soft_cap = 0.0f;
  AttentionPattern pattern;
};

// One query token.
struct AttentionQuery {
  int64_t row = 0;       // among the query tokens of the step
  int64_t position = 0;  // in its sequence
};

// The work of one call of KernelTable::attention. The call computes the attention of query tokens
// [first_row, first_row + num_queries) of one sequence, for the query heads of one kv head, over
// segments [segment_begin, segment_end) of the sequence's keys.
struct AttentionWork {
  const int32_t* block_table = nullptr;
  int64_t first_row = 0;
  int64_t first_position = 0;
  int64_t num_queries = 0;
  // If not null, the num_queries query tokens, of several sequences whose block tables agree in
  // these segments. Every query is after the segments. first_row and first_position have no effect.
  const AttentionQuery* queries = nullptr;
  int64_t kv_head = 0;
  int64_t segment_begin = 0;
  int64_t segment_end = 0;
  // The spans in these segments that a row sees. A span begins at key `tile` * kSpanKeys. If null,
  // the work reads all spans from the first key that a row sees.
  const SeenTile* tiles = nullptr;
  int64_t num_tiles = 0;
  // If null, the work covers every segment and writes `out`. Otherwise the state of row r in
  // segment s is written to partials + ((s - segment_begin) * rows + r) * StateFloats(value_dim).
  float* partials = nullptr;
  float* scratch = nullptr;  // AttentionScratchFloats(rows, value_dim) floats
};

// Returns the number of floats in a row's softmax state. Sixteen floats hold the maximum and the
// sum. The weighted sum of V follows, rounded up to a multiple of 16 floats.
[[gnu::always_inline]] constexpr int64_t StateFloats(int64_t value_dim) {
  return 16 + (value_dim + 15) / 16 * 16;
}
[[gnu::always_inline]] constexpr int64_t AttentionScratchFloats(int64_t rows, int64_t value_dim) {
  return rows * (3 * StateFloats(value_dim) + 16);
}

// States of one row in segments that follow each other.
struct SegmentStates {
  const float* first = nullptr;
  int64_t stride = 0;  // floats from one state to the next
  int64_t count = 0;
};

// The arguments of KernelTable::attention_merge. The kernel folds the segments of one row, in
// order, and writes the output of the row.
struct AttentionMerge {
  SegmentStates shared;       // may be empty
  SegmentStates own;          // those after `shared`; not empty
  int64_t first_segment = 0;  // decides where super-segments begin
  float* out = nullptr;
  int64_t value_dim = 0;
  float v_scale = 1.0f;         // of the cache
  const float* sink = nullptr;  // null: none
  float* scratch = nullptr;     // 2 * StateFloats(value_dim)
};

struct KernelTable {
  const char* name = nullptr;
  void (*quantize)(const QuantizeWork&) = nullptr;
  void (*linear[kNumWeightTypes])(const LinearTile&) = {};
  void (*epilogue)(const EpilogueRow&) = nullptr;
  void (*norm)(const NormRow&) = nullptr;
  void (*route)(const RouteRow&) = nullptr;
  void (*combine)(const CombineRow&) = nullptr;
  void (*qkv_post)(const QkvPostRow&) = nullptr;
  void (*shift_keys)(const KeyShiftWork&) = nullptr;
  void (*attention)(const AttentionCall&, const AttentionWork&) = nullptr;
  void (*attention_merge)(const AttentionMerge&) = nullptr;
};

const KernelTable& PortableKernels();
// These three functions are defined only in a build for x86-64.
const KernelTable* Avx2Kernels();
const KernelTable* Avx512Kernels();
const KernelTable* AmxKernels();

}  // namespace quire::kernels::cpu
