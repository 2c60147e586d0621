#include "tests/kernels/cuda/attention_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

#include "kernels/alibi_slopes.h"
#include "kernels/cuda/attention/attention_items.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/seen_keys.h"

namespace quire::testing {

using kernels::DType;
using kernels::TensorView;

namespace {

// Fills the unused entries of the block table. A kernel must never read the block with this number.
constexpr int32_t kNoBlock = 1 << 28;

std::vector<float> Rounded(DType dtype, const std::vector<float>& values) {
  return Decode(dtype, Encode(dtype, values));
}

}  // namespace

void PrintTo(const SharedPrefix& shared, std::ostream* out) {
  *out << shared.num_keys << " keys of sequences " << ::testing::PrintToString(shared.sequences);
}

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  out << "context/query lens";
  for (const AttentionSequence& sequence : c.sequences) {
    out << " " << sequence.context_len << "/" << sequence.query_len;
  }
  return out << ", heads " << c.num_heads << "/" << c.num_kv_heads << " of " << c.head_dim << "/"
             << c.value_dim() << ", block_size " << c.block_size << ", " << Name(c.dtype)
             << ", cache " << Name(c.cache_dtype.value_or(c.dtype)) << ", " << ToString(c.pattern)
             << ", cache_deviation " << c.cache_deviation << ", cache_scales " << c.cache_scales.k
             << "/" << c.cache_scales.v << ", soft_cap " << c.soft_cap << ", scale " << c.scale
             << ", alibi " << c.alibi << (c.alibi_is_rounded ? " rounded" : "") << ", sinks "
             << c.sinks << ", second_half " << c.second_half << ", skips_far_keys "
             << c.skips_far_keys << ", fixed_split_keys " << c.fixed_split_keys << ", part_rows "
             << c.part_rows << ", shared " << ::testing::PrintToString(c.shared);
}

AttentionBatch::AttentionBatch(const AttentionCase& c)
    : case_(c),
      cache_dtype_(c.cache_dtype.value_or(c.dtype)),
      scale_(c.scale != 0.0f ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim))) {
  for (const AttentionSequence& sequence : c.sequences) {
    context_lens_.push_back(sequence.context_len);
    query_lens_.push_back(sequence.query_len);
    query_starts_.push_back(query_starts_.back() + sequence.query_len);
    max_blocks_ =
        std::max<int64_t>(max_blocks_, (sequence.context_len + c.block_size - 1) / c.block_size);
  }
  std::vector<const SharedPrefix*> prefix_of(c.sequences.size());
  for (const SharedPrefix& shared : c.shared) {
    if (c.shares_keys) {
      shared_keys_.push_back({.first = static_cast<int32_t>(shared_seqs_.size()),
                              .count = static_cast<int32_t>(shared.sequences.size()),
                              .num_keys = shared.num_keys});
      shared_seqs_.insert(shared_seqs_.end(), shared.sequences.begin(), shared.sequences.end());
    }
    for (const int32_t seq : shared.sequences) prefix_of[static_cast<size_t>(seq)] = &shared;
  }
  const auto num_seqs = std::ssize(c.sequences);
  const int64_t key_elements = int64_t{c.num_kv_heads} * c.block_size * c.head_dim;
  const int64_t value_elements = int64_t{c.num_kv_heads} * c.block_size * c.value_dim();
  block_stride_ = 2 * key_elements + value_elements;
  block_table_.assign(static_cast<size_t>(num_seqs * max_blocks_), kNoBlock);
  // The memory ends where the last block ends, so that AddressSanitizer sees reads beyond the last
  // block.
  const int64_t cache_size = num_seqs * max_blocks_ * block_stride_ - key_elements;
  cache_ = c.poisoned ? std::vector<float>(static_cast<size_t>(cache_size), std::nanf(""))
                      : Normal(0, cache_size);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const AttentionSequence& sequence = c.sequences[static_cast<size_t>(seq)];
    const auto seed_of = [&](int64_t s) {
      const uint64_t given = c.sequences[static_cast<size_t>(s)].seed;
      return given != 0 ? given : static_cast<uint64_t>(s) + 1;
    };
    const uint64_t seed = seed_of(seq);
    const SharedPrefix* const prefix = prefix_of[static_cast<size_t>(seq)];
    const int64_t token = int64_t{c.num_heads} * c.head_dim;
    const std::vector<float> query =
        Normal(2 * seed, (sequence.queries_before + sequence.query_len) * token);
    query_.insert(query_.end(), query.begin() + sequence.queries_before * token, query.end());
    const int64_t row = int64_t{c.num_kv_heads} * (c.head_dim + c.value_dim());
    const std::vector<float> own_rows =
        Normal(2 * seed + 1, sequence.context_len * row, c.cache_deviation);
    const std::vector<float> shared_rows = prefix == nullptr
                                               ? std::vector<float>()
                                               : Normal(2 * seed_of(prefix->sequences[0]) + 1,
                                                        prefix->num_keys * row, c.cache_deviation);
    const int32_t first_position = sequence.context_len - sequence.query_len;
    // Returns true if a query head of `kv_head` sees `key` in this step.
    const auto is_seen = [&](int64_t key, int64_t kv_head) {
      const int64_t group = c.num_heads / c.num_kv_heads;
      for (int64_t q = std::max<int64_t>(first_position, key); q < sequence.context_len; ++q) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          if (testing::Sees(c.pattern, q, key, head)) return true;
        }
      }
      return false;
    };
    for (int64_t key = 0; key < sequence.context_len; ++key) {
      const int64_t block = key / c.block_size;
      const bool is_shared = prefix != nullptr && key < prefix->num_keys;
      const int64_t owner = is_shared ? prefix->sequences[0] : seq;
      // A block that has left a window may be gone.
      if (!c.poisoned || key >= c.pattern.FirstKey(first_position)) {
        block_table_[static_cast<size_t>(seq * max_blocks_ + block)] =
            static_cast<int32_t>((max_blocks_ - 1 - block) * num_seqs + owner);
      }
      auto from = (is_shared ? shared_rows : own_rows).begin() + key * row;
      for (int64_t part = 0; part < 2 * c.num_kv_heads; ++part) {
        const int64_t dim = part < c.num_kv_heads ? c.head_dim : c.value_dim();
        if (!c.poisoned || is_seen(key, part % c.num_kv_heads)) {
          std::copy_n(from, dim, cache_.begin() + At(static_cast<size_t>(seq), key, part));
        }
        from += dim;
      }
    }
  }
  query_ = Rounded(c.dtype, query_);
  cache_ = Rounded(cache_dtype_, cache_);
  for (int32_t h = 0; h < c.num_heads; ++h) sinks_.push_back(static_cast<float>(h % 5) - 1.0f);
  slopes_ = kernels::AlibiSlopes(c.second_half ? 2 * c.num_heads : c.num_heads);
  if (c.second_half) slopes_.erase(slopes_.begin(), slopes_.begin() + c.num_heads);
  if (!c.slopes.empty()) slopes_ = c.slopes;
}

void AttentionBatch::SetQuery(size_t seq, int64_t i, int64_t head, float element) {
  const int64_t row = (query_starts_[seq] + i) * case_.num_heads + head;
  for (int64_t d = 0; d < case_.head_dim; ++d) {
    query_[static_cast<size_t>(row * case_.head_dim + d)] = Sign(d) * element;
  }
}

void AttentionBatch::SetKeyAndValue(size_t seq, int64_t key, int64_t kv_head, float key_element,
                                    float value_element) {
  float* const k = cache_.data() + At(seq, key, kv_head);
  for (int64_t d = 0; d < case_.head_dim; ++d) k[d] = Sign(d) * key_element;
  std::fill_n(cache_.data() + At(seq, key, case_.num_kv_heads + kv_head), case_.value_dim(),
              value_element);
}

std::vector<float> AttentionBatch::KeyNorms() const {
  std::vector<float> norms(static_cast<size_t>(case_.num_kv_heads), case_.key_norm.value_or(0.0f));
  if (!norms_before_.empty()) return norms_before_;
  if (case_.key_norm) return norms;
  for (size_t seq = 0; seq < query_lens_.size(); ++seq) {
    for (int64_t key = 0; key < context_lens_[seq]; ++key) {
      if (block_table_[seq * static_cast<size_t>(max_blocks_) +
                       static_cast<size_t>(key / case_.block_size)] == kNoBlock) {
        continue;
      }
      for (int64_t kv_head = 0; kv_head < case_.num_kv_heads; ++kv_head) {
        const float* const k = cache_.data() + At(seq, key, kv_head);
        double squares = 0.0;
        for (int64_t d = 0; d < case_.head_dim; ++d) squares += double{k[d]} * k[d];
        float& norm = norms[static_cast<size_t>(kv_head)];
        norm = std::max(norm, static_cast<float>(std::sqrt(squares)));  // a NaN is no key
      }
    }
  }
  return norms;
}

int64_t AttentionBatch::PoisonFarKeys() {
  const std::vector<float> norms = norms_before_ = KeyNorms();
  const int32_t tile_keys = kernels::cuda::AttentionTileKeys(case_.head_dim);
  const int64_t group = case_.num_heads / case_.num_kv_heads;
  int64_t num_poisoned = 0;
  for (size_t seq = 0; seq < query_lens_.size(); ++seq) {
    const int64_t first_position = context_lens_[seq] - query_lens_[seq];
    for (int64_t head = 0; head < case_.num_heads; head += group) {
      const int64_t kv_head = head / group;
      double oldest = static_cast<double>(first_position);  // that a row needs
      for (int64_t row = 0; row < query_lens_[seq] * group; ++row) {
        const int64_t i = row / group, of = head + row % group;
        const float* const query =
            query_.data() + ((query_starts_[seq] + i) * case_.num_heads + of) * case_.head_dim;
        double squares = 0.0;
        for (int64_t d = 0; d < case_.head_dim; ++d) squares += double{query[d]} * query[d];
        double bound = std::abs(scale_) * case_.cache_scales.k * std::sqrt(squares) *
                       norms[static_cast<size_t>(kv_head)];
        if (case_.soft_cap > 0.0f) bound = std::min(bound, double{case_.soft_cap});
        // A little more than the kernel's rounding errors and margin.
        const double horizon =
            1.001 * (2 * bound + 24 * std::log(2.0)) / slopes_[static_cast<size_t>(of)];
        oldest = std::min(oldest, static_cast<double>(first_position + i) - horizon);
      }
      const int64_t end = static_cast<int64_t>(std::max(0.0, oldest)) / tile_keys * tile_keys;
      const float nan = std::nanf("");
      for (int64_t key = case_.pattern.FirstKey(first_position); key < end; ++key) {
        SetKeyAndValue(seq, key, kv_head, nan, nan);
        ++num_poisoned;
      }
    }
  }
  return num_poisoned;
}

kernels::AttentionPlanArgs AttentionBatch::PlanArgs() const {
  return {.context_lens = context_lens_,
          .query_lens = query_lens_,
          .heads = {case_.num_heads, case_.num_kv_heads, case_.head_dim, case_.value_dim()},
          .pattern = case_.pattern,
          .alibi_is_rounded = case_.alibi_is_rounded,
          .cache_dtype = cache_dtype_,
          .shared_seqs = shared_seqs_,
          .shared_keys = shared_keys_};
}

std::vector<float> AttentionBatch::RowsOf(size_t seq, const std::vector<float>& out) const {
  const int64_t row = int64_t{case_.num_heads} * case_.value_dim();
  return {out.begin() + query_starts_[seq] * row, out.begin() + query_starts_[seq + 1] * row};
}

int64_t AttentionBatch::At(size_t seq, int64_t key, int64_t part) const {
  const int64_t block = block_table_[seq * static_cast<size_t>(max_blocks_) +
                                     static_cast<size_t>(key / case_.block_size)];
  const int64_t values = part - case_.num_kv_heads;  // parts before the one, if it is of values
  const int64_t row = key % case_.block_size;
  if (values < 0) return block * block_stride_ + (part * case_.block_size + row) * case_.head_dim;
  const int64_t keys = int64_t{case_.num_kv_heads} * case_.block_size * case_.head_dim;
  return block * block_stride_ + keys + (values * case_.block_size + row) * case_.value_dim();
}

double AttentionBatch::Check(const std::vector<float>& out, AttentionWeights weights) const {
  const size_t size = query_.size() / case_.head_dim * case_.value_dim();
  EXPECT_EQ(out.size(), size);
  if (out.size() != size) return std::numeric_limits<double>::infinity();
  double worst = 0.0;
  for (size_t seq = 0; seq < query_lens_.size(); ++seq) {
    for (int64_t i = 0; i < query_lens_[seq]; ++i) {
      for (int64_t head = 0; head < case_.num_heads; ++head) {
        const int64_t row = (query_starts_[seq] + i) * case_.num_heads + head;
        const double error =
            WorstErrorOfRow(seq, i, head, out.data() + row * case_.value_dim(), weights);
        worst = std::max(worst, error);
        EXPECT_LE(error, 1.0) << "sequence " << seq << " query " << i << " head " << head;
        if (error > 1.0) return worst;
      }
    }
  }
  return worst;
}

double AttentionBatch::WorstErrorOfRow(size_t seq, int64_t i, int64_t head, const float* got,
                                       AttentionWeights weights) const {
  // kEpsilon is twice the largest relative error of one rounding.
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const int64_t head_dim = case_.head_dim;
  const int64_t position = context_lens_[seq] - query_lens_[seq] + i;
  const int64_t kv_head = head / (case_.num_heads / case_.num_kv_heads);
  const float* const query =
      query_.data() + ((query_starts_[seq] + i) * case_.num_heads + head) * head_dim;
  const double sink = sinks_[static_cast<size_t>(head)];

  std::vector<int64_t> seen_keys;
  std::vector<double> scores, errors;
  for (int64_t key = 0; key <= position; ++key) {
    if (!testing::Sees(case_.pattern, position, key, head)) continue;
    seen_keys.push_back(key);
    const float* const k = cache_.data() + At(seq, key, kv_head);
    double dot = 0.0, magnitude = 0.0;
    for (int64_t d = 0; d < head_dim; ++d) {
      dot += double{query[d]} * k[d];
      magnitude += std::abs(double{query[d]} * k[d]);
    }
    // The product of the scales is rounded, too.
    const double scale = double{scale_} * case_.cache_scales.k;
    double score = dot * scale;
    double error = static_cast<double>(head_dim + 3) * kEpsilon * magnitude * std::abs(scale);
    if (case_.soft_cap > 0.0f) {
      score = case_.soft_cap * std::tanh(score / case_.soft_cap);
      error += 16 * kEpsilon * case_.soft_cap;
    }
    if (case_.alibi_is_rounded) {
      const float rounded_key = kernels::Bf16ToF32(kernels::F32ToBf16(static_cast<float>(key)));
      const float slope = slopes_[static_cast<size_t>(head)];
      score += double{scale_} * kernels::Bf16ToF32(kernels::F32ToBf16(slope * rounded_key));
    } else if (case_.alibi) {
      score += slopes_[static_cast<size_t>(head)] * static_cast<double>(key - position);
    }
    scores.push_back(score);
    errors.push_back(error + 4 * kEpsilon * std::abs(score));
  }
  double maximum = *std::max_element(scores.begin(), scores.end());
  if (case_.sinks) maximum = std::max(maximum, sink);
  double sum = case_.sinks ? std::exp(sink - maximum) : 0.0;
  double score_error = 0.0;
  for (size_t j = 0; j < scores.size(); ++j) {
    // If the weight of a key is less than e^-40 of the largest weight, neither the weight nor the
    // error of its score matters.
    if (scores[j] > maximum - 40.0) score_error = std::max(score_error, errors[j]);
    sum += scores[j] = std::exp(scores[j] - maximum);
  }

  std::vector<double> want(static_cast<size_t>(case_.value_dim())), magnitude = want, values = want,
                                                                    largest = want;
  for (size_t j = 0; j < scores.size(); ++j) {
    const float* const v = cache_.data() + At(seq, seen_keys[j], case_.num_kv_heads + kv_head);
    for (size_t d = 0; d < want.size(); ++d) {
      const double value = double{v[d]} * case_.cache_scales.v;
      want[d] += scores[j] / sum * value;
      magnitude[d] += scores[j] / sum * std::abs(value);
      values[d] += std::abs(value);
      largest[d] = std::max(largest[d], std::abs(value));
    }
  }
  // Each weight and the sum of all weights have the error of the scores. Each product and each
  // weight is added with one rounding. A new maximum rescales both sums, at most once in 32 keys,
  // by an e^x that is off by two units. Together this is 1.2 * kEpsilon for each key. The argument
  // of e^x, which is at most 40, is rounded, too. This rounding counts 29 * kEpsilon for a weight
  // and 29 * kEpsilon for the sum. The rest of the 64 * kEpsilon is for dividing, for the scale of
  // the values and for merging parts.
  const double keys = static_cast<double>(scores.size());
  double relative = 2 * score_error + (1.2 * keys + 64) * kEpsilon;
  double of_weight = 0.0;
  if (weights == AttentionWeights::kRounded) {
    relative += Rounding(case_.dtype);
    // Rounding a weight below the normal numbers of f16 errs by up to 2^-25. The output is divided
    // by the sum of the weights. The sum is at least 1, because the largest weight is 1, so the
    // division does not increase the error.
    if (case_.dtype == DType::kF16) of_weight = 0x1p-25;
  }
  // Keys that are skipped weigh at most 2^-24, and change the sum of weights as much.
  const double skipped = case_.skips_far_keys ? 0x1p-23 : 0.0;
  double worst = 0.0;
  for (size_t d = 0; d < want.size(); ++d) {
    // The output is rounded once more when it is stored. The 1e-7 covers this rounding for an f16
    // output below the normal numbers.
    const double small = case_.dtype == DType::kF16 ? 1e-7 : 1e-7 * case_.cache_scales.v;
    const double bound = relative * magnitude[d] + of_weight * values[d] + skipped * largest[d] +
                         Rounding(case_.dtype) * (1.0 + relative) * std::abs(want[d]) + small;
    const double error = std::abs(got[d] - want[d]) / bound;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

AttentionOnDevice::AttentionOnDevice(kernels::cuda::Device& device, const AttentionBatch& batch)
    : query(device, batch.case_.dtype, batch.query_),
      cache(device, batch.cache_dtype_, batch.cache_),
      out(device, batch.case_.dtype,
          std::ssize(batch.query_) / batch.case_.head_dim * batch.case_.value_dim()),
      slopes(device, DType::kF32, batch.slopes_),
      sinks(device, DType::kF32, batch.sinks_),
      key_norms(device, DType::kF32, batch.KeyNorms()),
      block_table(device, batch.block_table_),
      context_lens(device, batch.context_lens_),
      query_starts(device, batch.query_starts_) {
  const AttentionCase& c = batch.case_;
  const int64_t num_tokens = batch.query_starts_.back(), num_seqs = std::ssize(c.sequences);
  args.out = out.View({num_tokens, c.num_heads, c.value_dim()});
  args.query = query.View({num_tokens, c.num_heads, c.head_dim});
  const int64_t num_blocks = num_seqs * batch.max_blocks_;
  args.kv_cache =
      kernels::CacheView(cache.View({1}).raw(), batch.cache_dtype_, num_blocks, c.num_kv_heads,
                         c.block_size, c.head_dim, c.value_dim(), batch.block_stride_);
  args.kv_cache.scales = c.cache_scales;
  if (c.skips_far_keys) args.kv_cache.key_norms = key_norms.View({c.num_kv_heads});
  args.block_table = TensorView(block_table.data(), DType::kI32, {num_seqs, batch.max_blocks_});
  args.context_lens = TensorView(context_lens.data(), DType::kI32, {num_seqs});
  args.query_starts = TensorView(query_starts.data(), DType::kI32, {num_seqs + 1});
  if (c.alibi || c.alibi_is_rounded) args.alibi_slopes = slopes.View({c.num_heads});
  args.alibi_is_rounded = c.alibi_is_rounded;
  if (c.sinks) args.sinks = sinks.View({c.num_heads});
  args.scale = batch.scale_;
  args.soft_cap = c.soft_cap;
  args.pattern = c.pattern;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace quire::testing
