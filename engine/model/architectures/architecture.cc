#include "engine/model/architectures/architecture.h"

#include <algorithm>
#include <array>

namespace quire::engine {

std::span<const Architecture* const> Architectures() {
  static constexpr std::array kAll = {
      &kBaichuan,    &kBloom,   &kFalcon,   &kGemma2,  &kGemma3, &kGemma3Images,
      &kGpt2,        &kGptNeoX, &kGptOss,   &kLlama,   &kLlama4, &kLlama4Images,
      &kMimoV2Flash, &kMixtral, &kMpt,      &kOpenElm, &kPhi3,   &kPhi3Small,
      &kQwen2,       &kQwen3,   &kQwen3Moe, &kRefact,  &kSmolLm3};
  return kAll;
}

const Architecture* FindArchitecture(std::string_view name) {
  const auto all = Architectures();
  const auto found = std::ranges::find(all, name, &Architecture::name);
  return found == all.end() ? nullptr : *found;
}

const Architecture* FindArchitectureOfHfClass(std::string_view hf_class) {
  for (const Architecture* architecture : Architectures()) {
    if (std::ranges::count(architecture->hf_classes, hf_class) != 0) return architecture;
  }
  return nullptr;
}

}  // namespace quire::engine
