#include "tests/engine/kv/kv_world.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

#include "kernels/ops/attention_pattern.h"

namespace quire::engine {

KvWorld::KvWorld(uint32_t seed, Totals& totals) : random_(seed), totals_(totals) {
  block_size_ = Pick(1, 4);
  depth_ = Pick(0, 1);
  num_blocks_ = Pick(8, 64);
  BlockManagerConfig config{.num_blocks = num_blocks_,
                            .block_size = block_size_,
                            .max_step_tokens = kChunk,
                            .pipeline_depth = depth_};
  for (int w = Pick(0, 2); w > 0; --w) {
    const auto pattern = kernels::AttentionPattern::Window(Pick(1, 3) * 5 + w);
    const auto one = static_cast<int32_t>(WindowBlocksPerSequence(pattern, config));
    config.windows.push_back({.pattern = pattern, .num_blocks = one * Pick(1, 4) + Pick(0, 9)});
  }
  windows_ = config.windows;
  memory_.emplace_back(num_blocks_ * block_size_);
  if (windows_.empty()) config.spill = &disk_.emplace(block_size_, memory_[0], totals.counts);
  for (const KvWindow& window : windows_) memory_.emplace_back(window.num_blocks * block_size_);
  blocks_.emplace(config);
}

void KvWorld::Run(int64_t num_steps) {
  for (; num_steps > 0 && !::testing::Test::HasFailure(); --num_steps) Step();
  if (!::testing::Test::HasFailure()) EndAll();
}

void KvWorld::EndAll() {
  while (!in_flight_.empty()) CompleteOldest();
  while (!loads_.empty()) EndLoad(loads_.begin()->first);
  while (!live_.empty()) Release(live_.begin()->first, "cancel");
  while (!pins_.empty()) Unpin(pins_.begin()->first);
  const BlockStats stats = blocks_->stats();
  ASSERT_EQ(stats.num_free + stats.num_cached, stats.num_total);
  ASSERT_EQ(stats.num_pinned, 0);
  for (size_t w = 0; w < windows_.size(); ++w) {
    ASSERT_EQ(blocks_->window_stats(static_cast<int32_t>(w) + 1).num_held, 0);
  }
  if (!disk_) return;
  while (disk_->CopyOne(0)) continue;
  blocks_->FreeCached(num_blocks_);
  ASSERT_EQ(blocks_->stats().num_free, num_blocks_);
  ASSERT_EQ(disk_->num_offered(), 0) << "all were evicted";
}

TenantCharges::Payer KvWorld::PayerOf(const std::string& tenant) {
  const auto [it, is_new] = payers_.try_emplace(tenant);
  if (is_new) it->second = blocks_->charges().Acquire(tenant);
  return it->second;
}

void KvWorld::Step() {
  for (auto it = pins_.begin(); it != pins_.end();) {
    const PinId pin = it->first;
    const bool ends = it->second.ends_at <= step_;
    ++it;
    if (ends) Unpin(pin);
  }
  blocks_->BeginStep(++step_);
  building_ = true;
  works_.clear();
  for (int i = Pick(0, 2); i > 0 && live_.size() < 6; --i) Start();
  std::vector<SequenceId> ids;
  for (const auto& [id, live] : live_) ids.push_back(id);
  for (const SequenceId id : ids) {
    if (!live_.contains(id)) continue;  // a beam that was preempted with another
    if (Pick(0, 3) > 0) PlanNext(id);
    // What starts in a step runs in it.
    if (Pick(0, 39) == 0 && live_.at(id).started_in != step_) Release(id, "preempt in a step");
    Meanwhile();
  }
  EndStep();
  Between();
  while (in_flight_.size() > static_cast<size_t>(depth_)) CompleteOldest();
  Between();
}

void KvWorld::Meanwhile() {
  if (disk_ && Pick(0, 7) == 0) Spill();
  if (!in_flight_.empty() && Pick(0, 3) == 0) Execute(in_flight_.front());
}

void KvWorld::Between() {
  Meanwhile();
  if (disk_ && loads_.size() < 2 && Pick(0, 5) == 0) BeginLoad();
  if (!loads_.empty() && Pick(0, 1) == 0) AdvanceLoad(PickOf(loads_).first);
  if (!live_.empty() && Pick(0, 7) == 0) Release(PickOf(live_).first, "cancel");
  if (!live_.empty() && Pick(0, 9) == 0) Preempt(PickOf(live_).first);
  if (Pick(0, 5) == 0) TryPin();
  if (!pins_.empty() && Pick(0, 11) == 0) ForkPin();
  if (!pins_.empty() && Pick(0, 15) == 0) Unpin(PickOf(pins_).first);
  if (Pick(0, 9) == 0) {
    blocks_->FreeCached(Pick(1, 5));
    Count("evict");
  }
}

void KvWorld::EndStep() {
  // What is to be read and written follows from the tables at the end of planning.
  std::erase_if(works_, [&](const Work& work) { return !live_.contains(work.id); });
  for (Work& work : works_) {
    const auto table = blocks_->Table(work.id);
    work.tables.emplace_back(table.begin(), table.end());
    for (size_t w = 0; w < windows_.size(); ++w) {
      const auto group = static_cast<int32_t>(w) + 1;
      const BlockTable::Run run = blocks_->RunIn(group, work.id);
      std::vector<int32_t>& parts = work.tables.emplace_back(table.size(), -1);
      for (int64_t i = run.begin; i < run.end; ++i) parts[i] = blocks_->BlockIn(group, table[i]);
    }
  }
  InFlight step{.step = step_};
  blocks_->EndStep(!works_.empty(), &step.copies, &step.shifts);
  building_ = false;
  for (size_t w = 0; w < windows_.size(); ++w) {
    auto& copies = step.window_copies.emplace_back();
    const auto group = static_cast<int32_t>(w) + 1;
    for (const kernels::BlockCopy& copy : step.copies) {
      copies.push_back({.source = blocks_->BlockIn(group, copy.source),
                        .destination = blocks_->BlockIn(group, copy.destination)});
    }
  }
  if (works_.empty()) {
    --step_;
    return;
  }
  step.works = works_;
  in_flight_.push_back(std::move(step));
}

Slot& KvWorld::SlotOf(size_t group, const Work& work, int64_t i) {
  return memory_[group][work.tables[group][i / block_size_] * block_size_ + i % block_size_];
}

void KvWorld::Copy(size_t group, const kernels::BlockCopy& copy) {
  std::copy_n(memory_[group].begin() + copy.source * block_size_, block_size_,
              memory_[group].begin() + copy.destination * block_size_);
}

void KvWorld::Execute(InFlight& step) {
  if (std::exchange(step.has_run, true)) return;
  for (const kernels::BlockCopy& copy : step.copies) Copy(0, copy);
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (const kernels::BlockCopy& copy : step.window_copies[w]) Copy(w + 1, copy);
  }
  for (const kernels::KeyShift& shift : step.shifts) {
    for (int64_t i = 0; i < block_size_; ++i) {
      uint64_t& hash = memory_[0][shift.block * block_size_ + i].hash;
      hash = HashAfter(hash, shift.distance);
    }
  }
  for (const Work& work : step.works) Execute(work);
}

void KvWorld::Execute(const Work& work) {
  for (int64_t i = 0; i < work.end; ++i) {
    const uint64_t hash = work.hashes[i];
    for (size_t group = 0; group <= windows_.size(); ++group) {
      if (i >= work.begin) {
        SlotOf(group, work, i) = {.hash = hash, .root = work.label};
        continue;
      }
      if (group > 0 && i < windows_[group - 1].pattern.FirstKey(work.begin)) continue;
      const Slot& slot = SlotOf(group, work, i);
      ASSERT_EQ(slot.hash, hash) << "sequence " << work.id << ", token " << i;
      if (slot.root != work.label) {
        ASSERT_TRUE(i < work.pinned_tokens && slot.root == work.owner)
            << "sequence " << work.id << ", token " << i << " of another root";
      }
      if (slot.was_restored) ++totals_.counts["read of what was restored"];
    }
  }
}

void KvWorld::CompleteOldest() {
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  Execute(step);
  if (::testing::Test::HasFatalFailure()) return;
  blocks_->CompleteStep(step.step);
  Commit(step.works);
  std::vector<SequenceId> ids;
  for (const auto& [id, live] : live_) {
    if (!IsAwaited(id) && live.num_committed == Size(live.tokens)) ids.push_back(id);
  }
  for (const SequenceId id : ids) {
    if (live_.contains(id)) Continue(id);
  }
}

}  // namespace quire::engine
