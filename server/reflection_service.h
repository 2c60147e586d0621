#pragma once

// grpc.reflection.v1: what a server serves, and the descriptors of it. New tools ask this version
// first; gRPC 1.51's own plugin knows v1alpha alone.

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace quire::server {

// Lists `names`, health and both versions of reflection; describes every type that is linked in.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> names);

}  // namespace quire::server
