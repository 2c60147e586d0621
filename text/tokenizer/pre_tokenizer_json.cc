#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer_json_members.h"
#include "text/tokenizer/tokenizer_json_steps.h"

namespace quire::text {
namespace {

using nlohmann::json;

constexpr std::string_view kPreTokenizer = "pre_tokenizer";

absl::StatusOr<SplitBehavior> ReadBehavior(const json& step) {
  ASSIGN_OR_RETURN(const std::string name, JsonString(step, "behavior", "Isolated"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return InvalidStep(kPreTokenizer, absl::StrCat("behavior: unknown \"", name, "\""));
}

absl::Status AddSplit(std::string_view pattern, SplitBehavior behavior, PreTokenizer& out) {
  ASSIGN_OR_RETURN(Regex regex, Regex::Create(pattern));
  out.AddSplit(std::move(regex), behavior, /*invert=*/false);
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const json& step, PreTokenizer& out) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(step, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, JsonBool(step, "use_regex", true));
  if (add_prefix_space) {
    Normalizer edit;
    edit.AddPrependUnlessThere(" ", /*only_at_input_start=*/false);
    out.AddEdit(std::move(edit));
  }
  if (use_regex) {
    RETURN_IF_ERROR(AddSplit(Gpt2Pattern(), SplitBehavior::kIsolated, out));
  }
  out.AddByteAlphabet();
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const json& step, PreTokenizer& out) {
  ASSIGN_OR_RETURN(const std::string replacement,
                   JsonString(step, "replacement", std::string(kSpaceMarker)));
  // Older files have add_prefix_space instead of prepend_scheme.
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(step, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const std::string scheme,
                   JsonString(step, "prepend_scheme", add_prefix_space ? "always" : "never"));
  ASSIGN_OR_RETURN(const bool split, JsonBool(step, "split", true));
  if (replacement.empty() || base::DecodeUtf8(replacement, 0).length != replacement.size()) {
    return InvalidStep(kPreTokenizer, "Metaspace: replacement: want one character");
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return InvalidStep(kPreTokenizer,
                       absl::StrCat("Metaspace: prepend_scheme: unknown \"", scheme, "\""));
  }
  Normalizer edit;
  edit.AddReplace(" ", replacement);
  if (scheme != "never") edit.AddPrependUnlessThere(replacement, scheme == "first");
  out.AddEdit(std::move(edit));
  if (!split) return absl::OkStatus();
  return AddSplit(Regex::Quote(replacement), SplitBehavior::kMergedWithNext, out);
}

absl::Status ReadPreTokenizerStep(const json& step, PreTokenizer& out, PreTokenizerTraits& traits) {
  ASSIGN_OR_RETURN(const std::string type, StepType(step, kPreTokenizer));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, StepArray(step, "pretokenizers", kPreTokenizer));
    for (const json& inner : *list) {
      RETURN_IF_ERROR(ReadPreTokenizerStep(inner, out, traits));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    if (traits.byte_level) return InvalidStep(kPreTokenizer, "ByteLevel: want it once");
    traits.byte_level = true;
    return ReadByteLevel(step, out);
  }
  if (type == "Metaspace") {
    // A Metaspace step after ByteLevel is refused. It would edit the text, but later patterns see
    // the text in the byte alphabet.
    if (traits.byte_level) return InvalidStep(kPreTokenizer, "Metaspace: want it before ByteLevel");
    return ReadMetaspace(step, out);
  }
  if (type == "Split") {
    ASSIGN_OR_RETURN(StepPattern pattern, ReadStepPattern(step, kPreTokenizer));
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(step));
    ASSIGN_OR_RETURN(const bool invert, JsonBool(step, "invert", false));
    if (!pattern.regex) {
      ASSIGN_OR_RETURN(Regex quoted, Regex::Create(Regex::Quote(pattern.text)));
      pattern.regex.emplace(std::move(quoted));
    }
    out.AddSplit(*std::move(pattern.regex), behavior, invert);
    return absl::OkStatus();
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, JsonBool(step, "individual_digits", false));
    return AddSplit(individual ? "\\p{N}" : "\\p{N}+", SplitBehavior::kIsolated, out);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(step));
    // Splits at Unicode's punctuation, and at the other characters that ASCII counts as
    // punctuation.
    return AddSplit("[\\p{P}$+<=>^`|~]", behavior, out);
  }
  if (type == "WhitespaceSplit") return AddSplit("\\s", SplitBehavior::kRemoved, out);
  return UnsupportedStep(
      kPreTokenizer, type,
      "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, WhitespaceSplit");
}

}  // namespace

absl::StatusOr<PreTokenizerTraits> ReadPreTokenizer(const json& pre_tokenizer, PreTokenizer& out) {
  PreTokenizerTraits traits;
  if (!pre_tokenizer.is_null()) {
    RETURN_IF_ERROR(ReadPreTokenizerStep(pre_tokenizer, out, traits));
  }
  return traits;
}

}  // namespace quire::text
