// Parses any bytes as a GGUF file, and as the parts of a model, of which each begins with "GGUF".
// Expects an error or a model, never a crash.

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "files/gguf.h"
#include "tests/files/aligned_bytes.h"
#include "tests/files/exercise_parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const quire::testing::AlignedBytes file(input);
  quire::testing::ExerciseGguf(file.span());

  std::vector<std::unique_ptr<quire::testing::AlignedBytes>> parts;
  std::vector<std::span<const std::byte>> spans;
  for (size_t begin = 0; begin < size;) {
    const size_t end = std::min(size, input.find(quire::files::kGgufMagic, begin + 1));
    parts.push_back(
        std::make_unique<quire::testing::AlignedBytes>(input.substr(begin, end - begin)));
    spans.push_back(parts.back()->span());
    begin = end;
  }
  if (spans.size() > 1) quire::testing::ExerciseGgufParts(spans);
  return 0;
}
