#pragma once

// Reads the stages of a tokenizer.json other than the model. Each function takes the JSON of one
// stage, which may be null.
// An error names the unsupported part: "pre_tokenizer: BertPreTokenizer is not supported; ...".

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/pipeline_tokenizer.h"

namespace quire::text {

absl::Status ReadNormalizer(const nlohmann::json& normalizer, Normalizer& out);

struct PreTokenizerTraits {
  bool byte_level = false;
};
absl::StatusOr<PreTokenizerTraits> ReadPreTokenizer(const nlohmann::json& pre_tokenizer,
                                                    PreTokenizer& out);

struct DecoderTraits {
  bool byte_level = false;
  bool byte_fallback = false;
  bool spaces_for_markers = false;
  bool strips_leading_space = false;
};
absl::StatusOr<DecoderTraits> ReadDecoder(const nlohmann::json& decoder);

// Fills parts.frame.
absl::Status ReadPostProcessor(const nlohmann::json& post_processor, TokenizerParts& parts);

}  // namespace quire::text
