#pragma once

// Serves grpc.reflection.v1, which tells clients the services of a server and their descriptors.
// New tools try v1 first, but the reflection plugin of gRPC 1.51 serves only v1alpha.

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace quire::server {

// Returns a service that lists `names`, health and both versions of reflection. It describes every
// type that is linked into the program.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> names);

}  // namespace quire::server
