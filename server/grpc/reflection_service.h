#pragma once

// Serves grpc.reflection.v1 and v1alpha, which tell clients the services of a server and their
// descriptors. The plugin of gRPC 1.51 is not used: it serves only v1alpha, repeats requests of any
// length, and waits without end for clients that do not read.

#include <memory>
#include <string>
#include <vector>

#include "server/grpc/rpc_context.h"

namespace quire::server {

// Returns services that list `names`, health and both versions of reflection, to operators. They
// describe every type that is linked into the program.
std::vector<std::unique_ptr<grpc::Service>> MakeReflectionServices(std::vector<std::string> names,
                                                                   const ServiceParts& parts);

}  // namespace quire::server
