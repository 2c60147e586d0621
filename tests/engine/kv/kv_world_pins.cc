// Pins of tokens that sequences committed.

#include <algorithm>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {

void KvWorld::TryPin() {
  if (live_.empty()) return;
  const Live& live = PickOf(live_).second;
  if (live.on == kNoPin) TryPinOf(live);
}

void KvWorld::TryPinOf(const Live& live) {
  const auto most = std::min(live.num_committed, num_blocks_ * int64_t{block_size_} / 6);
  if (pins_.size() >= 3 || most == 0) return;
  // Mostly all: what is appended meanwhile is then sealed off.
  const int64_t size = Pick(0, 2) > 0 ? most : Pick(1, static_cast<int>(most));
  const Tokens tokens(live.tokens.begin(), live.tokens.begin() + size);
  const PinId pin = next_pin_++;
  if (blocks_->TryPin(pin, RootOf(live.tenant, kNoPin), tokens, PayerOf(live.tenant))) {
    pins_[pin] = {.tokens = tokens, .owner = live.tenant, .ends_at = step_ + Pick(1, 200)};
    Count("pin");
  } else {
    Count("pin in vain");
  }
}

void KvWorld::ForkPin() {
  if (pins_.size() >= 3) return;
  const auto& [from, model] = PickOf(pins_);
  Tokens tokens(model.tokens.begin(),
                model.tokens.begin() + Pick(1, static_cast<int>(Size(model.tokens))));
  const bool differs = Pick(0, 3) == 0;
  if (differs) tokens[Pick(0, static_cast<int>(Size(tokens)) - 1)] ^= 1;
  const PinId pin = next_pin_++;
  const bool pinned = blocks_->TryPinFork(pin, from, tokens);
  ASSERT_FALSE(pinned && differs);
  ASSERT_TRUE(pinned || differs || !windows_.empty());
  if (pinned) {
    pins_[pin] = {.tokens = tokens, .owner = model.owner, .ends_at = step_ + Pick(1, 200)};
  }
  Count(pinned ? "fork of a pin" : "fork of a pin in vain");
}

void KvWorld::Unpin(PinId pin) {
  blocks_->Unpin(pin);
  const bool is_due = pins_.at(pin).ends_at <= step_;
  pins_.erase(pin);
  Count(is_due ? "expire" : "unpin");
}

}  // namespace quire::engine
