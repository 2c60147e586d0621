// Parses and renders any template within small limits. The context has values of every type.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nlohmann/json.hpp"

#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using quire::jinja::Template;
  static const auto* const kContext = new nlohmann::ordered_json(nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": "be <b>"}, {"role": "user", "content": "wörld 你"}],
          "d": {"a": 1, "b": [1, 2.5, null, true, "x"]}, "l": [3, 1, 2], "s": "a b", "n": null, "i": 7, "f": 0.5})"));
  const auto parsed = Template::Create({reinterpret_cast<const char*>(data), size});
  if (parsed.ok()) {
    (void)parsed->Render(*kContext, absl::UnixEpoch(),
                         {.max_steps = 20'000, .max_output_bytes = 1 << 16});
  }
  return 0;
}
