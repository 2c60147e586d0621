#pragma once

// Defines which keys a query of attention sees.

#include <algorithm>
#include <compare>
#include <cstdint>

namespace quire::kernels {

// The rule by which a query sees keys. A query at position p sees no key before FirstKey(p) and
// none after p. The positions and the query head alone decide, so chunking, sharing and preemption
// do not change what a query sees. FirstKey(p) never falls as p grows. So a key before FirstKey(p)
// is hidden from all later queries, too, and the KV cache may drop the key.
//
// Most rules show a query all keys from FirstKey(p) to p. A rule with holes (has_holes) hides some
// of them, and each query head may have its own holes. The plans of attention then list the tiles
// that their work reads (attention_tiles.h).
//
// A new rule is added here. The KV cache, the attention plans and the kernels only call the
// functions of this struct.
struct AttentionPattern {
  enum class Rule : uint8_t {
    // FirstKey is always 0:
    kAll,     // every key
    kBlocks,  // the keys of some blocks; block i: positions [i * tokens, (i + 1) * tokens)
    // FirstKey rises with the position:
    kWindow,  // the last `tokens` keys, the query's own included
    kChunk,   // the keys of the query's chunk; chunk i: positions [i * tokens, (i + 1) * tokens)
  };
  Rule rule = Rule::kAll;
  int64_t tokens = 0;  // at least 1; with kAll 0
  // Used only by kBlocks. A query in block q sees block k if q - k < local_blocks, or if
  // k + head * head_step + 1 is a multiple of `stride`.
  int32_t local_blocks = 0;  // at least 1, so that every query sees itself
  int32_t stride = 0;        // at least 1
  int32_t head_step = 0;     // 0: all heads see the same blocks

  // Returns the pattern of a sliding window. 0 tokens mean no window: every key is seen.
  static constexpr AttentionPattern Window(int64_t tokens) {
    return {.rule = tokens == 0 ? Rule::kAll : Rule::kWindow, .tokens = tokens};
  }
  // Returns the pattern of attention within chunks (Llama 4). 0 tokens mean no chunks.
  static constexpr AttentionPattern Chunk(int64_t tokens) {
    return {.rule = tokens == 0 ? Rule::kAll : Rule::kChunk, .tokens = tokens};
  }

  // Returns the pattern of block-sparse attention (Phi-3-small). `tokens` must be a multiple of
  // kTileKeys.
  static constexpr AttentionPattern Blocks(int64_t tokens, int32_t local_blocks, int32_t stride,
                                           int32_t head_step) {
    return {.rule = Rule::kBlocks,
            .tokens = tokens,
            .local_blocks = local_blocks,
            .stride = stride,
            .head_step = head_step};
  }
  // The most keys of a tile. Kernels read a tile as a whole. A tile begins at a multiple of its
  // length, which divides kTileKeys. So no tile crosses a block of kBlocks.
  static constexpr int64_t kTileKeys = 64;

  constexpr bool sees_all() const { return rule == Rule::kAll; }
  // Returns true if a key from FirstKey(p) to p may be hidden from the query at p.
  constexpr bool has_holes() const { return rule == Rule::kBlocks; }
  // Returns the first key that the query at `position` sees. `position` must fit in 32 bits. Always
  // inlined, because the CPU kernels are compiled once for each instruction set. If the function
  // were not inlined, the linker would keep only one of the copies, which might use instructions
  // that the processor does not have.
  [[gnu::always_inline]] constexpr int64_t FirstKey(int64_t position) const {
    if (rule < Rule::kWindow || position < tokens) return 0;
    if (rule == Rule::kWindow) return position - tokens + 1;
    // Here `tokens` is at most `position`, so both fit in 32 bits. A GPU divides 32-bit integers
    // several times as fast as 64-bit integers.
    return position - static_cast<uint32_t>(position) % static_cast<uint32_t>(tokens);
  }
  // Returns true if query head `head` of the query at `query` sees the key at `key`. All three must
  // fit in 32 bits. Always inlined, like FirstKey.
  [[gnu::always_inline]] constexpr bool Sees(int64_t query, int64_t key, int64_t head) const {
    if (key > query || key < FirstKey(query)) return false;
    return !has_holes() || SeesBlock(query, key, head);
  }
  // Returns true if query head `head` of the query at `query` sees the block of `key`, except for
  // later keys. The pattern must have holes.
  [[gnu::always_inline]] constexpr bool SeesBlock(int64_t query, int64_t key, int64_t head) const {
    const auto length = static_cast<uint32_t>(tokens);
    const uint32_t key_block = static_cast<uint32_t>(key) / length;
    if (static_cast<uint32_t>(query) / length < key_block + static_cast<uint32_t>(local_blocks)) {
      return true;
    }
    const uint32_t offset = static_cast<uint32_t>(head) * static_cast<uint32_t>(head_step) + 1;
    return (key_block + offset) % static_cast<uint32_t>(stride) == 0;
  }
  // Returns the most keys that one query of a sequence of `num_tokens` sees. With kBlocks the
  // result may be too large by up to two blocks, because it ignores where the last block ends and
  // which blocks each head sees.
  constexpr int64_t MostKeys(int64_t num_tokens) const {
    if (rule != Rule::kBlocks) return MostKept(num_tokens);
    const int64_t earlier = std::max<int64_t>(0, (num_tokens - 1) / tokens + 1 - local_blocks);
    return std::min(num_tokens, (local_blocks + (earlier + stride - 1) / stride) * tokens);
  }
  // Returns the most keys that the KV cache must hold while a sequence grows to `num_tokens`, one
  // token a step. A step needs the keys from FirstKey of its query up to the query's own.
  constexpr int64_t MostKept(int64_t num_tokens) const {
    return rule < Rule::kWindow ? num_tokens : std::min(tokens, num_tokens);
  }

  friend constexpr auto operator<=>(const AttentionPattern&, const AttentionPattern&) = default;
};

}  // namespace quire::kernels
