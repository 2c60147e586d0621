// Baichuan (arXiv:2309.10305): a Llama with one fused projection. The 13B models have ALiBi, and
// the 7B models have rotary positions. Models of the second generation are recognised by the size
// of their vocabulary; the rows of their head have unit length.

#include <array>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 2> kBaichuanClasses = {"BaichuanForCausalLM",
                                                              "BaiChuanForCausalLM"};
constexpr int64_t kVocabularyOfTheSecond = 125696;

absl::Status ReadBaichuan(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadLlamaLike(fields, {.max_position_embeddings = 4096}, draft));
  // The configs of models with ALiBi have model_max_length in place of max_position_embeddings.
  if (fields.Find("max_position_embeddings") == nullptr) {
    draft.alibi_bias_max = 8.0;
    RETURN_IF_ERROR(fields.Int("model_max_length", 4096, draft.max_position_embeddings));
  }
  draft.unit_head_rows = draft.vocab_size == kVocabularyOfTheSecond;
  return absl::OkStatus();
}

TensorNames BaichuanNames(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.qkv = "self_attn.W_pack";
  return names;
}

// Tells 7B from 13B by the number of layers, as llama.cpp does. In a second-generation file, the
// head's rows must have unit length.
absl::Status ReadBaichuanGguf(GgufFields& fields, ModelDraft& draft) {
  constexpr int64_t kLayersOf7B = 32, kLayersOf13B = 40;
  if (draft.num_hidden_layers == kLayersOf7B) return absl::OkStatus();
  draft.alibi_bias_max = 8.0;
  if (draft.num_hidden_layers == kLayersOf13B) return absl::OkStatus();
  return fields.Error("block_count",
                      absl::StrFormat("want %d, with rotary positions, or %d, with ALiBi, got %d",
                                      kLayersOf7B, kLayersOf13B, draft.num_hidden_layers));
}

}  // namespace

const Architecture kBaichuan = {
    .name = "baichuan",
    .hf_classes = kBaichuanClasses,
    .read_hf = ReadBaichuan,
    .hf_names = BaichuanNames,
    .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
    .read_gguf = ReadBaichuanGguf,
    .gguf_names = [](const LayerSpec&) { return kGgufNames; },
    .write_gguf = [](const ModelConfig&, GgufKeys&) {},
};

}  // namespace quire::engine
