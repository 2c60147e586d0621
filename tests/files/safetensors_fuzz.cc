// Parses any bytes as a safetensors file, as a shard index and as config.json. Expects an error or
// a model, never a crash.

#include "tests/files/aligned_bytes.h"
#include "tests/files/exercise_parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quire::testing::AlignedBytes file(text);
  quire::testing::ExerciseSafetensors(file.span());
  quire::testing::ExerciseJson(text);
  return 0;
}
