#include "server/grpc/reflection_service.h"

#include <set>
#include <utility>

#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"

namespace quire::server {
namespace {

namespace pb = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

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

pb::ServerReflectionResponse Answer(const std::vector<std::string>& names,
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
class Call final
    : public grpc::ServerBidiReactor<pb::ServerReflectionRequest, pb::ServerReflectionResponse> {
 public:
  explicit Call(const std::vector<std::string>& names) : names_(names) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = Answer(names_, request_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& names_;  // owned by the service, which outlives its calls
  pb::ServerReflectionRequest request_;
  pb::ServerReflectionResponse response_;
};

class ReflectionService final : public pb::ServerReflection::CallbackService {
 public:
  explicit ReflectionService(std::vector<std::string> names) : names_(std::move(names)) {}

  grpc::ServerBidiReactor<pb::ServerReflectionRequest, pb::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Call(names_);
  }

 private:
  const std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> names) {
  // gRPC serves health without its descriptors. Using the descriptors here makes the linker keep
  // them.
  for (const FileDescriptor* file : {grpc::health::v1::HealthCheckRequest::descriptor()->file(),
                                     pb::ServerReflectionRequest::descriptor()->file()}) {
    names.push_back(file->service(0)->full_name());
  }
  names.push_back("grpc.reflection.v1alpha.ServerReflection");
  return std::make_unique<ReflectionService>(std::move(names));
}

}  // namespace quire::server
