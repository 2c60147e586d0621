#pragma once

// SessionService.Converse: the turns of one session, in one call.

#include "server/call/call.h"
#include "server/service/services.h"

namespace quire::server {

Call* NewConverseCall(const ServiceParts& parts, Transport& transport);

}  // namespace quire::server
