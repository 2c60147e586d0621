#include "server/grpc/reflection_service.h"

#include <set>
#include <utility>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

#include "base/status_macros.h"
#include "server/call/egress.h"

namespace quire::server {
namespace {

namespace pb = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// No honest request is longer, and an answer repeats its request.
constexpr size_t kMaxRequestBytes = 512;

void NotFound(const std::string& what, pb::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
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
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("message_request: want one, got none");
      break;
  }
  return response;
}

// Handles one reflection call. Reads a request, writes its answer, and reads the next request.
// Deletes itself when the call is done.
class Call final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Call(const ServiceParts& parts, const std::vector<std::string>& names,
       grpc::CallbackServerContext& context)
      : parts_(parts), names_(names), context_(context) {
    if (const absl::Status status = CheckCaller(); !status.ok()) {
      Finish(ToGrpcStatus(status));
    } else {
      StartRead(&in_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    const absl::Status status = Answer();
    if (!status.ok()) return Finish(ToGrpcStatus(status));
    linger_ = std::make_shared<AnswerLinger>(parts_.egress, parts_.linger,
                                             [this] { context_.TryCancel(); });
    linger_->Answered();
    StartWrite(&out_);
  }
  void OnWriteDone(bool ok) override {
    linger_->Done();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&in_);
  }
  void OnDone() override { delete this; }

 private:
  // The door's gate has asked the same. Neither relies on the other.
  absl::Status CheckCaller() const {
    ASSIGN_OR_RETURN(const PrincipalPtr caller, AuthenticateCaller(context_, parts_));
    return CheckOperator(parts_.trusts_place, *caller);
  }

  absl::Status Answer() {
    if (in_.Length() > kMaxRequestBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("message: want at most %d bytes for a reflection request, got %d",
                          kMaxRequestBytes, in_.Length()));
    }
    pb::ServerReflectionRequest request;
    RETURN_IF_ERROR(ParseMessage(parts_, in_, request));
    SerializeMessage(AnswerTo(names_, request), out_);
    return absl::OkStatus();
  }

  const ServiceParts& parts_;              // not owned
  const std::vector<std::string>& names_;  // owned by the service, which outlives its calls
  grpc::CallbackServerContext& context_;   // not owned; lives until OnDone
  grpc::ByteBuffer in_, out_;
  std::shared_ptr<AnswerLinger> linger_;  // of the write in flight
};

// `Base` is the service of one version of reflection. All versions have the same messages.
template <typename Base>
class ReflectionService final
    : public Base::template WithRawCallbackMethod_ServerReflectionInfo<typename Base::Service> {
 public:
  ReflectionService(std::vector<std::string> names, const ServiceParts& parts)
      : names_(std::move(names)), parts_(parts) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override {
    return new Call(parts_, names_, *context);
  }

 private:
  const std::vector<std::string> names_;
  const ServiceParts parts_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeReflectionServices(std::vector<std::string> names,
                                                                   const ServiceParts& parts) {
  // gRPC serves health without its descriptors. Using the descriptors here makes the linker keep
  // them.
  for (const FileDescriptor* file : {grpc::health::v1::HealthCheckRequest::descriptor()->file(),
                                     pb::ServerReflectionRequest::descriptor()->file(),
                                     DescriptorPool::generated_pool()->FindFileByName(
                                         "grpc/reflection/v1alpha/reflection.proto")}) {
    names.push_back(file->service(0)->full_name());
  }
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<ReflectionService<pb::ServerReflection>>(names, parts));
  services.push_back(
      std::make_unique<ReflectionService<grpc::reflection::v1alpha::ServerReflection>>(names,
                                                                                       parts));
  return services;
}

}  // namespace quire::server
