// The functions of SessionRegistry for pinned sessions: what the ledger counts for them.

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/sharing/session_registry.h"

namespace quire::engine {

absl::Status SessionRegistry::CheckMayPin(bool pinned) const {
  if (!pinned || config_.ledger != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError("pinned: want false on this server");
}

absl::Status SessionRegistry::ReservePin(SessionTurn& turn, const SessionTurn::Pins& pins) {
  // The pin before the turn stays until the turn succeeds. Its blocks are those of the turn too, as
  // far as the tokens are the same.
  std::vector<int64_t> more = config_.blocks_of(pins.at_most);
  for (int64_t n = pins.at_least; more.size() > 1 && n < pins.at_most; n += config_.block_size) {
    // A longer pin may need fewer blocks of a window.
    const std::vector<int64_t> blocks = config_.blocks_of(n);
    for (size_t g = 1; g < more.size(); ++g) more[g] = std::max(more[g], blocks[g]);
  }
  const int64_t pinned = turn.pin_->num_tokens.load(std::memory_order_acquire);
  more[0] -= std::min(pins.num_kept, pinned) / config_.block_size;
  base::MutexLock lock(mu_);
  Record* const record = RecordOf(turn.name_);
  if (record == nullptr) return NoSuchSession();
  RETURN_IF_ERROR(config_.ledger->Pin("session", record->tenant, record->limits, more));
  record->blocks.resize(more.size());
  for (size_t g = 0; g < more.size(); ++g) record->blocks[g] += more[g];
  turn.num_blocks_ = std::move(more);
  return absl::OkStatus();
}

void SessionRegistry::SettlePin(Record& record, const SessionTurn& turn, bool succeeded) {
  if (turn.num_blocks_.empty()) return;  // no token was to be computed
  std::vector<int64_t> unused = turn.num_blocks_;
  if (succeeded) {
    const int64_t num_tokens = record.pin->num_tokens.load(std::memory_order_acquire);
    std::vector<int64_t> now(unused.size());
    if (num_tokens > 0) now = config_.blocks_of(num_tokens);
    for (size_t g = 0; g < now.size(); ++g) unused[g] = record.blocks[g] - now[g];
  }
  for (size_t g = 0; g < unused.size(); ++g) record.blocks[g] -= unused[g];
  config_.ledger->Unpin(record.tenant, unused);
}

void SessionRegistry::Unpin(Record& record) {
  std::vector<int64_t> blocks;
  {
    base::MutexLock lock(mu_);
    if (record.in_turn) return;  // the end of the turn comes back to this
    blocks.swap(record.blocks);
  }
  if (blocks.empty()) return;
  config_.unpin(record.pin->id, [ledger = config_.ledger, tenant = record.tenant,
                                 blocks = std::move(blocks)] { ledger->Unpin(tenant, blocks); });
}

absl::StatusOr<SessionRegistry::ForkPins> SessionRegistry::ReserveForkPins(const Record& parent,
                                                                           int64_t at_token,
                                                                           int32_t count) {
  const int64_t held =
      parent.pin == nullptr ? 0 : parent.pin->num_tokens.load(std::memory_order_acquire);
  ForkPins pins{.num_tokens = std::min(at_token, held), .blocks = {}};
  if (pins.num_tokens == 0) return pins;
  pins.blocks = config_.blocks_of(pins.num_tokens);
  std::vector<int64_t> all = pins.blocks;
  for (int64_t& blocks : all) blocks *= count;
  RETURN_IF_ERROR(config_.ledger->Pin("session", parent.tenant, parent.limits, all));
  return pins;
}

void SessionRegistry::PinForks(const Record& parent, const ForkPins& reserved,
                               const std::vector<RecordPtr>& children) {
  std::vector<std::string> names;
  std::vector<std::shared_ptr<SessionPin>> pins;
  for (const RecordPtr& child : children) {
    child->blocks = reserved.blocks;
    names.push_back(child->name);
    pins.push_back(child->pin);
  }
  config_.fork_pin({.from = parent.pin->id,
                    .tokens = children.front()->content->Ids(0, reserved.num_tokens),
                    .pins = std::move(pins),
                    .done = [this, names = std::move(names), blocks = reserved.blocks] {
                      SettleForkPins(names, blocks);
                    }});
}

void SessionRegistry::SettleForkPins(const std::vector<std::string>& names,
                                     const std::vector<int64_t>& blocks) {
  base::MutexLock lock(mu_);
  for (const std::string& name : names) {
    Record* const record = RecordOf(name);
    if (record == nullptr) continue;  // what it had is given back
    if (record->pin->num_tokens.load(std::memory_order_acquire) > 0) continue;
    for (size_t g = 0; g < blocks.size(); ++g) record->blocks[g] -= blocks[g];
    config_.ledger->Unpin(record->tenant, blocks);
  }
}

}  // namespace quire::engine
