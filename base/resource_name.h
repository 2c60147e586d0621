#pragma once

// Names of resources that clients can neither guess nor choose: a collection, a slash, and 128
// random bits in base32, as in "sessions/0c4fd1mhzwxfmkbd6yns9zq3tr".

#include <string>
#include <string_view>

namespace quire::base {

// Returns a new name in `collection`, such as "sessions".
std::string NewResourceName(std::string_view collection);

// Returns true if `name` has the form of a name in `collection`.
bool IsResourceName(std::string_view collection, std::string_view name);

}  // namespace quire::base
