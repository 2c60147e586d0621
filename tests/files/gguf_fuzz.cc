// Parses any bytes as a GGUF file. Expects an error or a model, never a crash.

#include "tests/files/aligned_bytes.h"
#include "tests/files/exercise_parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::testing::AlignedBytes file({reinterpret_cast<const char*>(data), size});
  quire::testing::ExerciseGguf(file.span());
  return 0;
}
