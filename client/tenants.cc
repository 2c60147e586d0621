// quire tenants: shows the limits of tenants, and what they have used.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/command.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

std::string Limit(uint32_t limit) { return limit == 0 ? "none" : absl::StrCat(limit); }

// Returns "left of limit", or "none" without a limit.
std::string Left(bool is_limited, double left, uint32_t limit) {
  return is_limited ? absl::StrFormat("%.0f of %d", left, limit) : "none";
}

// Returns the blocks that the tenant is charged for, and how many they may be.
std::string Blocks(const v1::Tenant& tenant) {
  if (tenant.max_blocks() == 0) return absl::StrFormat("%.1f", tenant.charged_blocks());
  return absl::StrFormat("%.1f of %d", tenant.charged_blocks(), tenant.max_blocks());
}

constexpr char kTitle[] =
    "TENANT                SHARE  RUNNING  WAITING           BLOCKS     REQUESTS/MIN       "
    "TOKENS/MIN  OPEN  "
    "ACCEPTED  REFUSED       TOKENS\n";

std::string Line(const v1::Tenant& tenant) {
  return absl::StrFormat(
      "%-20s  %5d  %7s  %7s  %15s  %15s  %15s  %4d  %8d  %7d  %11d\n",
      tenant.name().empty() ? "(all callers)" : ForTerminal(tenant.name()), tenant.share(),
      Limit(tenant.max_running()), Limit(tenant.max_waiting()), Blocks(tenant),
      Left(tenant.has_requests_left(), tenant.requests_left(), tenant.requests_per_minute()),
      Left(tenant.has_tokens_left(), tenant.tokens_left(), tenant.tokens_per_minute()),
      tenant.num_requests(), tenant.accepted_requests(), tenant.refused_requests(),
      tenant.served_tokens());
}

}  // namespace

int RunTenants(const Args& args, Interrupt& interrupt) {
  CommonFlags common;
  bool own = false;
  base::FlagSet flags("quire tenants [--own] [flags]",
                      "Shows what each tenant may use and has used: its share beside others, the "
                      "most running and waiting requests, the blocks of the KV cache that it is "
                      "charged for, what its rate limits leave, and the requests and tokens since "
                      "the server started. Needs the role operator.");
  flags.Section("Tenants");
  flags.AddSwitch("own", "show the caller's own tenant, which every caller may see", &own);
  AddCommonFlags(flags, &common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  const auto connection = Connect(common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());

  v1::ListTenantsResponse response;
  const absl::Status status = own ? (*connection)->GetQuota({}, response.add_tenants())
                                  : (*connection)->ListTenants({}, &response);
  interrupt.ClearHandler();
  if (!status.ok()) return Fail(status);
  if (common.json) {
    Print(own ? ToJsonLine(response.tenants(0)) : ToJsonLine(response));
    return kExitOk;
  }
  std::string out = kTitle;
  for (const v1::Tenant& tenant : response.tenants()) out += Line(tenant);
  Print(out);
  return kExitOk;
}

}  // namespace quire::client
