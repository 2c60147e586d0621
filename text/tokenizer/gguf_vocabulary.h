#pragma once

// Creates the tokenizer that the metadata of a GGUF file describes. Each field has the meaning that
// it has in llama.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "text/tokenizer/tokenizer.h"

namespace quire::text {

// The values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The fields tokenizer.ggml.* of a file, filled in by the reader of the file. The views must stay
// valid until the tokenizer is created.
struct GgufVocabulary {
  std::string_view model;                // "gpt2": byte-level BPE; "llama": SentencePiece-BPE
  std::string_view pre;                  // gpt2: names the pre-tokenizer; empty: "default"
  std::string_view model_name;           // general.name; recognises Phi-3, whose tokens strip
                                         // the white space after them
  std::vector<std::string_view> tokens;  // by id
  std::vector<float> scores;             // llama: the score of each token
  std::vector<int32_t> token_types;      // empty: all normal
  std::vector<std::string_view> merges;  // gpt2: "left right", best first
  std::optional<int64_t> bos_id;         // ids outside the vocabulary count as absent
  std::optional<int64_t> eos_id;
  std::optional<int64_t> eot_id;
  std::optional<int64_t> eom_id;
  std::optional<int64_t> unknown_id;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

// Returns true if a control token with the text `piece` ends a turn even if no key of the file
// names that token, as in llama.cpp.
bool EndsTurnByText(std::string_view piece);

// Creates the tokenizer of `vocabulary`. Returns InvalidArgument if the vocabulary contradicts
// itself, or if the model or pre-tokenizer is unknown. For an unknown model or pre-tokenizer, the
// error names the known ones.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufVocabulary& vocabulary);

}  // namespace quire::text
