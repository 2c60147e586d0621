#pragma once

// The name in a client's certificate. A DNS name, a URI and an e-mail address of the same text are
// different names, because an authority may let different people have them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::server {

enum class NameKind : uint8_t { kDns, kUri, kEmail, kIp, kCommon };

// Returns the kind and the text, as in "URI:spiffe://a/b". The kinds are DNS, URI, email, IP and CN
// (common name). Returns "" for an empty text.
std::string TypedName(NameKind kind, std::string_view text);

// Returns true if `name` begins with a kind.
bool IsTypedName(std::string_view name);

// Returns the text of a typed name without its kind, if the text reads as a name of that kind. So
// no two alternative names have the same plain name. A common name may read as anything but a typed
// name. Returns nullopt for all other names.
std::optional<std::string_view> PlainName(std::string_view typed_name);

}  // namespace quire::server
