#include "client/request_flags.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace quire::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct FieldFlag {
  const char* flag;  // nullptr: a section titled `help`
  const char* path;  // of the field in the request
  const char* value_name;
  const char* help;
};

constexpr FieldFlag kFieldFlags[] = {
    {nullptr, "", "", "Request"},
    {"model", "model", "NAME", "name of the model (default: the served one)"},
    {"request_id", "request_id", "ID",
     "names the request in logs and for Abort (default: made by the server)"},
    {"session", "session_name", "NAME",
     "a turn of this session: the prompt has only what is new, and may be absent"},
    {"priority", "sched.priority", "P", "priority, -100..100; larger is served first (default 0)"},
    {"tenant", "sched.tenant", "NAME", "tenant of the request (default: the caller's)"},
    {"prefix", "prefix_name", "NAME",
     "named prefix that the prompt follows: prefixes/... (default: none)"},
    {"cache_salt", "cache.salt", "TEXT",
     "share cached prefixes only with requests that have this salt"},
    {"bypass_cache_read", "cache.bypass_read", "", "compute the whole prompt"},
    {"bypass_cache_write", "cache.bypass_write", "", "add nothing to the cache"},
    {"window_tokens", "cache.window_tokens", "N",
     "endless stream: keep up to this many most recent tokens in the cache; 0: all (default 0)"},
    {"sink_tokens", "cache.sink_tokens", "N",
     "with --window_tokens: keep this many first tokens too (default 0)"},

    {nullptr, "", "", "Sampling"},
    {"temperature", "sampling.temperature", "T", "0..100; 0 is greedy (default 1)"},
    {"top_k", "sampling.top_k", "K", "keep the K most likely tokens; 0: all (default 0)"},
    {"typical_p", "sampling.typical_p", "P",
     "locally typical sampling, (0, 1]; 1: off (default 1)"},
    {"top_p", "sampling.top_p", "P",
     "keep the fewest most likely tokens that sum to this, (0, 1]; 1: off (default 1)"},
    {"min_p", "sampling.min_p", "P",
     "drop tokens less likely than P times the best one, 0..1; 0: off (default 0)"},
    {"presence_penalty", "sampling.presence_penalty", "X",
     "-2..2, subtracted from the logit of each token generated before (default 0)"},
    {"frequency_penalty", "sampling.frequency_penalty", "X",
     "-2..2, subtracted for each time the token was generated (default 0)"},
    {"repetition_penalty", "sampling.repetition_penalty", "X",
     "(0, 10], weakens tokens in the prompt and output; 1: off (default 1)"},
    {"penalty_last_n", "sampling.penalty_last_n", "N",
     "how many tokens the penalties look back; 0: off (default: all)"},
    {"seed", "sampling.seed", "S",
     "the same seed gives the same answer (default: drawn by the server)"},
    {"n", "sampling.n", "N", "samples of the prompt, 1..64; sample k uses seed + k (default 1)"},
    {"best_of", "sampling.best_of", "N",
     "draw N samples, --n..64, and keep the --n best by mean log probability (default: --n)"},
    {"beam_width", "sampling.beam.width", "K",
     "search with K beams, 2..32, instead of drawing (default: draw)"},
    {"beam_length_penalty", "sampling.beam.length_penalty", "X",
     "-5..5; above 0 longer answers gain (default 1)"},
    {"beam_early_stopping", "sampling.beam.early_stopping", "WHEN",
     "heuristic, always or never, as in transformers (default heuristic)"},
    {"beam_return", "sampling.beam.num_return", "N", "answers to print, 1..K (default 1)"},
    {"logit_bias", "sampling.logit_bias", "ID:BIAS",
     "add BIAS, -100..100, to the logit of token ID; repeatable"},
    {"allowed_token_ids", "sampling.allowed_token_ids", "IDS",
     "draw only these tokens, e.g. 5,6,7"},

    {nullptr, "", "", "When to stop"},
    {"max_tokens", "stop.max_tokens", "N",
     "most tokens of output per sample; at most to the context's end (default)"},
    {"min_tokens", "stop.min_tokens", "N", "fewest tokens of output per sample (default 0)"},
    {"stop", "stop.stop", "TEXT", "end where this text appears; repeatable"},
    {"stop_token_ids", "stop.stop_token_ids", "IDS", "end at these tokens, e.g. 1,2"},
    {"include_stop", "stop.include_stop", "", "keep the stop text or token in the output"},
    {"ignore_eos", "stop.ignore_eos", "", "do not end at the model's own end tokens"},

    {nullptr, "", "", "Output"},
    {"text", "output.text", "", "=false leaves out the text (default true)"},
    {"return_token_ids", "output.token_ids", "", "return the token ids (default: with --json)"},
    {"logprobs", "output.top_logprobs", "N",
     "return log probabilities of each token and of the N most likely, 0..20"},
    {"prompt_logprobs", "output.prompt_logprobs", "N",
     "return the same for the prompt's tokens; computes the whole prompt"},
    {"logprob_text", "output.logprob_text", "",
     "return each token's bytes and rank with its log probability"},
    {"echo", "output.echo", "", "put the prompt's text before the output"},
    {"usage_per_chunk", "output.usage_per_chunk", "", "return token counts with every message"},
    {"skip_special_tokens", "output.skip_special_tokens", "",
     "=false shows special tokens in the text (default true)"},
};

// Parses `text` as a T and calls `put` with the value. Returns an error when `text` is not a T.
template <typename T, typename Put>
absl::Status ParseInto(std::string_view text, Put put) {
  T value{};
  RETURN_IF_ERROR(base::ParseValue(text, &value));
  put(value);
  return absl::OkStatus();
}

absl::Status SetScalar(Message* message, const FieldDescriptor* field, std::string_view text) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return ParseInto<bool>(text, [&](bool v) { reflection->SetBool(message, field, v); });
    case FieldDescriptor::CPPTYPE_INT32:
      return ParseInto<int32_t>(text, [&](int32_t v) { reflection->SetInt32(message, field, v); });
    case FieldDescriptor::CPPTYPE_UINT32:
      return ParseInto<uint32_t>(text,
                                 [&](uint32_t v) { reflection->SetUInt32(message, field, v); });
    case FieldDescriptor::CPPTYPE_UINT64:
      return ParseInto<uint64_t>(text,
                                 [&](uint64_t v) { reflection->SetUInt64(message, field, v); });
    case FieldDescriptor::CPPTYPE_FLOAT:
      return ParseInto<float>(text, [&](float v) { reflection->SetFloat(message, field, v); });
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(message, field, std::string(text));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(message, field, text);
    default:
      QUIRE_CHECK(false) << field->full_name() << ": no flag can set a " << field->cpp_type_name();
  }
  return absl::OkStatus();
}

// Adds the value of one use of a flag to a repeated field. For a field of strings the whole text is
// one value, even if it contains commas. For a field of numbers the text is a list of numbers.
absl::Status AddRepeated(Message* message, const FieldDescriptor* field, std::string_view text) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    reflection->AddString(message, field, std::string(text));
    return absl::OkStatus();
  }
  QUIRE_CHECK(field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) << field->full_name();
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, base::ParseIdList(text));
  for (const int32_t id : ids) reflection->AddInt32(message, field, id);
  return absl::OkStatus();
}

absl::Status AddLogitBias(v1::SamplingParams* sampling, std::string_view text) {
  const size_t colon = text.find(':');
  int32_t id = 0;
  float bias = 0;
  if (colon == text.npos || !base::ParseValue(text.substr(0, colon), &id).ok() ||
      !base::ParseValue(text.substr(colon + 1), &bias).ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("want ID:BIAS such as 13:-2.5, got \"%s\"", text));
  }
  (*sampling->mutable_logit_bias())[id] = bias;
  return absl::OkStatus();
}

absl::Status SetPath(Message* message, std::string_view path, std::string_view text) {
  while (true) {
    const size_t dot = path.find('.');
    const FieldDescriptor* field =
        message->GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
    QUIRE_CHECK(field != nullptr) << "no field " << path;
    if (field->is_map()) return AddLogitBias(dynamic_cast<v1::SamplingParams*>(message), text);
    if (field->is_repeated()) return AddRepeated(message, field, text);
    if (dot == path.npos) return SetScalar(message, field, text);
    message = message->GetReflection()->MutableMessage(message, field);
    path.remove_prefix(dot + 1);
  }
}

}  // namespace

absl::Status SetEnum(Message* message, const FieldDescriptor* field, std::string_view text) {
  const google::protobuf::EnumDescriptor& values = *field->enum_type();
  const std::string prefix(absl::StripSuffix(values.value(0)->name(), "UNSPECIFIED"));
  const google::protobuf::EnumValueDescriptor* value =
      values.FindValueByName(absl::StrCat(prefix, absl::AsciiStrToUpper(std::string(text))));
  if (value != nullptr && value->number() != 0) {
    message->GetReflection()->SetEnum(message, field, value);
    return absl::OkStatus();
  }
  std::string known;
  for (int i = 1; i < values.value_count(); ++i) {
    const std::string name = values.value(i)->name().substr(prefix.size());
    absl::StrAppend(&known, i > 1 ? ", " : "", absl::AsciiStrToLower(name));
  }
  return absl::InvalidArgumentError(absl::StrFormat("want one of %s, got \"%s\"", known, text));
}

void AddRequestFlags(base::FlagSet& flags, Message* request,
                     std::initializer_list<std::string_view> without) {
  const char* section = nullptr;  // title of a section that has no flag yet
  for (const FieldFlag& entry : kFieldFlags) {
    if (entry.flag == nullptr) {
      section = entry.help;
      continue;
    }
    const std::string_view path = entry.path;
    const std::string part(path.substr(0, path.find('.')));
    if (request->GetDescriptor()->FindFieldByName(part) == nullptr) continue;
    if (section != nullptr) flags.Section(std::exchange(section, nullptr));
    if (std::find(without.begin(), without.end(), entry.flag) != without.end()) continue;
    base::Setter setter = [request, path](std::string_view text) {
      return SetPath(request, path, text);
    };
    if (entry.value_name[0] == '\0') {
      flags.AddSwitch(entry.flag, entry.help, std::move(setter));
    } else {
      flags.Add(entry.flag, entry.value_name, entry.help, std::move(setter));
    }
  }
  const auto add_habits = [&](std::string flag, std::initializer_list<std::string_view> names) {
    if (flags.Find(flag) != nullptr) flags.AddHabits(std::move(flag), names);
  };
  add_habits("max_tokens", {"n_predict", "n", "max_new_tokens", "predict"});
  add_habits("model", {"m"});
  add_habits("temperature", {"temp", "t"});
  add_habits("repetition_penalty", {"repeat_penalty"});
  add_habits("penalty_last_n", {"repeat_last_n"});
}

}  // namespace quire::client
