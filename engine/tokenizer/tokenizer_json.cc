#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/tokenizer/tokenizer_json_steps.h"

namespace quire::engine {
namespace {

using base::ToAbsl;
using nlohmann::json;

// Ids may have holes, but not so many that a file of bytes asks for gigabytes.
constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kHolesPerToken = 64;

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<int32_t> ReadId(const json& value, std::string_view piece) {
  if (const std::optional<int32_t> id = JsonId(value, kMaxTokens)) return *id;
  return Invalid(absl::StrCat("\"", ToAbsl(piece), "\": want an id below ", kMaxTokens, ", got ",
                              value.dump(-1, ' ', true, json::error_handler_t::replace)));
}

// piece -> id of the model; views into the parsed JSON.
using PieceIds = std::unordered_map<std::string_view, int32_t>;

absl::StatusOr<PieceIds> ReadVocabulary(const json& vocab, const json& added_tokens,
                                        std::vector<VocabularyEntry>& vocabulary) {
  if (!vocab.is_object() || vocab.empty())
    return Invalid("model: vocab: want an object, not empty");
  const size_t count = vocab.size() + added_tokens.size();
  PieceIds ids;
  ids.reserve(vocab.size());
  const auto place = [&](std::string_view piece, const json& value) -> absl::StatusOr<int32_t> {
    ASSIGN_OR_RETURN(const int32_t id, ReadId(value, piece));
    const auto index = static_cast<size_t>(id);
    if (index >= count * kHolesPerToken) {
      return Invalid(
          absl::StrCat("\"", ToAbsl(piece), "\": id ", id, " of a vocabulary of ", count));
    }
    if (index >= vocabulary.size()) vocabulary.resize(index + 1);
    return id;
  };
  for (const auto& [piece, value] : vocab.items()) {
    ASSIGN_OR_RETURN(const int32_t id, place(piece, value));
    VocabularyEntry& entry = vocabulary[static_cast<size_t>(id)];
    if (!entry.piece.empty()) {
      return Invalid(absl::StrCat("model: vocab: \"", entry.piece, "\" and \"", piece,
                                  "\" are both token ", id));
    }
    entry.piece = piece;
  }
  for (const auto& [piece, value] : vocab.get_ref<const json::object_t&>()) {
    ids.emplace(piece, value.get<int32_t>());
  }
  for (const json& token : added_tokens) {
    ASSIGN_OR_RETURN(const std::string content, JsonString(token, "content", ""));
    ASSIGN_OR_RETURN(const int32_t id, place(content, JsonMember(token, "id")));
    VocabularyEntry& entry = vocabulary[static_cast<size_t>(id)];
    if (!entry.piece.empty() && entry.piece != content) {
      return Invalid(absl::StrCat("added_tokens: \"", content, "\" has id ", id, ", which is \"",
                                  entry.piece, "\""));
    }
    entry.piece = content;
    entry.bytes = content;
  }
  return ids;
}

absl::Status ReadAddedTokens(const json& added_tokens, BpeTokenizerParts& parts) {
  for (const json& token : added_tokens) {
    AddedToken added;
    ASSIGN_OR_RETURN(added.content, JsonString(token, "content", ""));
    ASSIGN_OR_RETURN(added.id, ReadId(JsonMember(token, "id"), added.content));
    ASSIGN_OR_RETURN(added.special, JsonBool(token, "special", false));
    ASSIGN_OR_RETURN(added.normalized, JsonBool(token, "normalized", !added.special));
    ASSIGN_OR_RETURN(added.single_word, JsonBool(token, "single_word", false));
    ASSIGN_OR_RETURN(added.strip_left, JsonBool(token, "lstrip", false));
    ASSIGN_OR_RETURN(added.strip_right, JsonBool(token, "rstrip", false));
    parts.vocabulary[static_cast<size_t>(added.id)].special = added.special;
    if (!added.normalized) {
      parts.added_tokens.Add(std::move(added));
      continue;
    }
    // It is looked for in the normalized text, so what is looked for is normalized too.
    if (const auto normal = parts.normalizer.Apply({.text = added.content}))
      added.content = normal->text;
    parts.normalized_added_tokens.Add(std::move(added));
  }
  return absl::OkStatus();
}

// "left right" or ["left", "right"].
absl::StatusOr<std::pair<std::string_view, std::string_view>> ReadMerge(const json& merge) {
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
  return Invalid(absl::StrCat("model: merges: want \"left right\" or [left, right], got ",
                              merge.dump(-1, ' ', true, json::error_handler_t::replace)));
}

// Returns whether no merge reaches across a space.
absl::StatusOr<bool> ReadMerges(const json& merges, const PieceIds& ids, BpeModel& model) {
  if (!merges.is_array()) return Invalid("model: merges: want an array");
  model.ReserveMerges(merges.size());
  bool within_words = true;
  std::string merged;
  uint32_t rank = 0;
  for (const json& merge : merges) {
    ASSIGN_OR_RETURN(const auto parts, ReadMerge(merge));
    merged.assign(parts.first).append(parts.second);
    int32_t found[3] = {-1, -1, -1};
    const std::string_view pieces[3] = {parts.first, parts.second, merged};
    for (size_t k = 0; k < 3; ++k) {
      const auto it = ids.find(pieces[k]);
      if (it == ids.end()) {
        return Invalid(absl::StrCat("model: merges: merge ", rank, " needs \"", ToAbsl(pieces[k]),
                                    "\", which is no token"));
      }
      found[k] = it->second;
    }
    model.AddMerge(found[0], found[1], rank++, found[2]);
    if (JoinsAcrossSpace(parts.first, parts.second)) within_words = false;
  }
  return within_words;
}

absl::StatusOr<BpeModelConfig> ReadModelConfig(const json& model, bool byte_level,
                                               const PieceIds& ids) {
  BpeModelConfig config;
  config.unit = byte_level ? BpeUnit::kByte : BpeUnit::kCharacter;
  config.drop_unknown_first = true;
  ASSIGN_OR_RETURN(config.fuse_unknown, JsonBool(model, "fuse_unk", false));
  ASSIGN_OR_RETURN(config.byte_fallback, JsonBool(model, "byte_fallback", false));
  ASSIGN_OR_RETURN(config.ignore_merges, JsonBool(model, "ignore_merges", false));
  const json& dropout = JsonMember(model, "dropout");
  if (!dropout.is_null() && dropout != 0) return Invalid("model: dropout is not supported");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::string text, JsonString(model, affix, ""));
    if (!text.empty()) return Invalid(absl::StrCat("model: ", affix, " is not supported"));
  }
  ASSIGN_OR_RETURN(const std::string unknown, JsonString(model, "unk_token", ""));
  if (unknown.empty()) return config;
  const auto it = ids.find(unknown);
  if (it == ids.end())
    return Invalid(absl::StrCat("model: unk_token: \"", unknown, "\" is no token"));
  config.unknown_id = it->second;
  return config;
}

// Fills what each token stands for, and how the model finds it.
void FillBytes(const PieceIds& ids, bool byte_level, const DecoderTraits& decoder,
               BpeTokenizerParts& parts) {
  for (const auto& [piece, id] : ids) {
    VocabularyEntry& entry = parts.vocabulary[static_cast<size_t>(id)];
    const bool is_added = !entry.bytes.empty();  // an added token stands for itself
    if (byte_level) {
      std::optional<std::string> bytes = BytesOfByteLevelPiece(piece);
      if (bytes && !is_added) parts.model.AddToken(*bytes, id);
      if (!is_added) entry.bytes = bytes ? *std::move(bytes) : std::string(piece);
      continue;
    }
    const std::optional<uint8_t> byte = ByteOfPiece(piece);
    if (byte && parts.model.config().byte_fallback) parts.model.SetByteToken(*byte, id);
    if (!entry.special) parts.model.AddToken(piece, id);
    if (is_added) continue;
    if (byte && decoder.byte_fallback) {
      entry.bytes.assign(1, static_cast<char>(*byte));
    } else {
      entry.bytes = decoder.spaces_for_markers ? SpacesForMarkers(piece) : std::string(piece);
    }
  }
}

int32_t IdOfText(const BpeTokenizerParts& parts, std::string_view text) {
  if (text.empty()) return -1;
  const auto it = std::find_if(parts.vocabulary.begin(), parts.vocabulary.end(),
                               [&](const VocabularyEntry& entry) { return entry.piece == text; });
  return it == parts.vocabulary.end() ? -1 : static_cast<int32_t>(it - parts.vocabulary.begin());
}

// One id or a list of them; what is outside the vocabulary is left out.
std::vector<int32_t> ReadIds(const json& value, size_t vocab_size) {
  std::vector<int32_t> ids;
  const auto add = [&](const json& value_of_one) {
    if (const std::optional<int32_t> id = JsonId(value_of_one, vocab_size)) ids.push_back(*id);
  };
  if (value.is_array()) {
    for (const json& id : value) add(id);
  } else {
    add(value);
  }
  return ids;
}

// transformers lets these classes' configuration overrule tokenizer.json's template.
bool ConfigRulesTemplate(const json& tokenizer_config) {
  const json& name = JsonMember(tokenizer_config, "tokenizer_class");
  if (!name.is_string()) return false;
  const auto& text = name.get_ref<const std::string&>();
  return text.starts_with("Llama") || text.starts_with("CodeLlama") || text.starts_with("Gemma");
}

absl::Status ReadEnds(const HfTokenizerFiles& files, BpeTokenizerParts& parts) {
  const size_t size = parts.vocabulary.size();
  const json& config = files.tokenizer_config;
  const int32_t eos = IdOfText(parts, SpecialTokenText(config, "eos_token"));
  parts.bos_id = IdOfText(parts, SpecialTokenText(config, "bos_token"));
  for (const int32_t id : {eos, parts.bos_id}) {
    if (id >= 0) parts.vocabulary[static_cast<size_t>(id)].special = true;
  }
  if (eos >= 0) parts.end_ids.push_back(eos);
  for (const json* file : {&files.generation_config, &files.config}) {
    for (const int32_t id : ReadIds(JsonMember(*file, "eos_token_id"), size))
      parts.end_ids.push_back(id);
    const std::vector<int32_t> bos = ReadIds(JsonMember(*file, "bos_token_id"), size);
    if (parts.bos_id < 0 && !bos.empty()) parts.bos_id = bos[0];
  }
  if (!ConfigRulesTemplate(config)) return absl::OkStatus();
  for (const auto& [key, id, ids] : {std::tuple("add_bos_token", parts.bos_id, &parts.prefix_ids),
                                     std::tuple("add_eos_token", eos, &parts.suffix_ids)}) {
    const json& value = JsonMember(config, key);
    if (!value.is_boolean()) continue;
    ids->clear();
    if (!value.get<bool>()) continue;
    if (id < 0)
      return Invalid(absl::StrCat("tokenizer_config.json: ", key, ": there is no such token"));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const json& root, const HfTokenizerFiles& files) {
  const json& model = JsonMember(root, "model");
  ASSIGN_OR_RETURN(const std::string type, JsonString(model, "type", "BPE"));
  if (type != "BPE")
    return Invalid(absl::StrCat("model: ", type, " is not supported; supported is BPE"));
  json added_tokens = JsonMember(root, "added_tokens");
  if (added_tokens.is_null()) added_tokens = json::array();
  if (!added_tokens.is_array()) return Invalid("added_tokens: want an array");

  BpeTokenizerParts parts;
  ASSIGN_OR_RETURN(const PieceIds ids,
                   ReadVocabulary(JsonMember(model, "vocab"), added_tokens, parts.vocabulary));
  RETURN_IF_ERROR(ReadNormalizer(JsonMember(root, "normalizer"), parts.normalizer));
  ASSIGN_OR_RETURN(const PreTokenizerTraits pre,
                   ReadPreTokenizer(JsonMember(root, "pre_tokenizer"), parts));
  ASSIGN_OR_RETURN(const DecoderTraits decoder, ReadDecoder(JsonMember(root, "decoder")));
  if (pre.byte_level != decoder.byte_level) {
    return Invalid("want ByteLevel both as pre_tokenizer and as decoder, or as neither");
  }
  ASSIGN_OR_RETURN(const BpeModelConfig config, ReadModelConfig(model, pre.byte_level, ids));
  parts.model = BpeModel(config);
  RETURN_IF_ERROR(ReadAddedTokens(added_tokens, parts));
  FillBytes(ids, pre.byte_level, decoder, parts);
  ASSIGN_OR_RETURN(const bool within_words,
                   ReadMerges(JsonMember(model, "merges"), ids, parts.model));
  if (!pre.byte_level && within_words && parts.model.CharacterId(0x2581) >= 0) {
    SplitBeforeSpaces(parts.pre_tokenizer);
  }
  parts.strips_leading_space = decoder.strips_leading_space;
  RETURN_IF_ERROR(ReadPostProcessor(JsonMember(root, "post_processor"), parts));
  RETURN_IF_ERROR(ReadEnds(files, parts));
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace

std::string SpecialTokenText(const json& tokenizer_config, std::string_view key) {
  const json& token = JsonMember(tokenizer_config, std::string(key).c_str());
  const json& text = token.is_object() ? JsonMember(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : std::string();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const HfTokenizerFiles& files) {
  ASSIGN_OR_RETURN(const json root, base::ParseJson(files.tokenizer_json, "tokenizer.json"));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(root, files);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat("tokenizer.json: ", tokenizer.status().message()));
}

}  // namespace quire::engine
