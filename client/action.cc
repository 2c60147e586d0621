#include "client/action.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace quire::client {

void Action::AddName(std::string kind, std::string* name) {
  flags_.AddOperand(absl::AsciiStrToUpper(kind), absl::StrCat("name of the ", kind), name);
  kind_ = std::move(kind);
}

void Action::AddText(std::string flag, std::string help, std::function<void(std::string)> set) {
  flags_.Add(std::move(flag), "TEXT", std::move(help),
             [set = std::move(set)](std::string_view text) {
               set(std::string(text));
               return absl::OkStatus();
             });
}

void Action::AddTtl(std::string help, google::protobuf::Duration* ttl) {
  flags_.Add("ttl", "TIME", std::move(help), [ttl](std::string_view text) -> absl::Status {
    absl::Duration value;
    RETURN_IF_ERROR(base::ParseValue(text, &value));
    ttl->set_seconds(absl::IDivDuration(value, absl::Seconds(1), &value));
    ttl->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(value)));
    return absl::OkStatus();
  });
}

int Action::Run(const Args& args, Interrupt& interrupt, const std::function<absl::Status()>& check,
                const std::function<absl::Status(Connection&)>& run) {
  AddCommonFlags(flags_, &common_);
  if (const auto exit = ParseFlags(flags_, args)) return *exit;
  absl::Status status = check();
  if (status.ok() && !kind_.empty() && flags_.num_operands() != 1) {
    status = absl::InvalidArgumentError(absl::StrCat("give the name of a ", kind_));
  }
  if (!status.ok()) return FailUsage(flags_, status);
  const auto connection = Connect(common_, interrupt);
  if (!connection.ok()) return FailUsage(flags_, connection.status());
  return Finish(run(**connection), interrupt);
}

uint32_t Clamped(uint64_t number) {
  return static_cast<uint32_t>(std::min<uint64_t>(number, std::numeric_limits<uint32_t>::max()));
}

int RunAction(std::span<const NamedAction> actions, std::string_view usage, const Args& args,
              Interrupt& interrupt) {
  const std::string name = args.empty() ? "" : args[0];
  if (name == "--help" || name == "-h" || name == "help") {
    Print(usage);
    return kExitOk;
  }
  const auto action = std::ranges::find(actions, name, &NamedAction::name);
  if (action == actions.end()) {
    std::cerr << usage;
    return kExitUsage;
  }
  return action->run(Args(args.begin() + 1, args.end()), interrupt);
}

}  // namespace quire::client
