#pragma once

// All architectures share one decoder. An Architecture holds the rest: the readers of its metadata
// and the names of its tensors.

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "engine/model/gguf_fields.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/hf_fields.h"
#include "engine/model/model_draft.h"
#include "engine/model/tensor_names.h"

namespace quire::engine {

struct Architecture {
  std::string_view name;                         // ModelConfig::architecture
  std::span<const std::string_view> hf_classes;  // the values of "architectures" in config.json
  // Fills in all members of the draft but architecture, name and weight_type. Returns
  // InvalidArgument for unsupported features.
  absl::Status (*read_hf)(const HfFields& fields, std::string_view hf_class,
                          ModelDraft& draft) = nullptr;
  // Returns the tensor names of a Hugging Face directory. `layer` is the first layer of the model.
  TensorNames (*hf_names)(const LayerSpec& layer) = nullptr;
  std::string_view gguf_name = name;  // the value of "general.architecture" in GGUF files
  // The order in which llama.cpp's converter stores the rotary rows of each head.
  kernels::RopeLayout gguf_rope_layout = kernels::RopeLayout::kHalfSplit;
  // Does what read_hf does, with the metadata of a GGUF file. Null: the architecture is not read
  // from GGUF. Sizes and ropes[0] have been read before. Biases, a norm of queries and keys, and a
  // tied head are found later from the tensors.
  absl::Status (*read_gguf)(GgufFields& fields, ModelDraft& draft) = nullptr;
  TensorNames (*gguf_names)(const LayerSpec& layer) = nullptr;
  // Writes the metadata other than sizes, norms and ropes[0]. Null: no GGUF files are written.
  void (*write_gguf)(const ModelConfig& config, GgufKeys& keys) = nullptr;
};

extern const Architecture kBaichuan, kBloom, kFalcon, kGemma2, kGemma3, kGemma3Images, kGpt2,
    kGptNeoX, kGptOss, kLlama, kLlama4, kLlama4Images, kMimoV2Flash, kMixtral, kMpt, kOpenElm,
    kPhi3, kPhi3Small, kQwen2, kQwen3, kQwen3Moe, kRefact, kSmolLm3;

std::span<const Architecture* const> Architectures();

// FindArchitecture returns null if no architecture has the name. FindArchitectureOfHfClass returns
// null if no architecture reads this class of Hugging Face's transformers library.
const Architecture* FindArchitecture(std::string_view name);
const Architecture* FindArchitectureOfHfClass(std::string_view hf_class);

}  // namespace quire::engine
