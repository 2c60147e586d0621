#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/special_tokens.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_models.h"
#include "text/tokenizer/tokenizer_json_steps.h"

namespace quire::text {
namespace {

using base::ToAbsl;
using nlohmann::json;

constexpr size_t kHolesPerToken = 64;

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status PlacePieces(const PieceList& pieces, const json& added_tokens,
                         std::vector<VocabularyEntry>& vocabulary) {
  const size_t count = pieces.size() + added_tokens.size();
  const auto place = [&](std::string_view piece, int32_t id) -> absl::StatusOr<VocabularyEntry*> {
    const auto index = static_cast<size_t>(id);
    if (index >= count * kHolesPerToken) {
      return Invalid(
          absl::StrCat("\"", ToAbsl(piece), "\": id ", id, " of a vocabulary of ", count));
    }
    if (index >= vocabulary.size()) vocabulary.resize(index + 1);
    return &vocabulary[index];
  };
  for (const auto& [piece, id] : pieces) {
    ASSIGN_OR_RETURN(VocabularyEntry * entry, place(piece, id));
    if (!entry->piece.empty()) {
      return Invalid(absl::StrCat("model: vocab: \"", entry->piece, "\" and \"", ToAbsl(piece),
                                  "\" are both token ", id));
    }
    entry->piece = piece;
  }
  for (const json& token : added_tokens) {
    ASSIGN_OR_RETURN(const std::string content, JsonString(token, "content", ""));
    ASSIGN_OR_RETURN(const int32_t id, ReadPieceId(JsonMember(token, "id"), content));
    ASSIGN_OR_RETURN(VocabularyEntry * entry, place(content, id));
    if (!entry->piece.empty() && entry->piece != content) {
      return Invalid(absl::StrCat("added_tokens: \"", content, "\" has id ", id, ", which is \"",
                                  entry->piece, "\""));
    }
    entry->piece = content;
    entry->bytes = content;
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const json& added_tokens, TokenizerParts& parts) {
  for (const json& token : added_tokens) {
    ASSIGN_OR_RETURN(AddedToken added, ReadAddedToken(token));
    parts.vocabulary[static_cast<size_t>(added.id)].special = added.special;
    if (!added.normalized) {
      parts.added_tokens.Add(std::move(added));
      continue;
    }
    // This token is matched in the normalized text, so its content is normalized too. It is decoded
    // by that spelling: behind a Prepend, the token has taken the space before it.
    ASSIGN_OR_RETURN(const std::optional<AlignedText> normal,
                     parts.normalizer.Apply({.text = added.content}));
    if (normal) {
      added.content = normal->text;
      parts.vocabulary[static_cast<size_t>(added.id)].bytes = normal->text;
    }
    parts.normalized_added_tokens.Add(std::move(added));
  }
  return absl::OkStatus();
}

// Fills in the bytes of each token. An added token already has its text as bytes. In the bytes of
// added tokens, space markers become spaces if the decoder requires it.
void FillBytes(const PieceList& pieces, const DecoderTraits& decoder,
               std::vector<VocabularyEntry>& vocabulary) {
  if (decoder.spaces_for_markers) {
    for (VocabularyEntry& entry : vocabulary) entry.bytes = SpacesForMarkers(entry.bytes);
  }
  for (const auto& [piece, id] : pieces) {
    VocabularyEntry& entry = vocabulary[static_cast<size_t>(id)];
    if (!entry.bytes.empty()) continue;
    if (decoder.byte_level) {
      std::optional<std::string> bytes = BytesOfByteLevelPiece(piece);
      entry.bytes = bytes ? *std::move(bytes) : std::string(piece);
      continue;
    }
    const std::optional<uint8_t> byte = ByteOfPiece(piece);
    if (byte && decoder.byte_fallback) {
      entry.bytes.assign(1, static_cast<char>(*byte));
    } else {
      entry.bytes = decoder.spaces_for_markers ? SpacesForMarkers(piece) : std::string(piece);
    }
  }
}

int32_t IdOfText(const TokenizerParts& parts, std::string_view text) {
  if (text.empty()) return -1;
  const auto it = std::find_if(parts.vocabulary.begin(), parts.vocabulary.end(),
                               [&](const VocabularyEntry& entry) { return entry.piece == text; });
  return it == parts.vocabulary.end() ? -1 : static_cast<int32_t>(it - parts.vocabulary.begin());
}

// Reads one id or a list of ids. Ids outside the vocabulary are left out.
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

void ReadEnds(const HfTokenizerFiles& files, TokenizerParts& parts) {
  const size_t size = parts.vocabulary.size();
  const json& config = files.tokenizer_config;
  const int32_t eos = IdOfText(parts, SpecialTokenText(config, "eos_token"));
  parts.bos_id = IdOfText(parts, SpecialTokenText(config, "bos_token"));
  if (eos >= 0) parts.end_ids.push_back(eos);
  for (const json* file : {&files.generation_config, &files.config}) {
    for (const int32_t id : ReadIds(JsonMember(*file, "eos_token_id"), size))
      parts.end_ids.push_back(id);
    const std::vector<int32_t> bos = ReadIds(JsonMember(*file, "bos_token_id"), size);
    if (parts.bos_id < 0 && !bos.empty()) parts.bos_id = bos[0];
  }
}

// Two classes of transformers do not take the post-processor. add_bos_token and add_eos_token mean
// nothing in any class, since there is a tokenizer.json.
void FollowClass(const json& tokenizer_config, TokenizerParts& parts) {
  const json& value = JsonMember(tokenizer_config, "tokenizer_class");
  if (!value.is_string()) return;
  const auto& name = value.get_ref<const std::string&>();  // may end with Fast
  if (name.starts_with("GPTNeoXTokenizer")) parts.frame = {};
  if (name.starts_with("CodeLlamaTokenizer") && parts.bos_id >= 0) {
    parts.frame = {.prefix_ids = {parts.bos_id}};
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const json& root, const HfTokenizerFiles& files) {
  const json& model = JsonMember(root, "model");
  ASSIGN_OR_RETURN(const std::string type, JsonString(model, "type", "BPE"));
  if (type != "BPE" && type != "Unigram") {
    return Invalid(absl::StrCat("model: ", type, " is not supported; supported are BPE, Unigram"));
  }
  json added_tokens = JsonMember(root, "added_tokens");
  if (added_tokens.is_null()) added_tokens = json::array();
  if (!added_tokens.is_array()) return Invalid("added_tokens: want an array");

  TokenizerParts parts;
  ASSIGN_OR_RETURN(const PieceList pieces,
                   type == "BPE" ? ReadBpePieces(model) : ReadUnigramPieces(model));
  RETURN_IF_ERROR(AddConfiguredTokens(files.tokenizer_config, pieces, added_tokens));
  RETURN_IF_ERROR(PlacePieces(pieces, added_tokens, parts.vocabulary));
  RETURN_IF_ERROR(ReadNormalizer(JsonMember(root, "normalizer"), parts.normalizer));
  ASSIGN_OR_RETURN(const PreTokenizerTraits pre,
                   ReadPreTokenizer(JsonMember(root, "pre_tokenizer"), parts.pre_tokenizer));
  ASSIGN_OR_RETURN(const DecoderTraits decoder, ReadDecoder(JsonMember(root, "decoder")));
  if (pre.byte_level != decoder.byte_level) {
    return Invalid("want ByteLevel both as pre_tokenizer and as decoder, or as neither");
  }
  RETURN_IF_ERROR(ReadAddedTokens(added_tokens, parts));
  const JsonModelContext context{
      .pieces = pieces, .vocabulary = parts.vocabulary, .byte_level = pre.byte_level};
  ASSIGN_OR_RETURN(parts.model, type == "BPE" ? ReadBpeModel(model, context, parts.pre_tokenizer)
                                              : ReadUnigramModel(model, context));
  FillBytes(pieces, decoder, parts.vocabulary);
  parts.strips_leading_space = decoder.strips_leading_space;
  RETURN_IF_ERROR(ReadPostProcessor(JsonMember(root, "post_processor"), parts));
  ReadEnds(files, parts);
  FollowClass(files.tokenizer_config, parts);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<int32_t> ReadPieceId(const json& value, std::string_view piece) {
  if (const std::optional<int32_t> id = JsonId(value, kMaxJsonTokens)) return *id;
  return Invalid(absl::StrCat("\"", ToAbsl(piece), "\": want an id below ", kMaxJsonTokens,
                              ", got ", value.dump(-1, ' ', true, json::error_handler_t::replace)));
}

absl::StatusOr<AddedToken> ReadAddedToken(const json& token) {
  AddedToken added;
  ASSIGN_OR_RETURN(added.content, JsonString(token, "content", ""));
  ASSIGN_OR_RETURN(added.id, ReadPieceId(JsonMember(token, "id"), added.content));
  ASSIGN_OR_RETURN(added.special, JsonBool(token, "special", false));
  ASSIGN_OR_RETURN(added.normalized, JsonBool(token, "normalized", !added.special));
  ASSIGN_OR_RETURN(added.single_word, JsonBool(token, "single_word", false));
  ASSIGN_OR_RETURN(added.strip_left, JsonBool(token, "lstrip", false));
  ASSIGN_OR_RETURN(added.strip_right, JsonBool(token, "rstrip", false));
  return added;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const HfTokenizerFiles& files) {
  ASSIGN_OR_RETURN(const json root, base::ParseJson(files.tokenizer_json, "tokenizer.json"));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(root, files);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat("tokenizer.json: ", tokenizer.status().message()));
}

}  // namespace quire::text
