#include "convert/hf_vocabulary.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/special_tokens.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_models.h"
#include "text/tokenizer/tokenizer_json_steps.h"

namespace quire::convert {
namespace {

using base::ToAbsl;
using nlohmann::json;

absl::Status Invalid(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", what));
}

// Returns the steps of a stage. A Sequence is replaced by its steps.
std::vector<const json*> StepsOf(const json& stage, const char* list) {
  if (stage.is_null()) return {};
  const json& inner = text::JsonMember(stage, list);
  if (!inner.is_array()) return {&stage};
  std::vector<const json*> steps;
  for (const json& step : inner) {
    for (const json* one : StepsOf(step, list)) steps.push_back(one);
  }
  return steps;
}

absl::Status ReadNormalizers(const json& normalizer, HfVocabulary& out) {
  for (const json* step : StepsOf(normalizer, "normalizers")) {
    ASSIGN_OR_RETURN(const std::string type, text::StepType(*step, "normalizer"));
    if (type == "NFC") {
      out.nfc = true;
      continue;
    }
    if (!out.byte_level && (type == "Prepend" || type == "Replace")) continue;
    return Invalid(absl::StrCat("normalizer: ", type, ": GGUF has no field for it"));
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizers(const json& pre_tokenizer, HfVocabulary& out) {
  for (const json* step : StepsOf(pre_tokenizer, "pretokenizers")) {
    const json& type = text::JsonMember(*step, "type");
    if (type == "Metaspace") out.metaspace = true;
    if (type != "ByteLevel") continue;
    ASSIGN_OR_RETURN(const bool add_prefix_space, text::JsonBool(*step, "add_prefix_space", true));
    if (!add_prefix_space) continue;
    return Invalid(
        "pre_tokenizer: ByteLevel: add_prefix_space: GGUF's tokenizer \"gpt2\" puts no space in "
        "front of a text");
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const json& model, const HfVocabulary& out) {
  ASSIGN_OR_RETURN(const std::string type, text::JsonString(model, "type", "BPE"));
  if (type != "BPE") {
    return Invalid(absl::StrCat("model: ", type,
                                ": want BPE, on bytes or with SentencePiece's byte_fallback; "
                                "others are not written to GGUF"));
  }
  if (out.byte_level) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool byte_fallback, text::JsonBool(model, "byte_fallback", false));
  if (!byte_fallback) {
    return Invalid(
        "model: BPE on characters without byte_fallback: GGUF's tokenizer \"llama\" has bytes for "
        "every unknown character");
  }
  ASSIGN_OR_RETURN(const bool ignore_merges, text::JsonBool(model, "ignore_merges", false));
  if (ignore_merges) {
    return Invalid("model: ignore_merges: GGUF's tokenizer \"llama\" always merges");
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& merges, HfVocabulary& out) {
  // Maps each token to the best rank of the merges that produce the token.
  std::unordered_map<std::string, size_t> best_rank;
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    ASSIGN_OR_RETURN(const auto parts, text::ReadBpeMerge(merges[rank]));
    const auto& [left, right] = parts;
    if (!out.byte_level) {
      merged.assign(left).append(right);
      best_rank.emplace(merged, rank);
      continue;
    }
    std::string merge = absl::StrCat(ToAbsl(left), " ", ToAbsl(right));
    if (left.find(' ') != std::string_view::npos || right.find(' ') != std::string_view::npos) {
      return Invalid(absl::StrCat("model: merges: \"", merge,
                                  "\": GGUF writes a space between the parts of a merge, so that "
                                  "they can have none"));
    }
    out.merges.push_back(std::move(merge));
  }
  if (out.byte_level) return absl::OkStatus();
  for (const std::string& token : out.tokens) {
    const auto it = best_rank.find(token);
    const size_t rank = it == best_rank.end() ? merges.size() : it->second;
    out.scores.push_back(-static_cast<float>(rank));
  }
  return absl::OkStatus();
}

// Reads the elements of `added_tokens` into `out`. Returns those that have a row in the embedding,
// by id.
absl::StatusOr<std::unordered_map<int32_t, text::AddedToken>> ReadAdded(const json& added_tokens,
                                                                        int64_t vocab_size,
                                                                        HfVocabulary& out) {
  std::unordered_map<int32_t, text::AddedToken> by_id;
  for (const json& token : added_tokens) {
    ASSIGN_OR_RETURN(text::AddedToken added, text::ReadAddedToken(token));
    if (added.id >= vocab_size) {
      out.without_row.push_back(std::move(added.content));
      continue;
    }
    by_id.emplace(added.id, added);
    out.added.push_back(std::move(added));
  }
  return by_id;
}

text::GgufTokenType TypeOf(const HfVocabulary& vocabulary, const text::Tokenizer& tokenizer,
                           int32_t id, const text::AddedToken* added, bool in_model) {
  const std::string_view piece = tokenizer.Piece(id);
  if (piece.empty()) return text::GgufTokenType::kUnused;
  if (tokenizer.IsSpecial(id)) {
    const bool unknown = !vocabulary.byte_level && id == vocabulary.unknown_id;
    return unknown ? text::GgufTokenType::kUnknown : text::GgufTokenType::kControl;
  }
  if (added != nullptr) {
    // Some added tokens, such as Gemma's "▁▁", are also in the model's vocabulary, where "▁" means
    // a space. GGUF readers take "▁" as a space in a normal token, but literally in a user-defined
    // token. So these tokens are written as normal.
    const bool merged = !vocabulary.byte_level && in_model &&
                        piece.find(text::kSpaceMarker) != std::string_view::npos;
    return merged ? text::GgufTokenType::kNormal : text::GgufTokenType::kUserDefined;
  }
  if (!vocabulary.byte_level && text::ByteOfPiece(piece)) return text::GgufTokenType::kByte;
  return text::GgufTokenType::kNormal;
}

// Checks that a SentencePiece vocabulary has a token for each byte. llama.cpp throws on a character
// that has neither a token nor byte tokens.
absl::Status CheckBytes(const HfVocabulary& vocabulary) {
  const auto num_bytes = std::count(vocabulary.token_types.begin(), vocabulary.token_types.end(),
                                    static_cast<int32_t>(text::GgufTokenType::kByte));
  if (vocabulary.byte_level || num_bytes == 256) return absl::OkStatus();
  return Invalid(absl::StrCat(
      "model: vocab: want a token \"<0x00>\" to \"<0xFF>\" of each byte, got ", num_bytes));
}

}  // namespace

absl::StatusOr<HfVocabulary> ReadHfVocabulary(std::string_view tokenizer_json,
                                              const json& tokenizer_config,
                                              const text::Tokenizer& tokenizer,
                                              int64_t vocab_size) {
  ASSIGN_OR_RETURN(const json root, base::ParseJson(tokenizer_json, "tokenizer.json"));
  const json& model = text::JsonMember(root, "model");
  HfVocabulary out;
  ASSIGN_OR_RETURN(const text::DecoderTraits decoder,
                   text::ReadDecoder(text::JsonMember(root, "decoder")));
  out.byte_level = decoder.byte_level;
  RETURN_IF_ERROR(CheckModel(model, out));
  RETURN_IF_ERROR(ReadNormalizers(text::JsonMember(root, "normalizer"), out));
  RETURN_IF_ERROR(ReadPreTokenizers(text::JsonMember(root, "pre_tokenizer"), out));
  ASSIGN_OR_RETURN(const text::PieceList pieces, text::ReadBpePieces(model));
  json added_tokens = text::JsonMember(root, "added_tokens");
  RETURN_IF_ERROR(text::AddConfiguredTokens(tokenizer_config, pieces, added_tokens));
  ASSIGN_OR_RETURN(const auto added, ReadAdded(added_tokens, vocab_size, out));
  ASSIGN_OR_RETURN(const std::string unknown, text::JsonString(model, "unk_token", ""));
  std::unordered_set<int32_t> in_model;
  for (const auto& [piece, id] : pieces) {
    in_model.insert(id);
    if (piece == unknown) out.unknown_id = id;
    if (id < vocab_size) continue;
    return Invalid(absl::StrCat("model: vocab: \"", ToAbsl(piece), "\" is token ", id,
                                " of an embedding of ", vocab_size, " rows"));
  }
  for (int32_t id = 0; id < vocab_size; ++id) {
    const auto it = added.find(id);
    const text::GgufTokenType type = TypeOf(
        out, tokenizer, id, it == added.end() ? nullptr : &it->second, in_model.contains(id));
    const bool filled = type == text::GgufTokenType::kUnused;
    out.tokens.push_back(filled ? absl::StrCat("[PAD", id, "]") : std::string(tokenizer.Piece(id)));
    out.token_types.push_back(static_cast<int32_t>(type));
  }
  RETURN_IF_ERROR(CheckBytes(out));
  RETURN_IF_ERROR(ReadMerges(text::JsonMember(model, "merges"), out));
  return out;
}

}  // namespace quire::convert
