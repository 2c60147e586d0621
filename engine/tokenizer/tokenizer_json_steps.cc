#include "engine/tokenizer/tokenizer_json_steps.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/tokenizer/sentencepiece.h"

namespace quire::engine {
namespace {

using base::ToAbsl;
using nlohmann::json;

absl::Status Invalid(std::string_view stage, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(stage), ": ", what));
}

absl::Status Unsupported(std::string_view stage, const std::string& type, std::string_view known) {
  return Invalid(stage, absl::StrCat(type, " is not supported; supported are ", ToAbsl(known)));
}

absl::StatusOr<std::string> TypeOf(const json& step, std::string_view stage) {
  if (!step.is_object())
    return Invalid(stage, absl::StrCat("want an object, got ", step.type_name()));
  ASSIGN_OR_RETURN(std::string type, JsonString(step, "type", ""));
  if (type.empty()) return Invalid(stage, "a step has no type");
  return type;
}

absl::StatusOr<const json*> ArrayOf(const json& step, const char* key, std::string_view stage) {
  const json& list = JsonMember(step, key);
  if (!list.is_array()) {
    return Invalid(stage, absl::StrCat(key, ": want an array, got ", list.type_name()));
  }
  return &list;
}

// {"String": "x"} or {"Regex": "x"}. Exactly one of the two is filled.
struct Pattern {
  std::string text;
  std::optional<Regex> regex;
};

absl::StatusOr<Pattern> ReadPattern(const json& step, std::string_view stage) {
  const json& pattern = JsonMember(step, "pattern");
  ASSIGN_OR_RETURN(const std::string regex, JsonString(pattern, "Regex", ""));
  ASSIGN_OR_RETURN(std::string text, JsonString(pattern, "String", ""));
  if (regex.empty() == text.empty()) {
    return Invalid(stage, "pattern: want either {\"String\": ...} or {\"Regex\": ...}, not empty");
  }
  if (regex.empty()) return Pattern{.text = std::move(text)};
  ASSIGN_OR_RETURN(Regex compiled, Regex::Create(regex));
  Pattern out;
  out.regex.emplace(std::move(compiled));
  return out;
}

absl::StatusOr<SplitBehavior> ReadBehavior(const json& step, std::string_view stage) {
  ASSIGN_OR_RETURN(const std::string name, JsonString(step, "behavior", "Isolated"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Invalid(stage, absl::StrCat("behavior: unknown \"", name, "\""));
}

absl::Status AddSplit(std::string_view pattern, SplitBehavior behavior, PreTokenizer& out) {
  ASSIGN_OR_RETURN(Regex regex, Regex::Create(pattern));
  out.AddSplit(std::move(regex), behavior, /*invert=*/false);
  return absl::OkStatus();
}

constexpr std::string_view kPreTokenizer = "pre_tokenizer";

absl::Status ReadByteLevel(const json& step, bool is_first, BpeTokenizerParts& parts) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(step, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, JsonBool(step, "use_regex", true));
  if (add_prefix_space) {
    if (!is_first)
      return Invalid(kPreTokenizer,
                     "ByteLevel: add_prefix_space is supported in the first step only");
    parts.part_edits.AddPrependUnlessThere(" ", /*only_at_input_start=*/false);
  }
  if (use_regex) {
    RETURN_IF_ERROR(AddSplit(Gpt2Pattern(), SplitBehavior::kIsolated, parts.pre_tokenizer));
  }
  parts.pre_tokenizer.AddByteAlphabet();
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const json& step, bool is_first, BpeTokenizerParts& parts) {
  if (!is_first) return Invalid(kPreTokenizer, "Metaspace is supported as the first step only");
  ASSIGN_OR_RETURN(const std::string replacement,
                   JsonString(step, "replacement", std::string(kSpaceMarker)));
  // Older files say add_prefix_space instead of prepend_scheme.
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(step, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const std::string scheme,
                   JsonString(step, "prepend_scheme", add_prefix_space ? "always" : "never"));
  ASSIGN_OR_RETURN(const bool split, JsonBool(step, "split", true));
  if (replacement.empty() || base::DecodeUtf8(replacement, 0).length != replacement.size()) {
    return Invalid(kPreTokenizer, "Metaspace: replacement: want one character");
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return Invalid(kPreTokenizer,
                   absl::StrCat("Metaspace: prepend_scheme: unknown \"", scheme, "\""));
  }
  parts.part_edits.AddReplace(" ", replacement);
  if (scheme != "never") parts.part_edits.AddPrependUnlessThere(replacement, scheme == "first");
  if (!split) return absl::OkStatus();
  return AddSplit(Regex::Quote(replacement), SplitBehavior::kMergedWithNext, parts.pre_tokenizer);
}

absl::Status ReadPreTokenizerStep(const json& step, bool is_first, BpeTokenizerParts& parts,
                                  PreTokenizerTraits& traits) {
  ASSIGN_OR_RETURN(const std::string type, TypeOf(step, kPreTokenizer));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, ArrayOf(step, "pretokenizers", kPreTokenizer));
    for (const json& inner : *list) {
      RETURN_IF_ERROR(ReadPreTokenizerStep(inner, is_first, parts, traits));
      is_first = false;
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    if (traits.byte_level) return Invalid(kPreTokenizer, "ByteLevel: want it once");
    traits.byte_level = true;
    return ReadByteLevel(step, is_first, parts);
  }
  if (type == "Metaspace") return ReadMetaspace(step, is_first, parts);
  if (type == "Split") {
    ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(step, kPreTokenizer));
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(step, kPreTokenizer));
    ASSIGN_OR_RETURN(const bool invert, JsonBool(step, "invert", false));
    if (!pattern.regex) {
      ASSIGN_OR_RETURN(Regex quoted, Regex::Create(Regex::Quote(pattern.text)));
      pattern.regex.emplace(std::move(quoted));
    }
    parts.pre_tokenizer.AddSplit(*std::move(pattern.regex), behavior, invert);
    return absl::OkStatus();
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, JsonBool(step, "individual_digits", false));
    return AddSplit(individual ? "\\p{N}" : "\\p{N}+", SplitBehavior::kIsolated,
                    parts.pre_tokenizer);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(step, kPreTokenizer));
    // Unicode's punctuation, and what ASCII calls so besides.
    return AddSplit("[\\p{P}$+<=>^`|~]", behavior, parts.pre_tokenizer);
  }
  return Unsupported(kPreTokenizer, type,
                     "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split");
}

absl::Status ReadNormalizerStep(const json& step, Normalizer& out) {
  constexpr std::string_view kStage = "normalizer";
  ASSIGN_OR_RETURN(const std::string type, TypeOf(step, kStage));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, ArrayOf(step, "normalizers", kStage));
    for (const json& inner : *list) RETURN_IF_ERROR(ReadNormalizerStep(inner, out));
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, JsonString(step, "prepend", ""));
    out.AddPrepend(std::move(prefix));
    return absl::OkStatus();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(step, kStage));
    ASSIGN_OR_RETURN(std::string content, JsonString(step, "content", ""));
    if (pattern.regex) {
      out.AddReplace(*std::move(pattern.regex), std::move(content));
    } else {
      out.AddReplace(std::move(pattern.text), std::move(content));
    }
    return absl::OkStatus();
  }
  if (type == "NFC") {
    out.AddNfc();
    return absl::OkStatus();
  }
  return Unsupported(kStage, type, "NFC, Prepend, Replace, Sequence");
}

absl::Status ReadDecoderStep(const json& step, DecoderTraits& traits) {
  constexpr std::string_view kStage = "decoder";
  ASSIGN_OR_RETURN(const std::string type, TypeOf(step, kStage));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, ArrayOf(step, "decoders", kStage));
    for (const json& inner : *list) RETURN_IF_ERROR(ReadDecoderStep(inner, traits));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    traits.byte_level = true;
    return absl::OkStatus();
  }
  if (type == "ByteFallback") {
    traits.byte_fallback = true;
    return absl::OkStatus();
  }
  if (type == "Fuse") return absl::OkStatus();
  if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const std::string replacement,
                     JsonString(step, "replacement", std::string(kSpaceMarker)));
    ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(step, "add_prefix_space", true));
    ASSIGN_OR_RETURN(const std::string scheme,
                     JsonString(step, "prepend_scheme", add_prefix_space ? "always" : "never"));
    if (replacement != kSpaceMarker) return Invalid(kStage, "Metaspace: replacement: want \"▁\"");
    traits.spaces_for_markers = true;
    traits.strips_leading_space = scheme != "never";
    return absl::OkStatus();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step, kStage));
    ASSIGN_OR_RETURN(const std::string content, JsonString(step, "content", ""));
    if (pattern.text != kSpaceMarker || content != " ") {
      return Invalid(kStage, "Replace: supported is \"▁\" by \" \" only");
    }
    traits.spaces_for_markers = true;
    return absl::OkStatus();
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, JsonString(step, "content", ""));
    const json& start = JsonMember(step, "start");
    const json& stop = JsonMember(step, "stop");
    if (content != " " || start != 1 || stop != 0) {
      return Invalid(kStage, "Strip: supported is one leading space only");
    }
    traits.strips_leading_space = true;
    return absl::OkStatus();
  }
  return Unsupported(kStage, type,
                     "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
}

absl::Status ReadTemplate(const json& step, BpeTokenizerParts& parts) {
  constexpr std::string_view kStage = "post_processor";
  ASSIGN_OR_RETURN(const json* single, ArrayOf(step, "single", kStage));
  bool text_seen = false;
  for (const json& item : *single) {
    if (!JsonMember(item, "Sequence").is_null()) {
      if (text_seen) return Invalid(kStage, "single: want the text once");
      text_seen = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string name,
                     JsonString(JsonMember(item, "SpecialToken"), "id", ""));
    const json& token = JsonMember(JsonMember(step, "special_tokens"), name.c_str());
    ASSIGN_OR_RETURN(const json* ids, ArrayOf(token, "ids", kStage));
    for (const json& id : *ids) {
      const std::optional<int32_t> known = JsonId(id, parts.vocabulary.size());
      if (!known) {
        return Invalid(kStage,
                       absl::StrCat("special_tokens: ", name, ": want ids of the vocabulary"));
      }
      (text_seen ? parts.suffix_ids : parts.prefix_ids).push_back(*known);
    }
  }
  if (!text_seen) return Invalid(kStage, "single: the text is missing");
  return absl::OkStatus();
}

absl::Status ReadPostProcessorStep(const json& step, bool& has_template, BpeTokenizerParts& parts) {
  constexpr std::string_view kStage = "post_processor";
  ASSIGN_OR_RETURN(const std::string type, TypeOf(step, kStage));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, ArrayOf(step, "processors", kStage));
    for (const json& inner : *list)
      RETURN_IF_ERROR(ReadPostProcessorStep(inner, has_template, parts));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") return absl::OkStatus();  // trims offsets only; ours cover the text
  if (type == "TemplateProcessing") {
    if (has_template) return Invalid(kStage, "TemplateProcessing: want it once");
    has_template = true;
    return ReadTemplate(step, parts);
  }
  return Unsupported(kStage, type, "ByteLevel, Sequence, TemplateProcessing");
}

}  // namespace

const json& JsonMember(const json& object, const char* key) {
  static const json* const null = new json();
  if (!object.is_object()) return *null;
  const auto it = object.find(key);
  return it == object.end() ? *null : *it;
}

std::optional<int32_t> JsonId(const json& value, size_t limit) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<int64_t>();  // an unsigned one past int64 comes out negative
  if (id < 0 || id >= static_cast<int64_t>(limit)) return std::nullopt;
  return static_cast<int32_t>(id);
}

absl::StatusOr<bool> JsonBool(const json& object, const char* key, bool fallback) {
  const json& value = JsonMember(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": want a boolean, got ", value.type_name()));
  }
  return value.get<bool>();
}

absl::StatusOr<std::string> JsonString(const json& object, const char* key, std::string fallback) {
  const json& value = JsonMember(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": want a string, got ", value.type_name()));
  }
  return value.get<std::string>();
}

absl::Status ReadNormalizer(const json& normalizer, Normalizer& out) {
  return normalizer.is_null() ? absl::OkStatus() : ReadNormalizerStep(normalizer, out);
}

absl::StatusOr<PreTokenizerTraits> ReadPreTokenizer(const json& pre_tokenizer,
                                                    BpeTokenizerParts& parts) {
  PreTokenizerTraits traits;
  if (!pre_tokenizer.is_null()) {
    RETURN_IF_ERROR(ReadPreTokenizerStep(pre_tokenizer, /*is_first=*/true, parts, traits));
  }
  return traits;
}

absl::StatusOr<DecoderTraits> ReadDecoder(const json& decoder) {
  DecoderTraits traits;
  if (!decoder.is_null()) RETURN_IF_ERROR(ReadDecoderStep(decoder, traits));
  return traits;
}

absl::Status ReadPostProcessor(const json& post_processor, BpeTokenizerParts& parts) {
  bool has_template = false;
  return post_processor.is_null() ? absl::OkStatus()
                                  : ReadPostProcessorStep(post_processor, has_template, parts);
}

}  // namespace quire::engine
