#include "engine/sampling/logit_edits.h"

#include <algorithm>

#include "engine/sampling/row_passes.h"

namespace quire::engine {
namespace {

bool IsIdOf(int32_t id, std::span<const float> logits) {
  return id >= 0 && id < std::ssize(logits);
}

}  // namespace

void ApplyLogitBias(std::span<const LogitBias> biases, std::span<float> logits) {
  for (const LogitBias& entry : biases) {
    if (IsIdOf(entry.token_id, logits)) logits[entry.token_id] += entry.bias;
  }
}

void ApplyAllowedIds(std::span<const int32_t> allowed, std::vector<float>& scratch,
                     std::span<float> logits) {
  if (allowed.empty()) return;
  scratch.clear();
  for (const int32_t id : allowed) {
    scratch.push_back(IsIdOf(id, logits) ? logits[id] : kMinusInfinity);
  }
  std::fill(logits.begin(), logits.end(), kMinusInfinity);
  for (int64_t i = 0; i < std::ssize(allowed); ++i) {
    if (IsIdOf(allowed[i], logits)) logits[allowed[i]] = scratch[i];
  }
}

void Ban(std::span<const int32_t> ids, std::span<float> logits) {
  for (const int32_t id : ids) {
    if (IsIdOf(id, logits)) logits[id] = kMinusInfinity;
  }
}

}  // namespace quire::engine
