#include <optional>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_models.h"

namespace quire::text {
namespace {

using base::ToAbsl;
using nlohmann::json;

using PieceIds = std::unordered_map<std::string_view, int32_t>;

absl::Status InvalidBpe(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("model: ", what));
}

// Adds the merges to `model`. Returns true if JoinsAcrossSpace is false for every merge.
absl::StatusOr<bool> ReadMerges(const json& merges, const PieceIds& ids, BpeModel& model) {
  if (!merges.is_array()) return InvalidBpe("merges: want an array");
  model.ReserveMerges(merges.size());
  bool within_words = true;
  std::string merged;
  uint32_t rank = 0;
  for (const json& merge : merges) {
    ASSIGN_OR_RETURN(const auto parts, ReadBpeMerge(merge));
    merged.assign(parts.first).append(parts.second);
    int32_t found[3] = {-1, -1, -1};
    const std::string_view pieces[3] = {parts.first, parts.second, merged};
    for (size_t k = 0; k < 3; ++k) {
      const auto it = ids.find(pieces[k]);
      if (it == ids.end()) {
        return InvalidBpe(absl::StrCat("merges: merge ", rank, " needs \"", ToAbsl(pieces[k]),
                                       "\", which is no token"));
      }
      found[k] = it->second;
    }
    model.AddMerge(found[0], found[1], rank++, found[2]);
    if (JoinsAcrossSpace(parts.first, parts.second)) within_words = false;
  }
  return within_words;
}

absl::StatusOr<BpeModelConfig> ReadConfig(const json& model, bool byte_level, const PieceIds& ids) {
  BpeModelConfig config;
  config.unit = byte_level ? BpeUnit::kByte : BpeUnit::kCharacter;
  config.drop_unknown_first = true;
  ASSIGN_OR_RETURN(config.fuse_unknown, JsonBool(model, "fuse_unk", false));
  ASSIGN_OR_RETURN(config.byte_fallback, JsonBool(model, "byte_fallback", false));
  ASSIGN_OR_RETURN(config.ignore_merges, JsonBool(model, "ignore_merges", false));
  const json& dropout = JsonMember(model, "dropout");
  if (!dropout.is_null() && dropout != 0) return InvalidBpe("dropout is not supported");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::string text, JsonString(model, affix, ""));
    if (!text.empty()) return InvalidBpe(absl::StrCat(affix, " is not supported"));
  }
  ASSIGN_OR_RETURN(const std::string unknown, JsonString(model, "unk_token", ""));
  if (unknown.empty()) return config;
  const auto it = ids.find(unknown);
  if (it == ids.end()) return InvalidBpe(absl::StrCat("unk_token: \"", unknown, "\" is no token"));
  config.unknown_id = it->second;
  return config;
}

void AddTokens(const JsonModelContext& context, BpeModel& model) {
  for (const auto& [piece, id] : context.pieces) {
    const VocabularyEntry& entry = context.vocabulary[static_cast<size_t>(id)];
    if (context.byte_level) {
      const bool is_added = !entry.bytes.empty();
      const std::optional<std::string> bytes = BytesOfByteLevelPiece(piece);
      if (bytes && !is_added) model.AddToken(*bytes, id);
      continue;
    }
    const std::optional<uint8_t> byte = ByteOfPiece(piece);
    if (byte && model.config().byte_fallback) model.SetByteToken(*byte, id);
    if (!entry.special) model.AddToken(piece, id);
  }
}

}  // namespace

absl::StatusOr<std::pair<std::string_view, std::string_view>> ReadBpeMerge(const json& merge) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      const std::string_view view = text;
      return std::pair(view.substr(0, space), view.substr(space + 1));
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return std::pair(std::string_view(merge[0].get_ref<const std::string&>()),
                     std::string_view(merge[1].get_ref<const std::string&>()));
  }
  return InvalidBpe(absl::StrCat("merges: want \"left right\" or [left, right], got ",
                                 merge.dump(-1, ' ', true, json::error_handler_t::replace)));
}

absl::StatusOr<PieceList> ReadBpePieces(const json& model) {
  const json& vocab = JsonMember(model, "vocab");
  if (!vocab.is_object() || vocab.empty()) return InvalidBpe("vocab: want an object, not empty");
  PieceList pieces;
  pieces.reserve(vocab.size());
  for (const auto& [piece, value] : vocab.get_ref<const json::object_t&>()) {
    ASSIGN_OR_RETURN(const int32_t id, ReadPieceId(value, piece));
    pieces.emplace_back(piece, id);
  }
  return pieces;
}

absl::StatusOr<std::unique_ptr<WordModel>> ReadBpeModel(const json& model,
                                                        const JsonModelContext& context,
                                                        PreTokenizer& pre_tokenizer) {
  const PieceIds ids(context.pieces.begin(), context.pieces.end());
  ASSIGN_OR_RETURN(const BpeModelConfig config, ReadConfig(model, context.byte_level, ids));
  auto bpe = std::make_unique<BpeModel>(config);
  AddTokens(context, *bpe);
  ASSIGN_OR_RETURN(const bool within_words, ReadMerges(JsonMember(model, "merges"), ids, *bpe));
  if (!context.byte_level && within_words && bpe->CharacterId(0x2581) >= 0) {
    SplitBeforeSpaces(pre_tokenizer);
  }
  return bpe;
}

}  // namespace quire::text
