#pragma once

// A ModelConfig while it is read from a file.

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/model_config.h"

namespace quire::engine {

// A file describes one layer, and how other layers differ from it. So a reader fills in the layer
// `every`, and passes the differences to Vary(). Complete() makes the layers. A draft begins with
// one rotation, ropes[0], which every layer has; Complete() removes it if the model uses
// ALiBi or learned positions.
struct ModelDraft : ModelConfig {
  ModelDraft() { ropes.emplace_back(); }

  LayerSpec every;
  int64_t num_hidden_layers = 0;

  // Registers `change`, which Complete() calls once for each layer. Changes are applied in the
  // order in which they were registered.
  void Vary(std::function<void(int64_t index, LayerSpec& layer)> change) {
    changes_.push_back(std::move(change));
  }

  // Makes the layers and validates the result (see Validate). The error begins with `file`.
  absl::StatusOr<ModelConfig> Complete(std::string_view file) &&;

 private:
  std::vector<std::function<void(int64_t, LayerSpec&)>> changes_;
};

}  // namespace quire::engine
