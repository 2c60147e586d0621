#pragma once

// A decoder's parameters on a backend, as the forward pass reads them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/layers/mixture.h"
#include "engine/model/layers/parameter_loader.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "files/weight_map.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/prepared_weight.h"

namespace quire::engine {

using Weight = std::unique_ptr<kernels::PreparedWeight>;

struct NormParameters {
  Parameter weight, bias;  // the bias is an empty view if there is none
};

struct Layer {
  LayerSpec spec;
  NormParameters attention_norm, mlp_norm;
  NormParameters attention_post_norm, mlp_post_norm;  // empty views without post norms
  Weight qkv, o, up, down;                            // in a gated MLP, `up` begins with the gate
  Parameter qkv_bias, o_bias, up_bias, down_bias;     // empty views without biases
  Parameter q_norm, k_norm;                           // empty views without such norms
  Parameter sinks;                                    // an empty view without sinks
  // Empty without experts. With experts, `up` and `down` above are the layer's shared network, or
  // null if the layer has no shared network.
  Mixture mixture;
};

struct DecoderWeights {
  Weight embedding, head;                      // head is null when tied to the embedding
  Weight position_embedding;                   // null without learned positions
  std::vector<std::vector<std::byte>> memory;  // rewritten matrices, into which weights point
  NormParameters embedding_norm, final_norm;
  std::vector<Parameter> rope_tables;  // one for each of ModelConfig::ropes
  Parameter alibi_slopes;              // an empty view without ALiBi
  // The factors of queries by position, f32 [max_model_len], for each QueryGrowth of the layers.
  // The view is empty if the queries do not grow.
  std::map<QueryGrowth, Parameter> query_scales;
  std::vector<Layer> layers;
  int64_t num_parameters = 0;
  int64_t bytes = 0;  // the result of Model::weight_bytes
};

// Loads all parameters of the rank's part of the model that `config` describes, for
// limits.max_model_len positions. `part` is the result of Shard (shard.h). Returns NotFound or
// InvalidArgument, naming the tensor, if a tensor is missing, has another shape, or would be left
// out.
absl::StatusOr<DecoderWeights> LoadDecoderWeights(
    const ModelConfig& config, const ModelConfig& part, const kernels::Rank& rank,
    const files::WeightMap& weights, const TensorNames& names, kernels::Backend& backend,
    const StepLimits& limits);

}  // namespace quire::engine
