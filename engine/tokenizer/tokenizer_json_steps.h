#pragma once

// The stages of a tokenizer.json around its model. Each takes the stage's JSON, which may be null,
// and says what it lacks: "pre_tokenizer: BertPreTokenizer is not supported; ...".

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "engine/tokenizer/bpe_tokenizer.h"

namespace quire::engine {

absl::Status ReadNormalizer(const nlohmann::json& normalizer, Normalizer& out);

struct PreTokenizerTraits {
  bool byte_level = false;
};
// Fills parts.pre_tokenizer and parts.part_edits.
absl::StatusOr<PreTokenizerTraits> ReadPreTokenizer(const nlohmann::json& pre_tokenizer,
                                                    BpeTokenizerParts& parts);

struct DecoderTraits {
  bool byte_level = false;
  bool byte_fallback = false;
  bool spaces_for_markers = false;
  bool strips_leading_space = false;
};
absl::StatusOr<DecoderTraits> ReadDecoder(const nlohmann::json& decoder);

// Fills parts.prefix_ids and parts.suffix_ids.
absl::Status ReadPostProcessor(const nlohmann::json& post_processor, BpeTokenizerParts& parts);

// Members of an object, with the type that is wanted. A member that is absent or null gives the
// fallback; one of another type is InvalidArgument.
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const char* key, bool fallback);
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const char* key,
                                       std::string fallback);
// Nothing unless `value` is a whole number in [0, limit).
std::optional<int32_t> JsonId(const nlohmann::json& value, size_t limit);
// Null JSON when it is absent or `object` is none.
const nlohmann::json& JsonMember(const nlohmann::json& object, const char* key);

}  // namespace quire::engine
