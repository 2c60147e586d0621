#include "convert/tokenizer_to_gguf.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "convert/hf_vocabulary.h"
#include "convert/tokenizer_agreement.h"
#include "convert/tokenizer_probe.h"
#include "engine/frontend/tokenizer_loader.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/special_tokens.h"

namespace quire::convert {
namespace {

using base::ToAbsl;

constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
// An id that no token has. Readers of the file take this id as "no token". Without the keys of BOS
// and EOS, readers of a "llama" tokenizer would assume tokens 1 and 2.
constexpr int64_t kNoToken = 0xFFFFFFFF;

int32_t IdOf(const HfVocabulary& vocabulary, std::string_view token) {
  const auto it = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token);
  return token.empty() || it == vocabulary.tokens.end()
             ? -1
             : static_cast<int32_t>(it - vocabulary.tokens.begin());
}

void AddId(std::string_view name, int32_t id, files::GgufValues& values) {
  if (id >= 0) values.Int(absl::StrCat("tokenizer.ggml.", ToAbsl(name), "_token_id"), id);
}

// Adds the end tokens other than EOS that readers do not recognise by their text. The first is
// added as end of turn (eot), the second as end of message (eom). GGUF has no key for a third; if
// there is a third, CheckAgreement fails later.
void AddOtherEnds(const text::Tokenizer& directory, const HfVocabulary& vocabulary, int32_t eos,
                  files::GgufValues& values) {
  std::vector<std::string_view> names = {"eom", "eot"};
  for (const int32_t id : directory.end_ids()) {
    const bool known = text::EndsTurnByText(directory.Piece(id)) && directory.IsSpecial(id);
    const bool has_row = id < static_cast<int32_t>(vocabulary.tokens.size());
    if (id == eos || known || !has_row || names.empty()) continue;
    AddId(names.back(), id, values);
    names.pop_back();
  }
}

absl::Status AddSpecialTokens(const files::OpenedModel& model, const text::Tokenizer& directory,
                              const HfVocabulary& vocabulary, files::GgufValues& values) {
  const nlohmann::json& config = model.hf->tokenizer_config;
  const std::vector<int32_t>& front = directory.frame().prefix_ids;
  const std::vector<int32_t>& behind = directory.frame().suffix_ids;
  int32_t bos = directory.bos_id();
  if (bos < 0 && front.size() == 1) bos = front[0];
  int32_t eos = IdOf(vocabulary, text::SpecialTokenText(config, "eos_token"));
  if (eos < 0 && !directory.end_ids().empty()) eos = directory.end_ids().front();
  if (eos < 0 && behind.size() == 1) eos = behind[0];
  for (const auto& [ids, only] : {std::pair(front, bos), std::pair(behind, eos)}) {
    if (ids.empty() || (ids.size() == 1 && ids[0] == only)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the post-processor adds the tokens [", absl::StrJoin(front, " "),
                     "] in front of a text and [", absl::StrJoin(behind, " "),
                     "] behind; GGUF can say bos_token (", bos, ") and eos_token (", eos, ")"));
  }
  if (vocabulary.byte_level) {
    AddId("bos", bos, values);
    AddId("eos", eos, values);
  } else {
    values.Int("tokenizer.ggml.bos_token_id", bos < 0 ? kNoToken : bos);
    values.Int("tokenizer.ggml.eos_token_id", eos < 0 ? kNoToken : eos);
  }
  AddOtherEnds(directory, vocabulary, eos, values);
  int32_t unknown = vocabulary.unknown_id;
  if (unknown < 0) unknown = IdOf(vocabulary, text::SpecialTokenText(config, "unk_token"));
  AddId("unknown", unknown, values);
  AddId("padding", IdOf(vocabulary, text::SpecialTokenText(config, "pad_token")), values);
  values.Bool("tokenizer.ggml.add_bos_token", !front.empty());
  values.Bool("tokenizer.ggml.add_eos_token", !behind.empty());
  return absl::OkStatus();
}

// Returns true if the tokenizer puts a space before the first word of a text.
bool AddsSpacePrefix(const text::Tokenizer& directory) {
  std::string bytes;
  for (const int32_t id : PlainIds(directory, "x", /*parse_special_tokens=*/false)) {
    bytes += directory.TokenBytes(id);
  }
  // If the vocabulary has no token for the space marker, the text begins with byte tokens, which
  // together give the bytes of the marker.
  return bytes.starts_with(' ') || bytes.starts_with(text::kSpaceMarker);
}

TokenizerProbeOptions ProbeOptions(const text::Tokenizer& directory,
                                   const HfVocabulary& vocabulary) {
  TokenizerProbeOptions options{.nfc = vocabulary.nfc, .leading_space = !vocabulary.metaspace};
  options.left_out.resize(static_cast<size_t>(directory.vocab_size()));
  for (size_t id = 0; id < options.left_out.size(); ++id) {
    options.left_out[id] =
        id >= vocabulary.tokens.size() ||
        vocabulary.token_types[id] != static_cast<int32_t>(text::GgufTokenType::kNormal);
  }
  if (!vocabulary.byte_level) return options;
  // Marks all bytes that occur in UTF-8, then unmarks the bytes that have a token.
  for (size_t byte = 0; byte < 0xF5; ++byte) {
    options.missing_bytes[byte] = byte != 0xC0 && byte != 0xC1;
  }
  for (int32_t id = 0; id < directory.vocab_size(); ++id) {
    const std::string_view bytes = directory.TokenBytes(id);
    if (bytes.size() == 1 && !options.left_out[static_cast<size_t>(id)]) {
      options.missing_bytes.reset(static_cast<uint8_t>(bytes[0]));
    }
  }
  return options;
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> ReadBack(const files::GgufValues& values,
                                                          const std::string& path) {
  ASSIGN_OR_RETURN(const files::GgufMetadata metadata, values.View(path));
  return engine::CreateTokenizer(metadata);
}

// Adds tokenizer.ggml.pre to `values`. Returns the tokenizer that the values then describe.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> ChoosePreTokenizer(const TokenizerProbe& probe,
                                                                    const std::string& path,
                                                                    files::GgufValues& values) {
  const std::vector<std::string_view> names = text::DistinctGgufPreTokenizers();
  TokenizerDifference last;
  std::string_view nearest;
  for (const std::string_view name : names) {
    files::GgufValues candidate = values;
    candidate.String(kPreKey, name);
    ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer, ReadBack(candidate, path));
    std::optional<TokenizerDifference> difference = probe.FirstDifference(*tokenizer);
    if (!difference) {
      values = std::move(candidate);
      return tokenizer;
    }
    if (nearest.empty() || difference->text_index > last.text_index) {
      last = *std::move(difference);
      nearest = name;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer.json: pre_tokenizer: no name of ", ToAbsl(kPreKey),
      " splits text into these words. The nearest is ", ToAbsl(nearest), ", which differs on ",
      Describe(last), ". Known are ",
      absl::StrJoin(names, ", ",
                    [](std::string* out, std::string_view name) { out->append(name); })));
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> CheckSentencePiece(
    const TokenizerProbe& probe, const std::string& path, const files::GgufValues& values) {
  ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer, ReadBack(values, path));
  if (const auto difference = probe.FirstDifference(*tokenizer)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.json: GGUF's tokenizer \"llama\" makes other tokens: it merges any two whose "
        "text together is a token, by that token's score, and puts a space in front of a text or "
        "not. It differs on ",
        Describe(*difference)));
  }
  return tokenizer;
}

void WarnOfText(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                const HfVocabulary& vocabulary, const TokenizerProbeOptions& probed,
                std::vector<std::string>& warnings) {
  if (vocabulary.nfc) {
    warnings.push_back(
        "GGUF has no field for the normalizer NFC: text in other forms of Unicode becomes other "
        "tokens");
  }
  if (probed.missing_bytes.any()) {
    warnings.push_back(absl::StrCat("bytes without a token: ", probed.missing_bytes.count(),
                                    "; the directory leaves them out before merging, GGUF's "
                                    "readers behind"));
  }
  const bool spaced = PlainIds(directory, " x", false) == PlainIds(gguf, " x", false);
  if (!probed.leading_space && !spaced) {
    warnings.push_back(
        "a text that begins with a space keeps it in GGUF behind the one that is added; the "
        "directory's Metaspace adds none then");
  }
  if (!vocabulary.without_row.empty()) {
    warnings.push_back(absl::StrCat("the embedding has no rows for the added tokens ",
                                    absl::StrJoin(vocabulary.without_row, ", "),
                                    ": they are left out"));
  }
}

// A directory's template alone decides whether BOS stands before a conversation.
void WarnOfChats(const files::OpenedModel& model, const text::Tokenizer& directory,
                 const text::Tokenizer& gguf, std::vector<std::string>& warnings) {
  const auto chat = engine::LoadChatTemplate(model, directory);
  if (!chat.ok() || *chat == nullptr) return;
  const auto rendered = (*chat)->Render({{"user", "x"}}, /*add_generation_prompt=*/true);
  if (!rendered.ok() || gguf.frame().BeginChat(rendered->text) == rendered->text) return;
  warnings.push_back(absl::StrCat("the chat template writes no ", gguf.frame().prefix_text,
                                  "; GGUF's readers begin a conversation with it all the same"));
}

absl::Status Convert(const files::OpenedModel& model, int64_t vocab_size, files::GgufValues& values,
                     std::vector<std::string>& warnings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> directory, engine::LoadTokenizer(model));
  ASSIGN_OR_RETURN(const HfVocabulary vocabulary,
                   ReadHfVocabulary(model.hf->tokenizer_json, model.hf->tokenizer_config,
                                    *directory, vocab_size));
  values.String("tokenizer.ggml.model", vocabulary.byte_level ? "gpt2" : "llama");
  values.Strings("tokenizer.ggml.tokens", vocabulary.tokens);
  values.Ints("tokenizer.ggml.token_type", vocabulary.token_types);
  if (vocabulary.byte_level) {
    values.Strings("tokenizer.ggml.merges", vocabulary.merges);
  } else {
    values.Floats("tokenizer.ggml.scores", vocabulary.scores);
    values.Bool("tokenizer.ggml.add_space_prefix", AddsSpacePrefix(*directory));
  }
  RETURN_IF_ERROR(AddSpecialTokens(model, *directory, vocabulary, values));
  const absl::StatusOr<std::string> chat_template = model.ChatTemplate();
  if (!chat_template.ok()) {
    warnings.push_back(absl::StrCat(chat_template.status().message(), ": it is left out"));
  } else if (!chat_template->empty()) {
    values.String("tokenizer.chat_template", *chat_template);
  }

  const TokenizerProbeOptions options = ProbeOptions(*directory, vocabulary);
  const TokenizerProbe probe(*directory, options);
  ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> gguf,
                   vocabulary.byte_level ? ChoosePreTokenizer(probe, model.path, values)
                                         : CheckSentencePiece(probe, model.path, values));
  WarnOfText(*directory, *gguf, vocabulary, options, warnings);
  WarnOfChats(model, *directory, *gguf, warnings);
  return CheckAgreement(*directory, *gguf, vocabulary, warnings);
}

}  // namespace

absl::Status TokenizerToGguf(const files::OpenedModel& model, int64_t vocab_size,
                             files::GgufValues& values, std::vector<std::string>& warnings) {
  if (!model.hf) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.path, ": want a Hugging Face directory, got none"));
  }
  files::GgufValues all = values;
  std::vector<std::string> lost;
  const absl::Status status = Convert(model, vocab_size, all, lost);
  if (!status.ok()) {
    const std::string message(status.message());
    return message.starts_with(model.path)
               ? status
               : absl::Status(status.code(), absl::StrCat(model.path, ": ", message));
  }
  values = std::move(all);
  warnings.insert(warnings.end(), lost.begin(), lost.end());
  return absl::OkStatus();
}

}  // namespace quire::convert
