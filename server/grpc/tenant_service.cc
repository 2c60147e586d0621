// TenantService: the limits and the use of tenants.

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "quire/v1/tenant_service.grpc.pb.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/unary_reactor.h"

namespace quire::server {
namespace {

using RawTenantService = v1::TenantService::WithRawCallbackMethod_GetQuota<
    v1::TenantService::WithRawCallbackMethod_ListTenants<v1::TenantService::Service>>;

class TenantService final : public RawTenantService {
 public:
  explicit TenantService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* GetQuota(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return AnswerCall<v1::GetQuotaRequest, v1::Tenant>(
        parts_, *context, Rpc::kGetQuota, *request, *response,
        [this](const Principal& caller, const v1::GetQuotaRequest&, v1::Tenant& out) {
          out = ToProto(parts_.engine.tenant_usage(caller.tenant, caller.limits));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListTenants(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return AnswerCall<v1::ListTenantsRequest, v1::ListTenantsResponse>(
        parts_, *context, Rpc::kListTenants, *request, *response,
        [this](const Principal& caller, const v1::ListTenantsRequest&,
               v1::ListTenantsResponse& out) -> absl::Status {
          RETURN_IF_ERROR(CheckOperator(parts_.trusts_place, caller));
          for (const engine::TenantUsage& usage : parts_.engine.tenant_usages().tenants) {
            *out.add_tenants() = ToProto(usage);
          }
          return absl::OkStatus();
        });
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTenantService(const ServiceParts& parts) {
  return std::make_unique<TenantService>(parts);
}

}  // namespace quire::server
