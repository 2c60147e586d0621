#pragma once

// Reads the model of a tokenizer.json: BPE (bpe_json.cc) or Unigram (unigram_json.cc).

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

// Ids must be below this limit. Not every id needs a token, so without a limit a small file with
// one large id could cause an allocation of gigabytes.
inline constexpr size_t kMaxJsonTokens = size_t{1} << 24;

// The texts and ids of the tokens of a model. The texts are views into the JSON.
using PieceList = std::vector<std::pair<std::string_view, int32_t>>;

// Reads the id of `piece`. Returns InvalidArgument when `value` is not an id: "\"piece\": want an
// id below ..., got ...".
absl::StatusOr<int32_t> ReadPieceId(const nlohmann::json& value, std::string_view piece);

// Reads an element of added_tokens. The content is not normalized.
absl::StatusOr<AddedToken> ReadAddedToken(const nlohmann::json& token);

// Reads an element of a BPE model's merges: "left right" or ["left", "right"]. Returns views into
// the JSON.
absl::StatusOr<std::pair<std::string_view, std::string_view>> ReadBpeMerge(
    const nlohmann::json& merge);

absl::StatusOr<PieceList> ReadBpePieces(const nlohmann::json& model);
absl::StatusOr<PieceList> ReadUnigramPieces(const nlohmann::json& model);

// The inputs of a model besides its JSON. An entry of `vocabulary` that already has bytes is an
// added token; the bytes are the text of the token.
struct JsonModelContext {
  const PieceList& pieces;
  const std::vector<VocabularyEntry>& vocabulary;
  bool byte_level = false;
};

// Reads a BPE model. Adds a split to `pre_tokenizer` if the split shortens words without changing a
// token.
absl::StatusOr<std::unique_ptr<WordModel>> ReadBpeModel(const nlohmann::json& model,
                                                        const JsonModelContext& context,
                                                        PreTokenizer& pre_tokenizer);
absl::StatusOr<std::unique_ptr<WordModel>> ReadUnigramModel(const nlohmann::json& model,
                                                            const JsonModelContext& context);

}  // namespace quire::text
