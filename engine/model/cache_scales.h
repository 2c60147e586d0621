#pragma once

// Reads the scales of an fp8 KV cache, which a checkpoint has for each layer.
//
// A key is the number in the cache times the scale of K, and a value the number times that of V
// (kernels::CacheScales), as in vLLM, compressed-tensors and ModelOpt. A Hugging Face directory has
// a scale in a tensor of one element. With ATTENTION for the name of a layer's attention, such as
// model.layers.0.self_attn, the tensor is
//   ATTENTION.k_scale                 llm-compressor
//   ATTENTION.attn.k_scale            vLLM
//   ATTENTION.k_proj.k_scale          ModelOpt; also after the name of a fused projection
//   ATTENTION.k_proj.output_scale     earlier versions of compressed-tensors
// with v for V, or ATTENTION.kv_scale for both. A GGUF file that quire-convert has written has the
// scales of all layers in its metadata, and ReadModelConfig reads them.

#include "absl/status/status.h"

#include "engine/model/model_config.h"
#include "files/model_files.h"

namespace quire::engine {

// Sets AttentionSpec::cache_scales of each layer for which a Hugging Face directory has scales.
// Leaves those of a GGUF file as they are. `config` is the result of ReadModelConfig. Returns
// InvalidArgument, naming file and tensor, if a scale is not one number in the range of
// kernels::CacheScales, if a layer has only one scale or two of the same, or if the model has no
// place for a tensor with the name of a scale.
absl::Status ReadCacheScales(const files::OpenedModel& model, ModelConfig& config);

}  // namespace quire::engine
