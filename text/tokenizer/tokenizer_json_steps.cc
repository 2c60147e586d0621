#include "text/tokenizer/tokenizer_json_steps.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer_json_members.h"

namespace quire::text {
namespace {

using nlohmann::json;

absl::Status ReadDecoderStep(const json& step, DecoderTraits& traits) {
  constexpr std::string_view kStage = "decoder";
  ASSIGN_OR_RETURN(const std::string type, StepType(step, kStage));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, StepArray(step, "decoders", kStage));
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
    if (replacement != kSpaceMarker)
      return InvalidStep(kStage, "Metaspace: replacement: want \"▁\"");
    traits.spaces_for_markers = true;
    traits.strips_leading_space = scheme != "never";
    return absl::OkStatus();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(const StepPattern pattern, ReadStepPattern(step, kStage));
    ASSIGN_OR_RETURN(const std::string content, JsonString(step, "content", ""));
    if (pattern.text != kSpaceMarker || content != " ") {
      return InvalidStep(kStage, "Replace: supported is \"▁\" by \" \" only");
    }
    traits.spaces_for_markers = true;
    return absl::OkStatus();
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, JsonString(step, "content", ""));
    const json& start = JsonMember(step, "start");
    const json& stop = JsonMember(step, "stop");
    if (content != " " || start != 1 || stop != 0) {
      return InvalidStep(kStage, "Strip: supported is one leading space only");
    }
    traits.strips_leading_space = true;
    return absl::OkStatus();
  }
  return UnsupportedStep(kStage, type,
                         "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
}

absl::Status ReadTemplate(const json& step, TokenizerParts& parts) {
  constexpr std::string_view kStage = "post_processor";
  ASSIGN_OR_RETURN(const json* single, StepArray(step, "single", kStage));
  bool text_seen = false;
  for (const json& item : *single) {
    if (!JsonMember(item, "Sequence").is_null()) {
      if (text_seen) return InvalidStep(kStage, "single: want the text once");
      text_seen = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string name,
                     JsonString(JsonMember(item, "SpecialToken"), "id", ""));
    const json& token = JsonMember(JsonMember(step, "special_tokens"), name.c_str());
    ASSIGN_OR_RETURN(const json* ids, StepArray(token, "ids", kStage));
    for (const json& id : *ids) {
      const std::optional<int32_t> known = JsonId(id, parts.vocabulary.size());
      if (!known) {
        return InvalidStep(kStage,
                           absl::StrCat("special_tokens: ", name, ": want ids of the vocabulary"));
      }
      (text_seen ? parts.frame.suffix_ids : parts.frame.prefix_ids).push_back(*known);
    }
  }
  if (!text_seen) return InvalidStep(kStage, "single: the text is missing");
  return absl::OkStatus();
}

absl::Status ReadPostProcessorStep(const json& step, bool& has_template, TokenizerParts& parts) {
  constexpr std::string_view kStage = "post_processor";
  ASSIGN_OR_RETURN(const std::string type, StepType(step, kStage));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json* list, StepArray(step, "processors", kStage));
    for (const json& inner : *list)
      RETURN_IF_ERROR(ReadPostProcessorStep(inner, has_template, parts));
    return absl::OkStatus();
  }
  // As a post-processor, ByteLevel only trims offsets. Quire does not trim offsets.
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "TemplateProcessing") {
    if (has_template) return InvalidStep(kStage, "TemplateProcessing: want it once");
    has_template = true;
    return ReadTemplate(step, parts);
  }
  return UnsupportedStep(kStage, type, "ByteLevel, Sequence, TemplateProcessing");
}

}  // namespace

absl::StatusOr<DecoderTraits> ReadDecoder(const json& decoder) {
  DecoderTraits traits;
  if (!decoder.is_null()) RETURN_IF_ERROR(ReadDecoderStep(decoder, traits));
  return traits;
}

absl::Status ReadPostProcessor(const json& post_processor, TokenizerParts& parts) {
  bool has_template = false;
  return post_processor.is_null() ? absl::OkStatus()
                                  : ReadPostProcessorStep(post_processor, has_template, parts);
}

}  // namespace quire::text
