// quire models: shows the models that are served.

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/command.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

std::string Describe(const v1::ModelInfo& model) {
  std::string out = absl::StrFormat("%s\n", ForTerminal(model.name()));
  absl::StrAppendFormat(
      &out, "  architecture  %s, %.1fM parameters, %s weights (%.1f MiB)\n",
      ForTerminal(model.architecture()), static_cast<double>(model.num_parameters()) / 1e6,
      ForTerminal(model.weight_type()), static_cast<double>(model.weight_bytes()) / (1 << 20));
  absl::StrAppendFormat(
      &out, "  shape         %d layers, hidden %d, %d heads, %d KV heads, head_dim %d\n",
      model.num_layers(), model.hidden_size(), model.num_heads(), model.num_kv_heads(),
      model.head_dim());
  absl::StrAppendFormat(&out, "  context       %d tokens served, %d trained\n",
                        model.max_model_len(), model.max_position_embeddings());
  absl::StrAppendFormat(&out, "  activations   %s\n", model.activation_dtype());
  absl::StrAppendFormat(&out, "  KV cache      %s, %d bytes a token\n", model.kv_dtype(),
                        model.kv_bytes_per_token());
  absl::StrAppendFormat(&out, "  vocabulary    %d tokens, %s, ends at %s\n", model.vocab_size(),
                        model.has_bos_id() ? absl::StrFormat("begins with %d", model.bos_id())
                                           : std::string("nothing put in front"),
                        model.end_ids().empty() ? "none" : absl::StrJoin(model.end_ids(), ","));
  absl::StrAppendFormat(&out, "  chat          %s\n",
                        model.has_chat_template() ? "has a template" : "no template");
  return out;
}

}  // namespace

int RunModels(const Args& args, Interrupt& interrupt) {
  CommonFlags common;
  std::optional<std::string> name;
  base::FlagSet flags("quire models [flags]", "Shows the models that are served.");
  flags.Section("Model");
  flags.Add("model", "NAME", "show only this model (default: all)", &name);
  AddCommonFlags(flags, &common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  const auto connection = Connect(common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());

  absl::Status status;
  std::string out;
  if (name.has_value()) {
    v1::GetModelInfoRequest request;
    request.set_model(*name);
    v1::GetModelInfoResponse response;
    status = (*connection)->GetModelInfo(request, &response);
    out = common.json ? ToJsonLine(response) : Describe(response.model());
  } else {
    v1::ListModelsResponse response;
    status = (*connection)->ListModels({}, &response);
    if (common.json) {
      out = ToJsonLine(response);
    } else {
      for (const v1::ModelInfo& model : response.models()) out += Describe(model);
    }
  }
  interrupt.ClearHandler();
  if (!status.ok()) return Fail(status);
  Print(out);
  return kExitOk;
}

}  // namespace quire::client
