#include "text/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/sentencepiece.h"

namespace quire::text {
namespace {

using base::ToAbsl;

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxPieceBytes = 4096;

// The texts of end-of-turn tokens, as in llama.cpp. The texts are needed because most files name
// only one such token.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>",    "<|end|>",       "<|return|>",         "<|call|>",
    "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",    "<EOT>",
    "_<EOT>",     "[EOT]",         "[EOS]",         "<end_of_utterance>", "<｜end▁of▁sentence｜>",
};

using PieceIds = std::unordered_map<std::string_view, int32_t>;

absl::Status Invalid(std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.", ToAbsl(key), ": ", what));
}

// True if a token with the text `piece` ends a turn. If the file calls such a token user-defined,
// TypeOf makes it a control token, as in llama.cpp. As a user-defined token, Phi-3's "</s>" would
// be found even without EncodeOptions::parse_special_tokens.
bool EndsTurn(std::string_view piece) { return piece == "</s>" || EndsTurnByText(piece); }

GgufTokenType TypeOf(const GgufVocabulary& vocabulary, size_t id) {
  if (vocabulary.token_types.empty()) return GgufTokenType::kNormal;
  const auto type = static_cast<GgufTokenType>(vocabulary.token_types[id]);
  const bool overruled = type == GgufTokenType::kUserDefined && EndsTurn(vocabulary.tokens[id]);
  return overruled ? GgufTokenType::kControl : type;
}

bool IsSpecialType(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUnknown;
}

// True if a token of this type is found verbatim in a text.
bool IsAddedType(GgufTokenType type) {
  return IsSpecialType(type) || type == GgufTokenType::kUserDefined;
}

// Returns the entry of one token. An unused token stands for a hole or for padding. The entry of
// such a token is empty, so the token writes nothing, as in llama.cpp.
VocabularyEntry EntryOf(std::string_view piece, std::string bytes, GgufTokenType type) {
  if (type == GgufTokenType::kUnused) return {};
  return {std::string(piece), std::move(bytes), IsSpecialType(type)};
}

// Returns the id of each piece. Text becomes the last of equal tokens, as in llama.cpp, and the
// others stand only for what they decode to. Returns InvalidArgument if one of equal tokens is
// found verbatim in a text, since llama.cpp then leaves it to chance which.
absl::StatusOr<PieceIds> IndexPieces(const GgufVocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  if (count == 0 || count > kMaxTokens) {
    return Invalid("tokens", absl::StrCat("want 1 to ", kMaxTokens, ", got ", count));
  }
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    return Invalid("token_type", absl::StrCat("want one of each of the ", count, " tokens, got ",
                                              vocabulary.token_types.size()));
  }
  PieceIds ids;
  ids.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view piece = vocabulary.tokens[i];
    if (piece.size() > kMaxPieceBytes) {
      return Invalid("tokens", absl::StrCat("token ", i, ": want at most ", kMaxPieceBytes,
                                            " bytes, got ", piece.size()));
    }
    if (piece.empty()) continue;
    const auto [it, is_new] = ids.emplace(piece, static_cast<int32_t>(i));
    if (is_new) continue;
    if (IsAddedType(TypeOf(vocabulary, static_cast<size_t>(it->second))) ||
        IsAddedType(TypeOf(vocabulary, i))) {
      return Invalid("tokens", absl::StrCat("\"", ToAbsl(piece), "\" is both token ", it->second,
                                            " and token ", i));
    }
    it->second = static_cast<int32_t>(i);
  }
  return ids;
}

// True if a text becomes token `id` where it has `piece`, and not a later token of the same piece.
bool IsEncodable(const PieceIds& ids, std::string_view piece, size_t id) {
  const auto it = ids.find(piece);
  return it != ids.end() && it->second == static_cast<int32_t>(id);
}

// Returns `id` if it is in the vocabulary; -1 otherwise.
int32_t KnownId(const GgufVocabulary& vocabulary, std::optional<int64_t> id) {
  const bool known = id && *id >= 0 && *id < static_cast<int64_t>(vocabulary.tokens.size());
  return known ? static_cast<int32_t>(*id) : -1;
}

// True for a token that includes the white space after it. GGUF has no field for this property, so
// Phi-3, which has such tokens, is recognised by the model's name, as in llama.cpp.
bool StripsRight(const GgufVocabulary& vocabulary, std::string_view piece, GgufTokenType type) {
  const std::string name = absl::AsciiStrToLower(ToAbsl(vocabulary.model_name));
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos)
    return false;
  if (piece == "<unk>" || piece == "<s>" || piece == "<|endoftext|>") return false;
  return IsAddedType(type);
}

void AddAddedTokens(const GgufVocabulary& vocabulary, AddedTokens& added) {
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const GgufTokenType type = TypeOf(vocabulary, i);
    if (!IsAddedType(type)) continue;
    AddedToken token;
    token.content = vocabulary.tokens[i];
    token.id = static_cast<int32_t>(i);
    token.special = IsSpecialType(type);
    token.strip_right = StripsRight(vocabulary, token.content, type);
    added.Add(std::move(token));
  }
}

absl::Status AddEnds(const GgufVocabulary& vocabulary, const PieceIds& ids, bool add_bos,
                     bool add_eos, int32_t bos, int32_t eos, TokenizerParts& parts) {
  if (vocabulary.add_bos.value_or(add_bos)) {
    if (bos < 0) return Invalid("add_bos_token", "true, but there is no bos_token_id");
    parts.frame.prefix_ids.push_back(bos);
    if (const auto id = static_cast<size_t>(bos); IsAddedType(TypeOf(vocabulary, id))) {
      parts.frame.prefix_text = vocabulary.tokens[id];
    }
  }
  parts.frame.begins_chats = true;
  if (vocabulary.add_eos.value_or(add_eos)) {
    if (eos < 0) return Invalid("add_eos_token", "true, but there is no eos_token_id");
    parts.frame.suffix_ids.push_back(eos);
  }
  parts.bos_id = bos;
  for (const int32_t id :
       {eos, KnownId(vocabulary, vocabulary.eot_id), KnownId(vocabulary, vocabulary.eom_id)}) {
    if (id >= 0) parts.end_ids.push_back(id);
  }
  for (const std::string_view text : kEndTexts) {
    const auto it = ids.find(text);
    if (it != ids.end() &&
        TypeOf(vocabulary, static_cast<size_t>(it->second)) == GgufTokenType::kControl) {
      parts.end_ids.push_back(it->second);
    }
  }
  return absl::OkStatus();
}

void FillByteLevelVocabulary(const GgufVocabulary& vocabulary, const PieceIds& ids, BpeModel& model,
                             TokenizerParts& parts) {
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string piece(vocabulary.tokens[i]);
    const GgufTokenType type = TypeOf(vocabulary, i);
    std::string bytes = piece;
    if (!IsAddedType(type)) {
      if (std::optional<std::string> plain = BytesOfByteLevelPiece(piece)) {
        bytes = *std::move(plain);
        if (IsEncodable(ids, piece, i)) model.AddToken(bytes, static_cast<int32_t>(i));
      }
    }
    parts.vocabulary.push_back(EntryOf(piece, std::move(bytes), type));
  }
}

absl::Status AddMerges(const GgufVocabulary& vocabulary, const PieceIds& ids, BpeModel& model) {
  model.ReserveMerges(vocabulary.merges.size());
  std::string merged;
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    // The search starts at the second byte, because the left part may itself begin with a space.
    const size_t space = merge.size() > 1 ? merge.find(' ', 1) : std::string_view::npos;
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return Invalid("merges",
                     absl::StrCat("want \"left right\", got \"", ToAbsl(merge), "\" at ", rank));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    merged.assign(left).append(right);
    int32_t found[3] = {-1, -1, -1};
    const std::string_view pieces[3] = {left, right, merged};
    for (size_t k = 0; k < 3; ++k) {
      const auto it = ids.find(pieces[k]);
      if (it == ids.end()) {
        return Invalid("merges", absl::StrCat("merge ", rank, " needs \"", ToAbsl(pieces[k]),
                                              "\", which is no token"));
      }
      found[k] = it->second;
    }
    model.AddMerge(found[0], found[1], static_cast<uint32_t>(rank), found[2]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateByteLevel(const GgufVocabulary& vocabulary,
                                                           const PieceIds& ids) {
  const GgufPreTokenizer* pre = FindGgufPreTokenizer(vocabulary.pre);
  if (pre == nullptr) {
    return Invalid("pre", absl::StrCat("unknown pre-tokenizer \"", ToAbsl(vocabulary.pre),
                                       "\"; known are ", GgufPreTokenizerNames()));
  }
  TokenizerParts parts;
  auto model = std::make_unique<BpeModel>(BpeModelConfig{.ignore_merges = pre->ignore_merges});
  for (const std::string_view pattern : pre->patterns) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Create(pattern));
    parts.pre_tokenizer.AddSplit(std::move(regex), SplitBehavior::kIsolated, /*invert=*/false);
  }
  AddAddedTokens(vocabulary, parts.added_tokens);
  FillByteLevelVocabulary(vocabulary, ids, *model, parts);
  RETURN_IF_ERROR(AddMerges(vocabulary, ids, *model));
  parts.model = std::move(model);
  RETURN_IF_ERROR(AddEnds(vocabulary, ids, pre->add_bos, /*add_eos=*/false,
                          KnownId(vocabulary, vocabulary.bos_id),
                          KnownId(vocabulary, vocabulary.eos_id), parts));
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

// Returns the rank of each token; the best score has rank 0. Tokens with equal scores have equal
// ranks, so that among merges with the same score the leftmost comes first.
absl::StatusOr<std::vector<uint32_t>> RanksOfScores(const GgufVocabulary& vocabulary) {
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    return Invalid("scores", absl::StrCat("want one of each of the ", vocabulary.tokens.size(),
                                          " tokens, got ", vocabulary.scores.size()));
  }
  std::vector<float> sorted = vocabulary.scores;
  for (const float score : sorted) {
    if (std::isnan(score)) return Invalid("scores", "want numbers, got NaN");
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<uint32_t> ranks;
  ranks.reserve(vocabulary.scores.size());
  for (const float score : vocabulary.scores) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(at - sorted.begin()));
  }
  return ranks;
}

// Adds the merges of a SentencePiece vocabulary to `model`. SentencePiece merges two symbols when
// their joined text is a piece, best score first. So every way to split a piece into two symbols is
// a merge with the piece's rank. Returns true if the model has a symbol for the space marker, and
// JoinsAcrossSpace is false for every merge.
bool AddMergesOfPieces(const GgufVocabulary& vocabulary, const PieceIds& ids,
                       const std::vector<uint32_t>& ranks, BpeModel& model) {
  bool within_words = true;
  const auto first_free_id = static_cast<int32_t>(vocabulary.tokens.size());
  const auto mergeable = [&](size_t id) {
    const GgufTokenType type = TypeOf(vocabulary, id);
    return !IsSpecialType(type) && type != GgufTokenType::kByte;
  };
  // If `text` is a token that merges may use, returns the token's id. If `text` is another single
  // character, returns the id from AddCharacter. Otherwise returns -1.
  const auto symbol = [&](std::string_view text) -> int32_t {
    const auto it = ids.find(text);
    if (it != ids.end() && mergeable(static_cast<size_t>(it->second))) return it->second;
    const base::Utf8Char c = base::DecodeUtf8(text, 0);
    return c.length == text.size() ? model.AddCharacter(c.code_point, first_free_id) : -1;
  };
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view piece = vocabulary.tokens[i];
    if (!mergeable(i) || !IsEncodable(ids, piece, i) || !base::IsValidUtf8(piece)) continue;
    for (size_t at = base::DecodeUtf8(piece, 0).length; at < piece.size();
         at += base::DecodeUtf8(piece, at).length) {
      const int32_t left = symbol(piece.substr(0, at));
      const int32_t right = left < 0 ? -1 : symbol(piece.substr(at));
      if (right < 0) continue;
      model.AddMerge(left, right, ranks[i], static_cast<int32_t>(i));
      if (JoinsAcrossSpace(piece.substr(0, at), piece.substr(at))) within_words = false;
    }
  }
  return within_words && model.CharacterId(0x2581) >= 0;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSentencePiece(const GgufVocabulary& vocabulary,
                                                               const PieceIds& ids) {
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, RanksOfScores(vocabulary));
  const bool has_types = !vocabulary.token_types.empty();
  TokenizerParts parts;
  auto model = std::make_unique<BpeModel>(
      BpeModelConfig{.unit = BpeUnit::kCharacter,
                     .unknown_id = KnownId(vocabulary, vocabulary.unknown_id.value_or(0)),
                     .fuse_unknown = true,
                     .byte_fallback = true});
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view piece = vocabulary.tokens[i];
    const GgufTokenType type = TypeOf(vocabulary, i);
    const auto id = static_cast<int32_t>(i);
    std::string bytes(piece);
    const std::optional<uint8_t> byte =
        !has_types || type == GgufTokenType::kByte ? ByteOfPiece(piece) : std::nullopt;
    if (byte) {
      bytes.assign(1, static_cast<char>(*byte));
      model->SetByteToken(*byte, id);
    } else if (!IsSpecialType(type)) {
      if (IsEncodable(ids, piece, i)) model->AddToken(piece, id);
      if (type != GgufTokenType::kUserDefined) bytes = SpacesForMarkers(piece);
    }
    parts.vocabulary.push_back(EntryOf(piece, std::move(bytes), type));
  }
  if (AddMergesOfPieces(vocabulary, ids, ranks, *model)) SplitBeforeSpaces(parts.pre_tokenizer);
  parts.model = std::move(model);
  AddAddedTokens(vocabulary, parts.added_tokens);
  if (vocabulary.add_space_prefix.value_or(true)) {
    parts.normalizer.AddPrepend(std::string(kSpaceMarker));
    parts.strips_leading_space = true;
  }
  parts.normalizer.AddReplace(" ", std::string(kSpaceMarker));
  // If the file does not name BOS and EOS, they are 1 and 2, the ids of <s> and </s> in every Llama
  // vocabulary.
  RETURN_IF_ERROR(AddEnds(vocabulary, ids, /*add_bos=*/true, /*add_eos=*/false,
                          KnownId(vocabulary, vocabulary.bos_id.value_or(1)),
                          KnownId(vocabulary, vocabulary.eos_id.value_or(2)), parts));
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

bool EndsTurnByText(std::string_view piece) {
  return std::find(std::begin(kEndTexts), std::end(kEndTexts), piece) != std::end(kEndTexts);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufVocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const PieceIds ids, IndexPieces(vocabulary));
  if (vocabulary.model == "gpt2") return CreateByteLevel(vocabulary, ids);
  if (vocabulary.model == "llama") return CreateSentencePiece(vocabulary, ids);
  return Invalid("model",
                 absl::StrCat("unknown tokenizer \"", ToAbsl(vocabulary.model),
                              "\"; known are gpt2 (byte-level BPE), llama (SentencePiece-BPE)"));
}

}  // namespace quire::text
