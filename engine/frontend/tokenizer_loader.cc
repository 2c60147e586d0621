#include "engine/frontend/tokenizer_loader.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "files/printable.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/special_tokens.h"
#include "text/tokenizer/tokenizer_json.h"

namespace quire::engine {
namespace {

absl::StatusOr<std::optional<int64_t>> OptionalInt(const files::GgufMetadata& gguf,
                                                   std::string_view key) {
  if (!gguf.Has(key)) return std::nullopt;
  ASSIGN_OR_RETURN(const int64_t value, gguf.Int(key));
  return std::optional<int64_t>(value);
}

absl::StatusOr<std::optional<bool>> OptionalBool(const files::GgufMetadata& gguf,
                                                 std::string_view key) {
  if (!gguf.Has(key)) return std::nullopt;
  ASSIGN_OR_RETURN(const bool value, gguf.Bool(key));
  return std::optional<bool>(value);
}

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kPre = "tokenizer.ggml.pre";

// Returns the name (a possible value of the key kPre) of the pre-tokenizer that all models of the
// architecture share. Returns an empty name for architectures whose models differ.
std::string_view OnlyPreTokenizerOf(const files::GgufMetadata& gguf) {
  constexpr std::pair<std::string_view, std::string_view> kOnly[] = {{"gptneox", "gpt-2"},
                                                                     {"mpt", "mpt"},
                                                                     {"falcon", "falcon"},
                                                                     {"gpt2", "gpt-2"},
                                                                     {"bloom", "bloom"}};
  const std::string_view architecture = gguf.StringOr("general.architecture", "").value_or("");
  for (const auto& [name, pre] : kOnly) {
    if (name == architecture) return pre;
  }
  return "";
}

absl::StatusOr<text::GgufVocabulary> ReadVocabulary(const files::GgufMetadata& gguf) {
  text::GgufVocabulary out;
  ASSIGN_OR_RETURN(out.model, gguf.String("tokenizer.ggml.model"));
  ASSIGN_OR_RETURN(out.pre, gguf.StringOr(kPre, ""));
  if (out.pre.empty()) out.pre = OnlyPreTokenizerOf(gguf);
  ASSIGN_OR_RETURN(out.model_name, gguf.StringOr("general.name", ""));
  ASSIGN_OR_RETURN(out.tokens, gguf.Strings(kTokens));
  if (gguf.Has("tokenizer.ggml.scores")) {
    ASSIGN_OR_RETURN(const std::vector<double> scores, gguf.Floats("tokenizer.ggml.scores"));
    out.scores.assign(scores.begin(), scores.end());
  }
  if (gguf.Has("tokenizer.ggml.token_type")) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf.Ints("tokenizer.ggml.token_type"));
    for (const int64_t type : types) {
      const bool fits = type >= 0 && type <= std::numeric_limits<int32_t>::max();
      out.token_types.push_back(fits ? static_cast<int32_t>(type) : 0);
    }
  }
  if (gguf.Has("tokenizer.ggml.merges")) {
    ASSIGN_OR_RETURN(out.merges, gguf.Strings("tokenizer.ggml.merges"));
  }
  ASSIGN_OR_RETURN(out.bos_id, OptionalInt(gguf, "tokenizer.ggml.bos_token_id"));
  ASSIGN_OR_RETURN(out.eos_id, OptionalInt(gguf, "tokenizer.ggml.eos_token_id"));
  ASSIGN_OR_RETURN(out.eot_id, OptionalInt(gguf, "tokenizer.ggml.eot_token_id"));
  ASSIGN_OR_RETURN(out.eom_id, OptionalInt(gguf, "tokenizer.ggml.eom_token_id"));
  ASSIGN_OR_RETURN(out.unknown_id, OptionalInt(gguf, "tokenizer.ggml.unknown_token_id"));
  ASSIGN_OR_RETURN(out.add_bos, OptionalBool(gguf, "tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(out.add_eos, OptionalBool(gguf, "tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(out.add_space_prefix, OptionalBool(gguf, "tokenizer.ggml.add_space_prefix"));
  return out;
}

std::string PreTokenizerWarning(const files::GgufMetadata& gguf) {
  const bool is_split = gguf.StringOr("tokenizer.ggml.model", "").value_or("") == "gpt2";
  if (!is_split || !gguf.StringOr(kPre, "").value_or("").empty()) return "";
  const std::string_view only = OnlyPreTokenizerOf(gguf);
  if (!only.empty()) {
    return absl::StrCat("the file names no ", base::ToAbsl(kPre), ": taken is ", base::ToAbsl(only),
                        ", which all models of its architecture have");
  }
  return absl::StrCat("the file names no ", base::ToAbsl(kPre),
                      ": taken is default, as in llama.cpp, and tokens are likely others than the "
                      "model was trained on; convert the model again");
}

std::string DuplicateWarning(const files::GgufMetadata& gguf) {
  const auto tokens = gguf.Strings(kTokens);
  if (!tokens.ok()) return "";
  std::unordered_set<std::string_view> seen;
  for (const std::string_view token : *tokens) {
    if (token.empty() || seen.insert(token).second) continue;
    return absl::StrCat("the token \"", base::ToAbsl(files::Printable(token)),
                        "\" is in the vocabulary more than once: a text becomes the last, as in "
                        "llama.cpp");
  }
  return "";
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<text::Tokenizer>> CreateTokenizer(const files::GgufMetadata& gguf) {
  ASSIGN_OR_RETURN(const text::GgufVocabulary vocabulary, ReadVocabulary(gguf));
  auto tokenizer = CreateTokenizer(vocabulary);
  if (!tokenizer.ok()) return WithPath(gguf.file(), tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const files::OpenedModel& model) {
  if (model.gguf) return CreateTokenizer(*model.gguf);
  if (!model.hf || model.hf->tokenizer_json.empty()) {
    return absl::NotFoundError(absl::StrCat(
        model.path,
        ": no tokenizer; want a GGUF file, or a directory with tokenizer.json (of a "
        ".tiktoken file, transformers.integrations.tiktoken.convert_tiktoken_to_fast writes one)"));
  }
  auto tokenizer =
      CreateTokenizer(text::HfTokenizerFiles{.tokenizer_json = model.hf->tokenizer_json,
                                             .config = model.hf->config,
                                             .generation_config = model.hf->generation_config,
                                             .tokenizer_config = model.hf->tokenizer_config});
  if (!tokenizer.ok()) return WithPath(model.path, tokenizer.status());
  return tokenizer;
}

std::string TokenizerWarning(const files::OpenedModel& model) {
  if (!model.gguf) return "";
  std::string warning = PreTokenizerWarning(*model.gguf);
  const std::string duplicate = DuplicateWarning(*model.gguf);
  if (!warning.empty() && !duplicate.empty()) warning += "; ";
  return warning + duplicate;
}

absl::StatusOr<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(
    const files::OpenedModel& model, const text::Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string source, model.ChatTemplate());
  if (source.empty()) return nullptr;
  ASSIGN_OR_RETURN(text::ChatTemplateVariables texts, LoadSpecialTokenTexts(model, tokenizer));
  return text::ChatTemplate::Create(source, std::move(texts));
}

absl::StatusOr<text::ChatTemplateVariables> LoadSpecialTokenTexts(
    const files::OpenedModel& model, const text::Tokenizer& tokenizer) {
  if (!model.gguf) {
    return model.hf ? text::NamedSpecialTokens(model.hf->tokenizer_config)
                    : text::ChatTemplateVariables();
  }
  ASSIGN_OR_RETURN(int64_t eos, model.gguf->IntOr("tokenizer.ggml.eos_token_id", -1));
  const bool is_known = eos >= 0 && eos < tokenizer.vocab_size();
  if (!is_known && !tokenizer.end_ids().empty()) eos = tokenizer.end_ids().front();
  text::ChatTemplateVariables texts;
  for (const auto& [name, id] :
       {std::pair("bos_token", int64_t{tokenizer.bos_id()}), std::pair("eos_token", eos)}) {
    const std::string_view text = tokenizer.Piece(static_cast<int32_t>(id));
    if (!text.empty()) texts.emplace(name, text);
  }
  return texts;
}

}  // namespace quire::engine
