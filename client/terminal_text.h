#pragma once

// Text for a terminal. Names come from other callers of the server, so a command prints none of
// them as it is.

#include <string>
#include <string_view>

namespace quire::client {

// Returns `text` on one line, without characters that a terminal takes for commands.
std::string ForTerminal(std::string_view text);

// Returns the first `columns` characters of `line`, none of which is wider than one column.
std::string Cut(std::string_view line, int columns);

// Returns the first `columns` characters of `line`, and spaces up to that width.
std::string Padded(std::string_view line, int columns);

}  // namespace quire::client
