#pragma once

namespace quire::base {

// Opens /dev/null in the place of each of the descriptors 0 to 2 that is closed. A program calls
// this at the start of main: otherwise a file of its own would get the number of stdout or
// stderr, and what is printed would be written into that file.
void OpenStandardFiles();

}  // namespace quire::base
