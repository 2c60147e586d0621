#pragma once

// Maps a decoder's parameters to the tensors of a file. Loading reads them by this map, and
// conversion pairs the maps of two files.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "files/weight_map.h"

namespace quire::engine {

struct RowRange {
  int64_t begin = 0, end = 0;
};

// A matrix by its rows, or a vector by its elements.
struct NamedRows {
  std::string name;
  int64_t rows = 0;                   // of the tensor, or of each of its matrices
  std::vector<RowRange> ranges = {};  // the rows wanted, in this order; empty: all
  int64_t num_matrices = 0;           // of a tensor [num_matrices, rows, cols]; 0: a matrix
  enum class Form { kAsIs, kTransposed, kUnitRows };  // of a matrix in the file, to be rewritten
  Form form = Form::kAsIs;
};
// The shape of the tensor in the file; `cols` as in StoredParameter.
std::vector<int64_t> ShapeOf(const NamedRows& part, int64_t cols);
// The wanted ranges, in rows of the whole tensor.
std::vector<RowRange> RangesOf(const NamedRows& part);

enum class ParameterRole {
  kEmbedding,
  kPositions,  // learned ones
  kHead,
  kQkv,     // queries, keys and values, or their bias: heads of Q, of K, of V
  kRouter,  // of a mixture
  kOther,
};

// One parameter as kernels take it: rows of the file's tensors, the parts stacked.
struct StoredParameter {
  std::vector<NamedRows> parts = {};  // empty: the model has no such parameter
  int64_t cols = 0;                   // 0: it is a vector
  float offset = 0.0f;                // of a vector: added to each element
  ParameterRole role = ParameterRole::kOther;

  bool empty() const { return parts.empty(); }
};

struct StoredNorm {
  StoredParameter weight, bias;
};

struct LayerTensors {
  StoredNorm attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  StoredParameter qkv, qkv_bias, q_norm, k_norm, o, o_bias;
  StoredParameter up, up_bias, down, down_bias;  // a gated MLP's gate precedes `up`
  // A mixture has these instead of the four above. In experts_up, each expert's gate precedes its
  // `up`.
  StoredParameter router, experts_up, experts_down;
};

struct DecoderTensors {
  StoredParameter embedding, position_embedding;
  StoredNorm embedding_norm, final_norm;
  StoredParameter head;  // empty when it is tied to the embedding
  std::vector<LayerTensors> layers;
};

// `has(name)` is true if the file has the tensor. It is called where files of one config differ:
// names with or without names.prefix, the bias of attention's output, the naming of a mixture.
DecoderTensors FindTensors(const ModelConfig& config, const TensorNames& names,
                           const std::function<bool(std::string_view)>& has);

// Every parameter, absent ones too, in an order that is the same for all files of models with the
// same parts. Points into `tensors`.
std::vector<const StoredParameter*> AllParameters(const DecoderTensors& tensors);

// Checks that `weights` has each of these tensors, with its shape and a type that kernels compute
// with, and no others. InvalidArgument for a tensor that would be left out: an unknown part of the
// model.
absl::Status CheckTensors(const DecoderTensors& tensors, const files::WeightMap& weights,
                          const TensorNames& names, std::string_view architecture);

}  // namespace quire::engine
