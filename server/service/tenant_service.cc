// TenantService: the limits and the use of tenants.

#include "base/status_macros.h"
#include "quire/v1/tenant_service.pb.h"
#include "server/identity/grant.h"
#include "server/service/proto_conversion.h"
#include "server/service/services.h"
#include "server/service/unary_call.h"

namespace quire::server {

void AddTenantCalls(const ServiceParts& parts, CallTable& calls) {
  AddAnsweredCall<v1::GetQuotaRequest, v1::Tenant>(
      parts, Rpc::kGetQuota, calls,
      [&parts](const Principal& caller, const v1::GetQuotaRequest&, v1::Tenant& out) {
        out = ToProto(parts.engine.tenant_usage(caller.tenant, caller.limits));
        return absl::OkStatus();
      });
  AddAnsweredCall<v1::ListTenantsRequest, v1::ListTenantsResponse>(
      parts, Rpc::kListTenants, calls,
      [&parts](const Principal& caller, const v1::ListTenantsRequest&,
               v1::ListTenantsResponse& out) -> absl::Status {
        RETURN_IF_ERROR(CheckOperator(parts.trusts_place, caller));
        for (const engine::TenantUsage& usage : parts.engine.tenant_usages().tenants) {
          *out.add_tenants() = ToProto(usage);
        }
        return absl::OkStatus();
      });
}

}  // namespace quire::server
