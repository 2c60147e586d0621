#include "bench/gpu/bench_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/alibi_slopes.h"

namespace quire::bench {
namespace {

struct Heads {
  int32_t num_heads, num_kv_heads;
};

AttentionCase Uniform(std::string suite, int32_t num_seqs, int32_t query_len, int32_t context_len,
                      Heads heads) {
  const auto count = static_cast<size_t>(num_seqs);
  return {.suite = std::move(suite),
          .context_lens = std::vector<int32_t>(count, context_len),
          .query_lens = std::vector<int32_t>(count, query_len),
          .num_heads = heads.num_heads,
          .num_kv_heads = heads.num_kv_heads};
}

// Returns a case of many short contexts and one long context. If each sequence were the work of one
// thread block, the block with the long context would still run when all others have ended.
AttentionCase Ragged(int32_t num_short, int32_t short_len, int32_t long_len, Heads heads) {
  AttentionCase c = Uniform("ragged", num_short + 1, 1, short_len, heads);
  c.context_lens.back() = long_len;
  return c;
}

// Returns a step of an engine: decodes, and a chunk of a prompt that follows as many tokens as each
// of them has.
AttentionCase Mixed(int32_t num_decodes, int32_t context, int32_t chunk, Heads heads) {
  AttentionCase c = Uniform("mixed", num_decodes + 1, 1, context, heads);
  c.context_lens.back() += chunk;
  c.query_lens.back() = chunk;
  return c;
}

AttentionCase WithHeadDim(int32_t head_dim, AttentionCase c) {
  c.head_dim = head_dim;
  return c;
}

AttentionGroup Variants(const AttentionCase& base, const std::vector<int32_t>& block_sizes) {
  AttentionGroup group;
  for (const int32_t block_size : block_sizes) {
    for (const bool alibi : {false, true}) {
      AttentionCase c = base;
      c.block_size = block_size;
      c.alibi = alibi;
      group.push_back(std::move(c));
    }
  }
  return group;
}

// Returns the group and, as its last cases, the first one of each kernel with a cache of fp8.
AttentionGroup WithFp8(AttentionGroup group) {
  const AttentionGroup of_16_bits = group;
  for (const bool wgmma : {false, true}) {
    const auto first = std::ranges::find(of_16_bits, wgmma, &AttentionCase::wgmma);
    if (first == of_16_bits.end()) continue;
    group.push_back(*first);
    group.back().fp8 = true;
  }
  return group;
}

// Returns the case, and the case with another value of `member`.
template <typename T>
AttentionGroup With(const AttentionCase& c, T AttentionCase::*member, T value) {
  AttentionCase other = c;
  other.*member = value;
  return {c, other};
}

// Returns the variants of a prefill or of a mixed step, on both kernels.
AttentionGroup PrefillVariants(const AttentionCase& base, const std::vector<int32_t>& block_sizes) {
  AttentionGroup group = Variants(base, block_sizes);
  const size_t num_on_mma = group.size();
  for (size_t i = 0; i < num_on_mma; ++i) {
    AttentionCase c = group[i];
    c.wgmma = true;
    group.push_back(std::move(c));
  }
  return group;
}

// Returns decodes of `num_seqs` forks of a prefix, which read it one by one and together.
AttentionGroup Forks(int32_t num_seqs, int32_t prefix, int32_t own, Heads heads) {
  AttentionCase c = Uniform("shared", num_seqs, 1, prefix + own, heads);
  c.prefix = prefix;
  return With(c, &AttentionCase::together, true);
}

// Returns decodes with ALiBi that read all keys, and that skip far keys.
AttentionGroup Skips(int32_t num_seqs, int32_t context, Heads heads) {
  AttentionCase c = Uniform("skip", num_seqs, 1, context, heads);
  c.alibi = true;
  return With(c, &AttentionCase::skips, true);
}

// Returns the keys that the KV heads of a decode read of a sequence, all heads together.
double KeysRead(const AttentionCase& c, double context) {
  if (!c.skips) return context * c.num_kv_heads;
  const std::vector<float> slopes = kernels::AlibiSlopes(c.num_heads);
  const int32_t group = c.num_heads / c.num_kv_heads;
  const double query_norm = kQueryAmplitude * std::sqrt(c.head_dim / 3.0);
  const double bound = query_norm * LargestKeyNorm(c.head_dim) / std::sqrt(c.head_dim);
  double keys = 0.0;
  for (int32_t head = 0; head < c.num_heads; head += group) {
    const double slope = *std::min_element(slopes.begin() + head, slopes.begin() + head + group);
    keys += std::min(context, (2 * bound + 24 * std::log(2.0)) / slope);
  }
  return keys;
}

std::vector<AttentionGroup> FullGroups() {
  constexpr Heads kLlama3 = {32, 8}, kQwen = {28, 4}, kMha = {32, 32}, kMqa = {32, 1};
  constexpr Heads kGemma2 = {16, 8};
  const std::vector<int32_t> decode_blocks = {16, 32, 64};
  std::vector<AttentionGroup> groups;
  for (const Heads heads : {kLlama3, kMha, kQwen, kMqa}) {
    groups.push_back(Variants(Ragged(63, 512, 131072, heads), decode_blocks));
    for (const int32_t batch : {64, 1, 256, 8}) {
      for (const int32_t context : {8192, 1024, 32768}) {
        groups.push_back(
            WithFp8(Variants(Uniform("decode", batch, 1, context, heads), decode_blocks)));
      }
    }
    groups.push_back(Variants(Uniform("decode", 1, 1, 131072, heads), decode_blocks));
  }
  for (const Heads heads : {kLlama3, kMha, kQwen, kMqa}) {
    for (const int32_t num_seqs : {16, 4, 64}) {
      groups.push_back(Forks(num_seqs, 4096, 256, heads));
    }
  }
  for (const int32_t num_seqs : {64, 1}) {
    for (const int32_t context : {8192, 2048, 32768}) {
      groups.push_back(Skips(num_seqs, context, kMha));
    }
  }
  for (const Heads heads : {kLlama3, kMha}) {
    for (const int32_t length : {8192, 1024, 32768}) {
      groups.push_back(
          WithFp8(PrefillVariants(Uniform("prefill", 1, length, length, heads), {16, 64})));
    }
    groups.push_back(PrefillVariants(Uniform("prefill", 1, 512, 8192, heads), {16, 64}));
  }
  for (const Heads heads : {kQwen, kMqa}) {
    groups.push_back(PrefillVariants(Uniform("prefill", 1, 8192, 8192, heads), {16}));
  }
  for (const AttentionCase& c : {Mixed(63, 4096, 512, kLlama3), Mixed(255, 1024, 2048, kLlama3)}) {
    groups.push_back(PrefillVariants(c, {16}));
  }
  for (const AttentionCase& c :
       {Uniform("decode", 16, 1, 4096, kLlama3), Uniform("decode", 256, 1, 512, kLlama3)}) {
    groups.push_back(With(c, &AttentionCase::layers, 32));
  }
  groups.push_back(With(Uniform("decode", 4, 1, 4096, kLlama3), &AttentionCase::apart, true));
  for (const auto& [head_dim, heads] : {std::pair(64, kLlama3), std::pair(256, kGemma2)}) {
    groups.push_back(
        WithFp8(Variants(WithHeadDim(head_dim, Uniform("decode", 64, 1, 8192, heads)), {16})));
    groups.push_back(WithFp8(
        PrefillVariants(WithHeadDim(head_dim, Uniform("prefill", 1, 8192, 8192, heads)), {16})));
  }
  return groups;
}

std::vector<AttentionGroup> TinyGroups() {
  constexpr Heads kGrouped = {4, 2};
  std::vector<AttentionGroup> groups = {
      WithFp8(Variants(Uniform("decode", 3, 1, 70, kGrouped), {16, 32})),
      Variants(Ragged(3, 20, 600, kGrouped), {16}),
      Forks(3, 128, 20, kGrouped),
      Skips(2, 1500, kGrouped),
      WithFp8(PrefillVariants(Uniform("prefill", 1, 40, 40, kGrouped), {16})),
      Variants(Uniform("prefill", 1, 8, 100, kGrouped), {16}),
      PrefillVariants(Mixed(3, 70, 20, kGrouped), {16}),
      With(Uniform("decode", 2, 1, 50, kGrouped), &AttentionCase::layers, 3),
      With(Uniform("decode", 1, 1, 600, kGrouped), &AttentionCase::apart, true),
  };
  for (AttentionGroup& group : groups) {
    for (AttentionCase& c : group) c.head_dim = 64;
  }
  return groups;
}

}  // namespace

double FloorSeconds(const Work& work, const Ceilings& ceilings) {
  return std::max(work.bytes / ceilings.read, work.flops / ceilings.gemm);
}

double PredictedSeconds(const Work& work, const Ceilings& ceilings,
                        const Expectation& expectation) {
  return expectation.launch_seconds +
         FloorSeconds(work, {.read = ceilings.read * expectation.of_read,
                             .gemm = ceilings.gemm * expectation.of_gemm});
}

std::string Name(const AttentionCase& c) {
  std::string name = c.suite;
  for (size_t i = 0; i < c.context_lens.size();) {
    size_t end = i;
    while (end < c.context_lens.size() && c.context_lens[end] == c.context_lens[i] &&
           c.query_lens[end] == c.query_lens[i]) {
      ++end;
    }
    absl::StrAppend(&name, i == 0 ? " " : "+", end - i, "x");
    if (c.query_lens[i] != 1) absl::StrAppend(&name, c.query_lens[i], "@");
    absl::StrAppend(&name, c.context_lens[i]);
    i = end;
  }
  absl::StrAppend(&name, " ", c.num_heads, "/", c.num_kv_heads, " d", c.head_dim, " bs",
                  c.block_size, c.alibi ? " alibi" : "", c.wgmma ? " wgmma" : "",
                  c.fp8 ? " fp8" : "");
  if (c.prefix > 0) absl::StrAppend(&name, " prefix ", c.prefix, c.together ? " together" : "");
  if (c.skips) absl::StrAppend(&name, " skipping");
  if (c.layers > 1) absl::StrAppend(&name, " of ", c.layers, " layers");
  if (c.apart) absl::StrAppend(&name, " apart");
  return name;
}

nlohmann::ordered_json ShapeToJson(const AttentionCase& c) {
  return {{"context_lens", c.context_lens},
          {"query_lens", c.query_lens},
          {"num_heads", c.num_heads},
          {"num_kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"block_size", c.block_size},
          {"alibi", c.alibi},
          {"wgmma", c.wgmma},
          {"fp8", c.fp8},
          {"prefix", c.prefix},
          {"together", c.together},
          {"skips", c.skips},
          {"layers", c.layers},
          {"apart", c.apart}};
}

const Expectation& ExpectationOf(const AttentionCase& c) {
  if (c.fp8 && c.wgmma) return kFp8WgmmaExpectation;
  if (c.fp8) return c.head_dim <= 128 ? kFp8Expectation : kFp8NarrowExpectation;
  if (c.skips) return kSkipExpectation;
  return c.wgmma ? kWgmmaExpectation : c.together ? kTogetherExpectation : kAttentionExpectation;
}

Work WorkOf(const AttentionCase& c) {
  const auto cache_bytes = static_cast<double>(c.cache_element_bytes());
  double keys = 0.0, queries = 0.0, scores = 0.0;  // keys of all KV heads
  for (size_t i = 0; i < c.context_lens.size(); ++i) {
    const double context = c.context_lens[i], query = c.query_lens[i];
    keys += KeysRead(c, context);
    queries += query;
    scores += query * (context - (query - 1) / 2);
  }
  if (c.together) {
    const auto num_seqs = static_cast<int32_t>(c.context_lens.size());
    const int32_t seqs_of_unit = 64 / (c.num_heads / c.num_kv_heads);
    const int32_t num_units = (num_seqs + seqs_of_unit - 1) / seqs_of_unit;
    keys -= static_cast<double>(num_seqs - num_units) * c.prefix * c.num_kv_heads;
  }
  return {.bytes = 2.0 * c.head_dim * (cache_bytes * keys + 2.0 * queries * c.num_heads),
          .flops = 4.0 * scores * c.num_heads * c.head_dim};
}

int64_t NumBlocks(const AttentionCase& c) {
  int64_t blocks = 0;
  for (const int32_t length : c.context_lens) blocks += (length + c.block_size - 1) / c.block_size;
  return blocks;
}

int64_t BlockElements(const AttentionCase& c) {
  return int64_t{2} * c.num_kv_heads * c.block_size * c.head_dim;
}

int64_t KvBytes(const AttentionCase& c) {
  return NumBlocks(c) * c.layers * BlockElements(c) * c.cache_element_bytes();
}

std::vector<AttentionGroup> AttentionGroups(Size size) {
  return size == Size::kFull ? FullGroups() : TinyGroups();
}

}  // namespace quire::bench
