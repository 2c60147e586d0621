#pragma once

// The model of a tokenizer.json: BPE (bpe_json.cc) or Unigram (unigram_json.cc).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/word_model.h"

namespace quire::text {

// Ids may have holes, but not so many that a small file makes us allocate gigabytes.
inline constexpr size_t kMaxJsonTokens = size_t{1} << 24;

// The model's tokens and their ids; the texts are views into the JSON.
using PieceList = std::vector<std::pair<std::string_view, int32_t>>;

// InvalidArgument when `value` is not an id: "\"piece\": want an id below ..., got ...".
absl::StatusOr<int32_t> ReadPieceId(const nlohmann::json& value, std::string_view piece);

// Reads an element of added_tokens; its content is unchanged.
absl::StatusOr<AddedToken> ReadAddedToken(const nlohmann::json& token);

// Reads an element of a BPE model's merges, "left right" or ["left", "right"]; views into the JSON.
absl::StatusOr<std::pair<std::string_view, std::string_view>> ReadBpeMerge(
    const nlohmann::json& merge);

absl::StatusOr<PieceList> ReadBpePieces(const nlohmann::json& model);
absl::StatusOr<PieceList> ReadUnigramPieces(const nlohmann::json& model);

// The inputs of a model besides its JSON. An entry of `vocabulary` that has bytes already is an
// added token; the bytes are its own text.
struct JsonModelContext {
  const PieceList& pieces;
  const std::vector<VocabularyEntry>& vocabulary;
  bool byte_level = false;
};

// Adds a split to `pre_tokenizer` if that shortens words without changing a token.
absl::StatusOr<std::unique_ptr<WordModel>> ReadBpeModel(const nlohmann::json& model,
                                                        const JsonModelContext& context,
                                                        PreTokenizer& pre_tokenizer);
absl::StatusOr<std::unique_ptr<WordModel>> ReadUnigramModel(const nlohmann::json& model,
                                                            const JsonModelContext& context);

}  // namespace quire::text
