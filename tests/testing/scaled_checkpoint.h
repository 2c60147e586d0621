#pragma once

// The bundled model as a Hugging Face directory with scales of an fp8 KV cache.

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "files/model_files.h"
#include "kernels/cache_view.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::testing {

// The scales of a layer of the directory, which differ between layers, and are no powers of two.
inline kernels::CacheScales ScalesOfLayer(int64_t layer) {
  const auto number = static_cast<float>(layer + 1);
  return {.k = 0.013f * number, .v = 0.007f * number};
}

// Makes models/quire-stories in `directory`, with one more file that has the scales of K and V of
// each layer. The first scale of K is multiplied by `factor`.
inline void WriteScaledCheckpoint(const TempDirectory& directory, float factor = 1.0f) {
  namespace fs = std::filesystem;
  const std::string bundled = TestSourcePath("../models/quire-stories");
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "generation_config.json"}) {
    fs::create_symlink(fs::absolute(bundled + "/" + name), directory.path() + "/" + name);
  }
  fs::create_symlink(fs::absolute(bundled + "/model.safetensors"),
                     directory.path() + "/weights.safetensors");
  const files::OpenedModel model = *files::OpenModelFiles(bundled);
  nlohmann::json weight_map, header;
  for (const files::TensorInfo& tensor : model.weights->tensors()) {
    weight_map[tensor.name] = "weights.safetensors";
  }
  std::vector<float> scales;
  for (int64_t layer = 0; layer < 6; ++layer) {
    const kernels::CacheScales of_layer = ScalesOfLayer(layer);
    for (const auto& [name, scale] :
         {std::pair("k_scale", of_layer.k), std::pair("v_scale", of_layer.v)}) {
      const std::string tensor = absl::StrCat("transformer.blocks.", layer, ".attn.", name);
      const auto end = static_cast<int64_t>((scales.size() + 1) * sizeof(float));
      header[tensor] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end - 4, end}}};
      weight_map[tensor] = "scales.safetensors";
      scales.push_back(scales.empty() ? scale * factor : scale);
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file(sizeof(uint64_t), '\0');
  const uint64_t size = text.size();
  std::memcpy(file.data(), &size, sizeof(size));
  file += text;
  file.append(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  directory.Write("scales.safetensors", file);
  directory.Write("model.safetensors.index.json",
                  nlohmann::json{{"weight_map", weight_map}}.dump());
}

}  // namespace quire::testing
