#pragma once

// Defines which keys a query of attention sees.

#include <algorithm>
#include <compare>
#include <cstdint>

namespace quire::kernels {

// The rule by which a query sees keys. A query at position p sees the keys FirstKey(p) to p. The
// position alone decides, so chunking, sharing and preemption do not change what a query sees.
// FirstKey(p) never falls as p grows. So a key that one query no longer sees is hidden from all
// later queries, too, and the KV cache may drop the key.
//
// A new rule is added here. The KV cache, the attention plans and the kernels only call the
// functions of this struct.
struct AttentionPattern {
  enum class Rule : uint8_t {
    kAll,     // every key
    kWindow,  // the last `tokens` keys, the query's own included
    kChunk,   // the keys of the query's chunk; chunk i: positions [i * tokens, (i + 1) * tokens)
  };
  Rule rule = Rule::kAll;
  int64_t tokens = 0;  // at least 1; with kAll 0

  // Returns the pattern of a sliding window. 0 tokens mean no window: every key is seen.
  static constexpr AttentionPattern Window(int64_t tokens) {
    return {.rule = tokens == 0 ? Rule::kAll : Rule::kWindow, .tokens = tokens};
  }
  // Returns the pattern of attention within chunks (Llama 4). 0 tokens mean no chunks.
  static constexpr AttentionPattern Chunk(int64_t tokens) {
    return {.rule = tokens == 0 ? Rule::kAll : Rule::kChunk, .tokens = tokens};
  }

  constexpr bool sees_all() const { return rule == Rule::kAll; }
  // Returns the first key that the query at `position` sees. `position` must fit in 32 bits. Always
  // inlined, because the CPU kernels are compiled once for each instruction set. If the function
  // were not inlined, the linker would keep only one of the copies, which might use instructions
  // that the processor does not have.
  [[gnu::always_inline]] constexpr int64_t FirstKey(int64_t position) const {
    if (rule == Rule::kAll || position < tokens) return 0;
    if (rule == Rule::kWindow) return position - tokens + 1;
    // Here `tokens` is at most `position`, so both fit in 32 bits. A GPU divides 32-bit integers
    // several times as fast as 64-bit integers.
    return position - static_cast<uint32_t>(position) % static_cast<uint32_t>(tokens);
  }
  // Returns the most keys that one query of a sequence of `num_tokens` sees.
  constexpr int64_t MostKeys(int64_t num_tokens) const {
    return rule == Rule::kAll ? num_tokens : std::min(tokens, num_tokens);
  }

  friend constexpr auto operator<=>(const AttentionPattern&, const AttentionPattern&) = default;
};

}  // namespace quire::kernels
