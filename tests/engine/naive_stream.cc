#include "tests/engine/naive_stream.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/check.h"

namespace quire::testing {
namespace {

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void AddTo(std::vector<double>& x, const std::vector<double>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Applies softmax to `x` in place. Returns the logarithm of the sum of e^x.
double Softmax(std::vector<double>& x) {
  const double largest = *std::ranges::max_element(x);
  double sum = 0.0;
  for (double& value : x) sum += value = std::exp(value - largest);
  for (double& value : x) value /= sum;
  return largest + std::log(sum);
}

}  // namespace

std::span<const float> NaiveStream::Weight(const std::string& name) const {
  const files::TensorInfo* tensor = weights_.Find(name + ".weight");
  QUIRE_CHECK(tensor != nullptr) << name;
  return {reinterpret_cast<const float*>(tensor->bytes.data()),
          tensor->bytes.size() / sizeof(float)};
}

NaiveStream::Vector NaiveStream::Times(const std::string& name, const Vector& x) const {
  const std::span<const float> weight = Weight(name);
  Vector y(weight.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i) y[row] += double{weight[row * x.size() + i]} * x[i];
  }
  return y;
}

NaiveStream::Vector NaiveStream::Norm(const std::string& name, const Vector& x) const {
  const double inverse = 1.0 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + 1e-5);
  Vector y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= inverse * Weight(name)[i];
  return y;
}

NaiveStream::Vector NaiveStream::Head(const Vector& x, int64_t head, size_t position) const {
  const int64_t dim = shape_.head_dim, half = dim / 2;
  Vector y(x.begin() + head * dim, x.begin() + (head + 1) * dim);
  for (int64_t i = 0; i < half && !options_.alibi; ++i) {
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    const double a = y[i], b = y[i + half];
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + half] = a * std::sin(angle) + b * std::cos(angle);
  }
  return y;
}

NaiveStream::Vector NaiveStream::Attend(const std::vector<Entry>& cache,
                                        const Vector& query) const {
  const int64_t dim = shape_.head_dim, heads = shape_.num_attention_heads;
  const size_t last = cache.size() - 1;
  Vector out(query.size());
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv_head = h / (heads / shape_.num_key_value_heads);
    const Vector q = Head(query, h, last);
    // If the number of heads H is a power of two, the ALiBi slope of head h (counted from 0) is
    // 2^(-8 (h + 1) / H).
    const double slope =
        options_.alibi ? std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads))
                       : 0.0;
    Vector scores;
    for (size_t p = 0; p < cache.size(); ++p) {
      scores.push_back(Dot(q, Head(cache[p].key, kv_head, p)) /
                           std::sqrt(static_cast<double>(dim)) -
                       slope * static_cast<double>(last - p));
    }
    Softmax(scores);
    for (size_t p = 0; p < cache.size(); ++p) {
      for (int64_t d = 0; d < dim; ++d) {
        out[h * dim + d] += scores[p] * cache[p].value[kv_head * dim + d];
      }
    }
  }
  return out;
}

std::vector<double> NaiveStream::Push(int32_t token) {
  const std::span<const float> embedding = Weight("model.embed_tokens");
  const int64_t hidden = shape_.hidden_size;
  Vector x(embedding.begin() + token * hidden, embedding.begin() + (token + 1) * hidden);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    std::vector<Entry>& cache = layers_[i];
    if (static_cast<int64_t>(cache.size()) == options_.sinks + options_.window) {
      cache.erase(cache.begin() + options_.sinks, cache.begin() + options_.sinks + options_.drop);
    }
    const Vector normed = Norm(layer + "input_layernorm", x);
    cache.push_back({.key = Times(layer + "self_attn.k_proj", normed),
                     .value = Times(layer + "self_attn.v_proj", normed)});
    AddTo(x, Times(layer + "self_attn.o_proj",
                   Attend(cache, Times(layer + "self_attn.q_proj", normed))));
    const Vector mlp_input = Norm(layer + "post_attention_layernorm", x);
    Vector up = Times(layer + "mlp.up_proj", mlp_input);
    const Vector gate = Times(layer + "mlp.gate_proj", mlp_input);
    for (size_t k = 0; k < up.size(); ++k) up[k] *= gate[k] / (1.0 + std::exp(-gate[k]));
    AddTo(x, Times(layer + "mlp.down_proj", up));
  }
  Vector logits = Times("lm_head", Norm("model.norm", x));
  Vector weights = logits;
  const double log_sum = Softmax(weights);
  for (double& logit : logits) logit -= log_sum;
  return logits;
}

}  // namespace quire::testing
