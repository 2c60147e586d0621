#pragma once

// Flags for the fields of a GenerateRequest or a ScoreRequest. One table maps flags to fields. The
// types come from the proto's descriptor, so a flag takes the same values as the field.

#include <initializer_list>
#include <string_view>

#include "base/flags/flag_set.h"
#include "quire/v1/inference_service.pb.h"

namespace quire::client {

// Declares a flag for every field that `request` has, except the prompt, the continuations, and the
// fields whose flags are named in `without`. A field whose flag is not given stays absent, so the
// server's default applies. `request` must outlive flags.Parse.
void AddRequestFlags(base::FlagSet& flags, google::protobuf::Message* request,
                     std::initializer_list<std::string_view> without = {});

// Sets a field of an enum type to the value that `text` names. The name of a value begins with that
// of its type, which `text` leaves out: "never" for EARLY_STOPPING_NEVER. Returns InvalidArgument
// with the known names for any other text.
absl::Status SetEnum(google::protobuf::Message* message,
                     const google::protobuf::FieldDescriptor* field, std::string_view text);

}  // namespace quire::client
