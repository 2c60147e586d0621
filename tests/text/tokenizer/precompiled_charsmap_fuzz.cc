// Parses any bytes as a compiled character map. Expects an error, or a map that turns a text into
// valid UTF-8 with an origin for each byte.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/precompiled_charsmap.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view blob(reinterpret_cast<const char*>(data), size);
  const auto charsmap = quire::text::PrecompiledCharsmap::Create(blob);
  if (!charsmap.ok()) return 0;
  const std::string_view text =
      "a\u0301\u0302 ab\u3000\u1112\u1161\u11ab\uff76\uff9e 1\u00bd\U0001f468\u200d";
  const auto out = charsmap->Apply({.text = text});
  if (!out) return 0;
  QUIRE_CHECK(quire::base::IsValidUtf8(out->text));
  QUIRE_CHECK(out->origins.size() == out->text.size());
  uint32_t last = 0;
  for (const auto& range : out->origins) {
    QUIRE_CHECK(range.begin >= last && range.begin <= range.end && range.end <= text.size());
    last = range.begin;
  }
  return 0;
}
