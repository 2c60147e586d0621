#pragma once

// The fields of a GenerateRequest or a ScoreRequest as flags. One table says which flag is which
// field; types come from the proto's own descriptor, so a flag takes what its field takes.

#include <initializer_list>
#include <string_view>

#include "client/flags.h"
#include "quire/v1/inference_service.pb.h"

namespace quire::client {

// Declares every field that `request` has but the prompt, what is scored, and those whose flags are
// named in `without`. Fields whose
// flag is not given stay absent, so the server's defaults hold. `request` must outlive flags.Parse.
void AddRequestFlags(FlagSet& flags, google::protobuf::Message* request,
                     std::initializer_list<std::string_view> without = {});

}  // namespace quire::client
