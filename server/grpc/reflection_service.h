#pragma once

// grpc.reflection.v1: the services of a server, and their descriptors. New tools ask this version
// first; gRPC 1.51's own plugin knows only v1alpha.

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace quire::server {

// The service lists `names`, health and both versions of reflection. It describes every type that
// is linked in.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> names);

}  // namespace quire::server
