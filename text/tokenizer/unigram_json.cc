#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_models.h"
#include "text/tokenizer/unigram_model.h"

namespace quire::text {
namespace {

using nlohmann::json;

absl::Status InvalidUnigram(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("model: ", what));
}

}  // namespace

absl::StatusOr<PieceList> ReadUnigramPieces(const json& model) {
  const json& vocab = JsonMember(model, "vocab");
  if (!vocab.is_array() || vocab.empty() || vocab.size() > kMaxJsonTokens) {
    return InvalidUnigram(
        absl::StrCat("vocab: want an array of 1 to ", kMaxJsonTokens, " [token, score]"));
  }
  PieceList pieces;
  pieces.reserve(vocab.size());
  for (const json& piece : vocab) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      return InvalidUnigram(
          absl::StrCat("vocab: want [token, score] at ", pieces.size(), ", got ",
                       piece.dump(-1, ' ', true, json::error_handler_t::replace)));
    }
    pieces.emplace_back(piece[0].get_ref<const std::string&>(),
                        static_cast<int32_t>(pieces.size()));
  }
  return pieces;
}

absl::StatusOr<std::unique_ptr<WordModel>> ReadUnigramModel(const json& model,
                                                            const JsonModelContext& context) {
  if (context.byte_level) return InvalidUnigram("Unigram over ByteLevel is not supported");
  UnigramModelConfig config;
  ASSIGN_OR_RETURN(config.byte_fallback, JsonBool(model, "byte_fallback", false));
  const json& unknown = JsonMember(model, "unk_id");
  if (!unknown.is_null()) {
    const std::optional<int32_t> id = JsonId(unknown, context.pieces.size());
    if (!id) return InvalidUnigram("unk_id: want an id of the vocabulary");
    config.unknown_id = *id;
  }
  std::vector<UnigramModel::Piece> pieces;
  pieces.reserve(context.pieces.size());
  for (const json& piece : JsonMember(model, "vocab")) {
    const auto score = piece[1].get<double>();
    if (!std::isfinite(score)) {
      return InvalidUnigram(absl::StrCat("vocab: want a finite score at ", pieces.size()));
    }
    pieces.push_back({context.pieces[pieces.size()].first, score});
  }
  return std::make_unique<UnigramModel>(config, pieces);
}

}  // namespace quire::text
