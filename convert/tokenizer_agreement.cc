#include "convert/tokenizer_agreement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "convert/tokenizer_probe.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/sentencepiece.h"

namespace quire::convert {
namespace {

using base::ToAbsl;

constexpr size_t kShownTokens = 4;
constexpr std::string_view kBehindMetaspace =
    "the directory's Metaspace puts no space in front of it, GGUF's readers do";
constexpr std::string_view kPhi3Space =
    "GGUF's readers strip white space behind it by general.name, Phi-3's";

absl::Status Differs(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("a GGUF file's tokenizer would differ: ", what));
}

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(ToAbsl(text)), "\"");
}

// Returns the tokens as text: "<a>", "<b>" and 7 more.
std::string Listed(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string list;
  for (size_t i = 0; i < std::min(ids.size(), kShownTokens); ++i) {
    absl::StrAppend(&list, i == 0 ? "" : ", ", Quoted(tokenizer.Piece(ids[i])));
  }
  if (ids.size() > kShownTokens)
    absl::StrAppend(&list, " and ", ids.size() - kShownTokens, " more");
  return list;
}

absl::Status CompareTokens(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                           const HfVocabulary& vocabulary, std::vector<std::string>& warnings) {
  std::vector<int32_t> other_kind;
  for (int32_t id = 0; id < gguf.vocab_size(); ++id) {
    const auto type =
        static_cast<text::GgufTokenType>(vocabulary.token_types[static_cast<size_t>(id)]);
    if (type == text::GgufTokenType::kUnused) continue;
    if (directory.TokenBytes(id) != gguf.TokenBytes(id)) {
      return Differs(absl::StrCat("token ", id, " stands for ", Quoted(directory.TokenBytes(id)),
                                  ", got ", Quoted(gguf.TokenBytes(id))));
    }
    if (directory.IsSpecial(id) != gguf.IsSpecial(id)) other_kind.push_back(id);
  }
  if (!other_kind.empty()) {
    warnings.push_back(absl::StrCat("GGUF's readers take ", Listed(directory, other_kind),
                                    " as control tokens, though the directory's are plain"));
  }
  return absl::OkStatus();
}

absl::Status CompareEnds(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                         std::vector<std::string>& warnings) {
  if (directory.bos_id() < 0 && gguf.bos_id() >= 0) {
    warnings.push_back(absl::StrCat(Quoted(gguf.Piece(gguf.bos_id())),
                                    " is bos_token in GGUF; the directory names none"));
  } else if (directory.bos_id() != gguf.bos_id()) {
    return Differs(absl::StrCat("bos_token is ", directory.bos_id(), ", got ", gguf.bos_id()));
  }
  std::vector<int32_t> missing;
  std::vector<int32_t> more;
  const std::vector<int32_t>& want = directory.end_ids();
  const std::vector<int32_t>& got = gguf.end_ids();
  std::set_difference(want.begin(), want.end(), got.begin(), got.end(),
                      std::back_inserter(missing));
  std::erase_if(missing, [&](int32_t id) { return id >= gguf.vocab_size(); });
  std::set_difference(got.begin(), got.end(), want.begin(), want.end(), std::back_inserter(more));
  if (!missing.empty()) {
    return Differs(absl::StrCat(Listed(directory, missing),
                                " would no longer end a generation: GGUF",
                                " names three tokens that do, besides those known by their text"));
  }
  if (!more.empty()) {
    warnings.push_back(absl::StrCat("GGUF's readers end a generation at ", Listed(directory, more),
                                    " too, by the text"));
  }
  return absl::OkStatus();
}

absl::Status CompareAround(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                           std::vector<std::string>& warnings) {
  TokenizerDifference around{.text = "x"};
  for (const auto& [tokenizer, ids] :
       {std::pair(&directory, &around.want), std::pair(&gguf, &around.got)}) {
    ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                     tokenizer->Encode("x", {.kind = text::InputKind::kWhole}));
    for (const text::EncodedToken& token : tokens) ids->push_back(token.id);
  }
  if (around.want != around.got) {
    return Differs(absl::StrCat("with the special tokens that are added, ", Describe(around)));
  }
  if (directory.strips_leading_space() != gguf.strips_leading_space()) {
    warnings.push_back(
        gguf.strips_leading_space()
            ? "the space in front of a decoded text is dropped in GGUF, and kept by the directory"
            : "the space in front of a decoded text is kept in GGUF, and dropped by the directory");
  }
  return absl::OkStatus();
}

// Returns the reason why the tokenizer of the GGUF file may give other ids for `token` or for the
// text around it. Returns an empty string if no reason is known.
std::string_view ReasonToDiffer(const text::AddedToken& token, const text::Tokenizer& directory,
                                const text::Tokenizer& gguf, const HfVocabulary& vocabulary) {
  if (token.strip_left) return "GGUF has no field for lstrip";
  if (token.strip_right) return "GGUF has no field for rstrip";
  if (token.single_word) return "GGUF has no field for single_word";
  if (directory.IsSpecial(token.id) != gguf.IsSpecial(token.id)) {
    return "GGUF's readers take it as a control token";
  }
  if (vocabulary.byte_level) return "";
  if (token.content.find(text::kSpaceMarker) != std::string::npos) {
    return "GGUF's readers take \"▁\" in a text as a space";
  }
  if (token.normalized) return "GGUF has no field for normalized";
  return "";
}

std::optional<TokenizerDifference> DifferenceAround(const text::AddedToken& token,
                                                    std::string_view left, std::string_view right,
                                                    const text::Tokenizer& directory,
                                                    const text::Tokenizer& gguf) {
  const std::string text = absl::StrCat(ToAbsl(left), token.content, ToAbsl(right));
  for (const bool parse_special : {true, false}) {
    TokenizerDifference difference{.text = text,
                                   .want = PlainIds(directory, text, parse_special),
                                   .got = PlainIds(gguf, text, parse_special)};
    if (difference.want != difference.got) return difference;
  }
  return std::nullopt;
}

absl::Status CompareAddedTokens(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                                const HfVocabulary& vocabulary,
                                std::vector<std::string>& warnings) {
  std::map<std::string_view, std::vector<int32_t>> lost;  // by reason
  for (const text::AddedToken& token : vocabulary.added) {
    const auto alone = DifferenceAround(token, "", "", directory, gguf);
    const auto between = DifferenceAround(token, "a", "b", directory, gguf);
    const auto spaced = DifferenceAround(token, "a ", " b", directory, gguf);
    if (!alone && !between && !spaced) continue;
    std::string_view reason = ReasonToDiffer(token, directory, gguf, vocabulary);
    if (reason.empty() && vocabulary.metaspace && !alone) reason = kBehindMetaspace;
    if (reason.empty() && !alone && !between) reason = kPhi3Space;
    if (reason.empty()) return Differs(Describe(alone ? *alone : *between));
    lost[reason].push_back(token.id);
  }
  for (const auto& [reason, ids] : lost) {
    warnings.push_back(absl::StrCat("the text beside ", Listed(directory, ids),
                                    " may become other tokens: ", ToAbsl(reason)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAgreement(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                            const HfVocabulary& vocabulary, std::vector<std::string>& warnings) {
  RETURN_IF_ERROR(CompareTokens(directory, gguf, vocabulary, warnings));
  RETURN_IF_ERROR(CompareEnds(directory, gguf, warnings));
  RETURN_IF_ERROR(CompareAround(directory, gguf, warnings));
  return CompareAddedTokens(directory, gguf, vocabulary, warnings);
}

}  // namespace quire::convert
