// grpc.reflection.v1 and v1alpha.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"

#include "base/status_macros.h"
#include "server/call/egress.h"
#include "server/identity/grant.h"
#include "server/service/parsing.h"
#include "server/service/services.h"

namespace quire::server {
namespace {

namespace pb = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// No honest request is longer, and an answer repeats its request.
constexpr size_t kMaxRequestBytes = 512;

void NotFound(const std::string& what, pb::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(static_cast<int>(absl::StatusCode::kNotFound));
  response.mutable_error_response()->set_error_message(absl::StrCat("not found: ", what));
}

// Adds the files that `file` imports, and then `file`.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
             pb::FileDescriptorResponse& out) {
  if (!added.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, out);
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(out.add_file_descriptor_proto());
}

void AnswerFile(const FileDescriptor* file, const std::string& asked,
                pb::ServerReflectionResponse& response) {
  if (file == nullptr) return NotFound(asked, response);
  std::set<const FileDescriptor*> added;
  AddFile(*file, added, *response.mutable_file_descriptor_response());
}

const FileDescriptor* FileOfExtension(const DescriptorPool& pool,
                                      const pb::ExtensionRequest& request) {
  const auto* type = pool.FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const auto* extension = pool.FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

void AnswerExtensionNumbers(const DescriptorPool& pool, const std::string& name,
                            pb::ServerReflectionResponse& response) {
  const auto* type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return NotFound(name, response);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  auto& out = *response.mutable_all_extension_numbers_response();
  out.set_base_type_name(type->full_name());
  for (const FieldDescriptor* extension : extensions) out.add_extension_number(extension->number());
}

pb::ServerReflectionResponse AnswerTo(const std::vector<std::string>& names,
                                      const pb::ServerReflectionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  pb::ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case pb::ServerReflectionRequest::kListServices:
      for (const std::string& name : names) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case pb::ServerReflectionRequest::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                 response);
      break;
    case pb::ServerReflectionRequest::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                 request.file_containing_symbol(), response);
      break;
    case pb::ServerReflectionRequest::kFileContainingExtension:
      AnswerFile(FileOfExtension(pool, request.file_containing_extension()),
                 request.file_containing_extension().ShortDebugString(), response);
      break;
    case pb::ServerReflectionRequest::kAllExtensionNumbersOfType:
      AnswerExtensionNumbers(pool, request.all_extension_numbers_of_type(), response);
      break;
    case pb::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(
          static_cast<int>(absl::StatusCode::kInvalidArgument));
      response.mutable_error_response()->set_error_message("message_request: want one, got none");
      break;
  }
  return response;
}

// Reads a request, writes its answer, and reads the next request. All versions of reflection have
// the same messages.
class ReflectionCall final : public Call {
 public:
  ReflectionCall(const ServiceParts& parts, std::shared_ptr<const std::vector<std::string>> names,
                 Transport& transport)
      : Call(parts.call, /*rpc=*/std::nullopt, transport),
        parts_(parts),
        names_(std::move(names)) {}

  void Start() override {
    const absl::Status status = CheckCaller();
    if (!status.ok()) return End(status);
    transport().Read();
  }
  void OnMessage(std::string_view bytes) override {
    pb::ServerReflectionRequest request;
    const absl::Status status = Parse(bytes, request);
    if (!status.ok()) return End(status);
    write_linger_ = std::make_shared<AnswerLinger>(parts_.call.egress, parts_.call.linger,
                                                   [this] { transport().Cancel(); });
    write_linger_->Answered();
    transport().Write(AnswerTo(*names_, request));
  }
  void OnNoMessage(bool is_cancelled) override {
    End(is_cancelled ? CancelStatus() : absl::OkStatus());
  }
  void OnWritten(bool ok) override {
    write_linger_->Done();
    if (!ok) return End(engine::CancelledStatus());
    transport().Read();
  }

 private:
  // The door's gate has asked the same. Neither relies on the other.
  absl::Status CheckCaller() {
    RETURN_IF_ERROR(Authenticate());
    return CheckOperator(parts_.trusts_place, caller());
  }

  absl::Status Parse(std::string_view bytes, pb::ServerReflectionRequest& request) const {
    if (bytes.size() > kMaxRequestBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("message: want at most %d bytes for a reflection request, got %d",
                          kMaxRequestBytes, bytes.size()));
    }
    return ParseMessage(bytes, parts_.max_parsed_bytes, request);
  }

  const ServiceParts& parts_;  // not owned
  const std::shared_ptr<const std::vector<std::string>> names_;
  std::shared_ptr<AnswerLinger> write_linger_;  // of the write in flight
};

}  // namespace

void AddReflectionCalls(const ServiceParts& parts, std::vector<std::string> names,
                        CallTable& calls) {
  // Using the descriptors here makes the linker keep them: gRPC serves health without its own, and
  // v1alpha has no message that is used elsewhere.
  const FileDescriptor* const v1 = pb::ServerReflectionRequest::descriptor()->file();
  const FileDescriptor* const v1alpha = DescriptorPool::generated_pool()->FindFileByName(
      descriptor_table_grpc_2freflection_2fv1alpha_2freflection_2eproto.filename);
  for (const FileDescriptor* file :
       {grpc::health::v1::HealthCheckRequest::descriptor()->file(), v1, v1alpha}) {
    names.push_back(file->service(0)->full_name());
  }
  const auto shared = std::make_shared<const std::vector<std::string>>(std::move(names));
  for (const FileDescriptor* file : {v1, v1alpha}) {
    calls.Add(absl::StrCat("/", file->service(0)->full_name(), "/ServerReflectionInfo"),
              [&parts, shared](Transport& transport) -> Call* {
                return new ReflectionCall(parts, shared, transport);
              });
  }
}

}  // namespace quire::server
