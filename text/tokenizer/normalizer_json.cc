#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/tokenizer/character_steps.h"
#include "text/tokenizer/normal_form.h"
#include "text/tokenizer/precompiled_charsmap.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_steps.h"

namespace quire::text {
namespace {

using nlohmann::json;

constexpr std::string_view kNormalizer = "normalizer";

// In bytes, a canonical decomposition is at most three times as long as the character, and at least
// a third as long. So decomposition shrinks a text by a factor of at most 3, and the composition
// after it shrinks the result by a factor of at most 3.
constexpr int64_t kMaxCanonicalShrink = 9;

constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::kNfc},
                                                              {"NFD", NormalForm::kNfd},
                                                              {"NFKC", NormalForm::kNfkc},
                                                              {"NFKD", NormalForm::kNfkd}};
constexpr std::pair<std::string_view, std::optional<AlignedText> (*)(const TextPart&)>
    kCharacterSteps[] = {
        {"Lowercase", Lowercase}, {"Nmt", CleanForNmt}, {"StripAccents", StripAccents}};

// Reads SentencePiece's character map, which is encoded in Base64.
absl::Status ReadPrecompiled(const json& step, Normalizer& out) {
  ASSIGN_OR_RETURN(const std::string encoded, JsonString(step, "precompiled_charsmap", ""));
  std::string blob;
  if (!absl::Base64Unescape(encoded, &blob)) {
    return InvalidStep(kNormalizer, "Precompiled: precompiled_charsmap: want Base64");
  }
  absl::StatusOr<PrecompiledCharsmap> charsmap = PrecompiledCharsmap::Create(blob);
  if (!charsmap.ok()) return InvalidStep(kNormalizer, std::string(charsmap.status().message()));
  out.Add([map = std::make_shared<const PrecompiledCharsmap>(*std::move(charsmap))](
              const TextPart& part) { return map->Apply(part); });
  return absl::OkStatus();
}

absl::Status ReadNormalizerStep(const json& step, Normalizer& out) {
  ASSIGN_OR_RETURN(const std::string type, StepType(step, kNormalizer));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, StepArray(step, "normalizers", kNormalizer));
    for (const json& inner : *list) RETURN_IF_ERROR(ReadNormalizerStep(inner, out));
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, JsonString(step, "prepend", ""));
    out.AddPrepend(std::move(prefix));
    return absl::OkStatus();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(StepPattern pattern, ReadStepPattern(step, kNormalizer));
    ASSIGN_OR_RETURN(std::string content, JsonString(step, "content", ""));
    if (pattern.regex) {
      out.AddReplace(*std::move(pattern.regex), std::move(content));
    } else {
      out.AddReplace(std::move(pattern.text), std::move(content));
    }
    return absl::OkStatus();
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, JsonBool(step, "strip_left", true));
    ASSIGN_OR_RETURN(const bool right, JsonBool(step, "strip_right", true));
    out.Add([=](const TextPart& part) { return StripSpace(part, left, right); });
    return absl::OkStatus();
  }
  if (type == "Precompiled") return ReadPrecompiled(step, out);
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    const bool canonical = form == NormalForm::kNfc || form == NormalForm::kNfd;
    out.Add([form = form](const TextPart& part) { return ToNormalForm(form, part); },
            canonical ? kMaxCanonicalShrink : 0);
    return absl::OkStatus();
  }
  for (const auto& [name, apply] : kCharacterSteps) {
    if (type != name) continue;
    out.Add(apply);
    return absl::OkStatus();
  }
  return UnsupportedStep(kNormalizer, type,
                         "Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, "
                         "Sequence, Strip, StripAccents");
}

}  // namespace

absl::Status ReadNormalizer(const json& normalizer, Normalizer& out) {
  return normalizer.is_null() ? absl::OkStatus() : ReadNormalizerStep(normalizer, out);
}

}  // namespace quire::text
