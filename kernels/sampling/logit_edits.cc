#include "kernels/sampling/logit_edits.h"

#include <algorithm>

#include "kernels/sampling/row_passes.h"

namespace quire::kernels::sampling {
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

void ApplyAllowedIds(const TokenSet& allowed, std::span<float> logits) {
  if (allowed.empty()) return;
  int64_t next = 0;  // the first id after the last allowed one
  const auto ban_to = [&](int64_t end) {
    std::fill(logits.begin() + next, logits.begin() + end, kMinusInfinity);
  };
  allowed.ForEachBelow(std::ssize(logits), [&](int64_t id) {
    ban_to(id);
    next = id + 1;
  });
  ban_to(std::ssize(logits));
}

void Ban(std::span<const int32_t> ids, std::span<float> logits) {
  for (const int32_t id : ids) {
    if (IsIdOf(id, logits)) logits[id] = kMinusInfinity;
  }
}

void Ban(const TokenSet& ids, std::span<float> logits) {
  ids.ForEachBelow(std::ssize(logits), [&](int64_t id) { logits[id] = kMinusInfinity; });
}

}  // namespace quire::kernels::sampling
