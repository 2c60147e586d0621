#pragma once

// Computes a stream of tokens with attention sinks straight from the definition, in doubles. This
// is the reference for the engine, which keeps the cache in blocks and rotates cached keys.

#include <cstdint>
#include <span>
#include <vector>

#include "tests/testing/in_memory_weights.h"

namespace quire::testing {

// A Llama whose cache is a list of tokens. The list keeps keys without rotation. The position of a
// token is its index in the list. When the list holds sinks + window tokens and another token
// comes, the `drop` tokens after the first `sinks` tokens are erased.
class NaiveStream {
 public:
  struct Options {
    int64_t sinks = 0;
    int64_t window = 0;
    int64_t drop = 0;
    bool alibi = false;  // instead of rotary positions
  };
  // The tensors of `weights` have Hugging Face names. `weights` must outlive the stream.
  NaiveStream(const TinyLlamaShape& shape, const InMemoryWeights& weights, const Options& options)
      : shape_(shape), weights_(weights), options_(options), layers_(shape.num_hidden_layers) {}

  // Appends the next token. Returns the log-probabilities of the token after it, [vocab_size].
  std::vector<double> Push(int32_t token);

 private:
  using Vector = std::vector<double>;
  struct Entry {
    Vector key, value;  // [num_key_value_heads * head_dim]
  };
  std::span<const float> Weight(const std::string& name) const;
  Vector Times(const std::string& name, const Vector& x) const;
  Vector Norm(const std::string& name, const Vector& x) const;
  Vector Attend(const std::vector<Entry>& cache, const Vector& query) const;
  // Returns head `head` of `x`. Without ALiBi, rotates the head for `position`, an index in the
  // list.
  Vector Head(const Vector& x, int64_t head, size_t position) const;

  const TinyLlamaShape shape_;
  const InMemoryWeights& weights_;
  const Options options_;
  std::vector<std::vector<Entry>> layers_;
};

}  // namespace quire::testing
