#pragma once

// Reads quantization_config in the config.json of Hugging Face transformers.

#include "absl/status/status.h"

#include "engine/model/hf_fields.h"

namespace quire::engine {

// Accepts a config without quantization_config, and one of weights in e4m3 by quant_method "fp8"
// (DeepSeek, Qwen), "compressed-tensors" or "modelopt". Returns InvalidArgument, naming the key,
// for any other method, and for any key or value that could change what a weight is.
//
// Lists of modules are not read, because the file says which tensors are e4m3. Nor is what the
// config says about activations and the KV cache: they keep the precision that they have with
// other weights, so the answers are closer to those of the unquantised model. The experiment
// fp8_products rounds activations (kernels/backend_registry.h). The scales of an fp8 KV cache are
// tensors (cache_scales.h).
absl::Status CheckHfQuantization(const HfFields& fields);

}  // namespace quire::engine
