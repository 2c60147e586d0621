#pragma once

// Maps the parameters of a decoder to the tensors of a file. The loader reads tensors by this map,
// and the converter pairs the maps of two files.

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

// Names the rows of a matrix, or the elements of a vector, in a file.
struct NamedRows {
  std::string name;
  int64_t rows = 0;                   // rows of the tensor, or of each of its matrices
  std::vector<RowRange> ranges = {};  // the rows wanted, in this order; empty: all
  // The number of matrices in a tensor [num_matrices, rows, cols], or of vectors in a tensor
  // [num_matrices, rows]. 0: the tensor is one matrix or vector.
  int64_t num_matrices = 0;
  // The form of a matrix in the file. All but kAsIs are rewritten when they are loaded.
  //   kTransposed         stored as [cols, rows]
  //   kTransposedInTurns  stored as [cols, rows]: the transpose of a matrix that is kInTurns
  //   kInTurns            the rows of two halves alternate. Rows 0, 2, ... are the first half, and
  //                       rows 1, 3, ... the second. The elements of a vector alternate in the same
  //                       way.
  //   kUnitRows           each row is divided by its length
  enum class Form { kAsIs, kTransposed, kTransposedInTurns, kInTurns, kUnitRows };
  Form form = Form::kAsIs;
};
// Returns the shape of the tensor in the file. `cols` is StoredParameter::cols.
std::vector<int64_t> ShapeOf(const NamedRows& part, int64_t cols);
// Returns the wanted ranges, in rows of the whole tensor.
std::vector<RowRange> RangesOf(const NamedRows& part);

enum class ParameterRole {
  kEmbedding,
  kPositions,  // learned positions
  kHead,
  kQkv,     // the heads of Q, then of K, then of V; or the bias of these
  kRouter,  // router of a mixture
  kOther,
};

// One parameter as kernels take it: rows of tensors in the file, stacked part by part.
struct StoredParameter {
  std::vector<NamedRows> parts = {};  // empty: the model has no such parameter
  int64_t cols = 0;                   // 0: the parameter is a vector
  RowRange wanted_cols = {};          // of a matrix; empty: all
  float offset = 0.0f;                // added to each element of a vector
  float factor = 1.0f;                // of each element of a vector, after the offset is added
  ParameterRole role = ParameterRole::kOther;

  bool empty() const { return parts.empty(); }
};

struct StoredNorm {
  StoredParameter weight, bias;
};

struct LayerTensors {
  StoredNorm attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  StoredParameter qkv, qkv_bias, q_norm, k_norm, o, o_bias, sinks;
  // The network that all tokens use. A mixture may have none. In a gated network, `up` begins with
  // the gate.
  StoredParameter up, up_bias, down, down_bias;
  // The parameters of a mixture. In experts_up, the gate of each
  // expert precedes its `up`.
  StoredParameter router, experts_up, experts_down;
  StoredParameter router_bias, choice_bias, experts_up_bias, experts_down_bias;
};

struct DecoderTensors {
  StoredParameter embedding, position_embedding;
  StoredNorm embedding_norm, final_norm;
  StoredParameter head;  // empty when the head is tied to the embedding
  std::vector<LayerTensors> layers;
};

// Returns true if a file has a tensor of this name.
using HasTensor = std::function<bool(std::string_view name)>;
// `weights` must outlive the result.
HasTensor HasTensorIn(const files::WeightMap& weights);

// Returns `names` with the prefix and the name of the head that the file uses.
TensorNames InSpellingOfFile(const TensorNames& names, const HasTensor& has);

// Finds the tensors of all parameters. Files with the same config may differ in three ways: in the
// prefix of the names (and with it in the name of the head), in whether the attention output has a
// bias, and in the names of a mixture's tensors. `has` is called to find out what the file has.
DecoderTensors FindTensors(const ModelConfig& config, const TensorNames& names,
                           const HasTensor& has);

// Returns a pointer to every StoredParameter in `tensors`. Parameters that the model does not have
// are included; they are empty(). The order of the pointers does not depend on the file, so the
// lists of two files of one model can be paired.
std::vector<const StoredParameter*> AllParameters(const DecoderTensors& tensors);

// Returns true if a tensor of this name is a scale of an fp8 KV cache (cache_scales.h).
bool IsCacheScale(std::string_view name);

// Checks that `weights` has each of these tensors, in the right shape and in a type that kernels
// support, and the scales of those of e4m3 (scaled_matrix.h). Returns InvalidArgument if `weights`
// has any other parameter, because such a parameter would belong to an unknown part of the model.
absl::Status CheckTensors(const DecoderTensors& tensors, const files::WeightMap& weights,
                          const TensorNames& names, std::string_view architecture);

}  // namespace quire::engine
