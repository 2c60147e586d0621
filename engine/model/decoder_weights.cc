#include "engine/model/decoder_weights.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "engine/model/decoder_tensors.h"
#include "engine/model/query_scales.h"
#include "engine/model/rope_table.h"
#include "engine/model/shard.h"
#include "kernels/alibi_slopes.h"
#include "kernels/quant/float16.h"

namespace quire::engine {
namespace {

absl::Status LoadNorm(ParameterLoader& loader, const StoredNorm& stored, NormParameters& norm) {
  ASSIGN_OR_RETURN(norm.weight, loader.Vector(stored.weight));
  ASSIGN_OR_RETURN(norm.bias, loader.Vector(stored.bias));
  return absl::OkStatus();
}

absl::StatusOr<Layer> LoadLayer(ParameterLoader& loader, const LayerTensors& stored) {
  Layer layer;
  RETURN_IF_ERROR(LoadNorm(loader, stored.attention_norm, layer.attention_norm));
  RETURN_IF_ERROR(LoadNorm(loader, stored.mlp_norm, layer.mlp_norm));
  RETURN_IF_ERROR(LoadNorm(loader, stored.attention_post_norm, layer.attention_post_norm));
  RETURN_IF_ERROR(LoadNorm(loader, stored.mlp_post_norm, layer.mlp_post_norm));
  ASSIGN_OR_RETURN(layer.qkv, loader.Matrix(stored.qkv));
  ASSIGN_OR_RETURN(layer.o, loader.Matrix(stored.o));
  ASSIGN_OR_RETURN(layer.qkv_bias, loader.Vector(stored.qkv_bias));
  ASSIGN_OR_RETURN(layer.o_bias, loader.Vector(stored.o_bias));
  ASSIGN_OR_RETURN(layer.sinks, loader.Vector(stored.sinks));
  ASSIGN_OR_RETURN(layer.up, loader.Matrix(stored.up));
  ASSIGN_OR_RETURN(layer.down, loader.Matrix(stored.down));
  ASSIGN_OR_RETURN(layer.up_bias, loader.Vector(stored.up_bias));
  ASSIGN_OR_RETURN(layer.down_bias, loader.Vector(stored.down_bias));
  ASSIGN_OR_RETURN(layer.mixture.router, loader.Matrix(stored.router));
  ASSIGN_OR_RETURN(layer.mixture.up, loader.MoeMatrix(stored.experts_up));
  ASSIGN_OR_RETURN(layer.mixture.down, loader.MoeMatrix(stored.experts_down));
  ASSIGN_OR_RETURN(layer.mixture.router_bias, loader.Vector(stored.router_bias));
  ASSIGN_OR_RETURN(layer.mixture.choice_bias, loader.Vector(stored.choice_bias));
  ASSIGN_OR_RETURN(layer.mixture.up_bias, loader.Vector(stored.experts_up_bias));
  ASSIGN_OR_RETURN(layer.mixture.down_bias, loader.Vector(stored.experts_down_bias));
  return layer;
}

absl::Status LoadPositions(ParameterLoader& loader, const ModelConfig& config,
                           const kernels::Rank& rank, const StepLimits& limits,
                           DecoderWeights& out) {
  const int64_t positions = limits.max_model_len;
  if (config.learned_positions) {
    if (positions <= config.max_position_embeddings) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len: want at most the ", config.max_position_embeddings,
                     " positions that the model has, got ", positions));
  }
  if (config.alibi_bias_max) {
    const AttentionSpec& attention = config.layers[0].attention;  // all layers are alike
    const auto heads = static_cast<int32_t>(attention.num_heads);
    std::vector<float> slopes = kernels::AlibiSlopes(heads, *config.alibi_bias_max);
    if (attention.alibi_is_rounded) {
      for (float& slope : slopes) slope = kernels::Bf16ToF32(kernels::F32ToBf16(slope));
    }
    const RowRange own = ShareOf(rank, heads);
    ASSIGN_OR_RETURN(out.alibi_slopes,
                     loader.Upload({slopes.begin() + own.begin, slopes.begin() + own.end}));
    return absl::OkStatus();
  }
  for (const RopeConfig& rope : config.ropes) {
    ASSIGN_OR_RETURN(Parameter table, loader.Upload(MakeRopeTable(rope, positions)));
    table.view = kernels::TensorView(table.buffer.data(), kernels::DType::kF32,
                                     {positions, rope.rope_dim / 2, 2});
    out.rope_tables.push_back(std::move(table));
  }
  return absl::OkStatus();
}

absl::Status LoadQueryScales(ParameterLoader& loader, const ModelConfig& config,
                             const StepLimits& limits, DecoderWeights& out) {
  for (const LayerSpec& layer : config.layers) {
    const QueryGrowth& growth = layer.attention.query_growth;
    Parameter& scales = out.query_scales[growth];
    if (growth.interval == 0 || !scales.view.empty()) continue;
    ASSIGN_OR_RETURN(scales, loader.Upload(MakeQueryScales(growth, limits.max_model_len)));
  }
  return absl::OkStatus();
}

// Gives heads that are normalised without weights a weight of 1 for each dimension.
absl::Status LoadQkNorms(ParameterLoader& loader, const LayerTensors& stored,
                         const AttentionSpec& spec, Layer& layer) {
  if (spec.qk_norm == QkNormScope::kHeadUnweighted) {
    const std::vector<float> ones(static_cast<size_t>(spec.key_dim), 1.0f);
    ASSIGN_OR_RETURN(layer.q_norm, loader.Upload(ones));
    ASSIGN_OR_RETURN(layer.k_norm, loader.Upload(ones));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(layer.q_norm, loader.Vector(stored.q_norm));
  ASSIGN_OR_RETURN(layer.k_norm, loader.Vector(stored.k_norm));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DecoderWeights> LoadDecoderWeights(
    const ModelConfig& config, const ModelConfig& part, const kernels::Rank& rank,
    const files::WeightMap& weights, const TensorNames& names, kernels::Backend& backend,
    const StepLimits& limits) {
  DecoderTensors stored = FindTensors(config, names, HasTensorIn(weights));
  RETURN_IF_ERROR(CheckTensors(stored, weights, names, config.architecture));
  ShardTensors(config, rank, stored);
  ParameterLoader loader(weights, backend);
  DecoderWeights out;
  ASSIGN_OR_RETURN(out.embedding, loader.Matrix(stored.embedding));
  RETURN_IF_ERROR(LoadNorm(loader, stored.embedding_norm, out.embedding_norm));
  ASSIGN_OR_RETURN(out.position_embedding, loader.Matrix(stored.position_embedding));
  ASSIGN_OR_RETURN(out.head, loader.Matrix(stored.head));
  RETURN_IF_ERROR(LoadNorm(loader, stored.final_norm, out.final_norm));
  for (const LayerTensors& layer : stored.layers) {
    ASSIGN_OR_RETURN(Layer loaded, LoadLayer(loader, layer));
    loaded.spec = part.layers[out.layers.size()];
    RETURN_IF_ERROR(LoadQkNorms(loader, layer, loaded.spec.attention, loaded));
    out.layers.push_back(std::move(loaded));
  }
  out.num_parameters = loader.num_parameters();
  out.memory = loader.TakeMemory();
  RETURN_IF_ERROR(LoadPositions(loader, config, rank, limits, out));
  RETURN_IF_ERROR(LoadQueryScales(loader, config, limits, out));
  out.bytes = loader.bytes();
  return out;
}

}  // namespace quire::engine
