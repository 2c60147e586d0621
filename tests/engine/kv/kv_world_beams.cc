// Sequences that run together, as the beams of one request do.

#include <algorithm>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {

void KvWorld::BecomeBeams(SequenceId id) {
  const BeamsId number = next_beams_++;
  Beams& beams = beams_[number];
  Live& first = live_.at(id);
  beams = {.ids = {id}, .num_joint = first.num_committed};
  first.beams = number;
  while (std::ssize(beams.ids) < first.access.num_together) beams.ids.push_back(next_id_++);
  first.access.num_together = 1;
  for (const SequenceId other : beams.ids) live_[other] = first;
  blocks_->ForkTogether(beams.ids);
  Count("become beams");
}

void KvWorld::PlanBeams(const Beams& beams) {
  const std::vector<SequenceId>& ids = beams.ids;
  if (IsAwaited(ids[0])) return;
  const int64_t end = Size(live_.at(ids[0]).tokens) + Pick(1, 3);
  std::vector<Tokens> tables;
  for (const SequenceId id : ids) {
    tables.emplace_back(blocks_->Table(id).begin(), blocks_->Table(id).end());
  }
  const BlockManager::Growth growth = blocks_->GrowthTogether(ids, end);
  const int64_t available = blocks_->num_available();
  const bool could_later = blocks_->CouldGrowTogetherLater(ids, end);
  const bool grows = blocks_->TryGrowTogether(ids, end);
  ASSERT_TRUE(grows == (growth.num_blocks <= available) || (!grows && !windows_.empty()));
  if (!grows && growth.num_blocks <= available) Count("beams lack places in windows");
  if (grows && !windows_.empty()) Count("beams in windows");
  ASSERT_EQ(blocks_->num_available(), available - (grows ? growth.num_blocks : 0));
  ASSERT_TRUE(could_later || !grows);
  int64_t num_copies = 0;
  for (size_t k = 0; k < ids.size(); ++k) {
    const std::span<const int32_t> table = blocks_->Table(ids[k]);
    for (size_t i = 0; i < tables[k].size(); ++i) num_copies += table[i] != tables[k][i] ? 1 : 0;
  }
  ASSERT_EQ(num_copies, grows ? growth.num_copies : 0);
  if (!grows) return Count(could_later ? "beams wait" : "beams do not fit");
  totals_.counts["beam copy"] += num_copies;
  for (const SequenceId id : ids) {
    Live& live = live_.at(id);
    while (Size(live.tokens) < end) live.tokens.push_back(Pick(0, 1));
    NoteRoom(live, end);
  }
  Count("append to beams");
  for (const SequenceId id : ids) Plan(id);
}

void KvWorld::Reorder(const Beams& beams) {
  const auto last = static_cast<int>(beams.ids.size()) - 1;
  std::vector<bool> stays(beams.ids.size());
  for (size_t k = 0; k < stays.size(); ++k) stays[k] = Pick(0, 1) == 0;
  stays[static_cast<size_t>(Pick(0, last))] = true;
  std::vector<int32_t> parents;
  for (int k = 0; k <= last; ++k) {
    int parent = k;
    while (!stays[static_cast<size_t>(parent)]) parent = Pick(0, last);
    parents.push_back(parent);
  }
  blocks_->Reorder(beams.ids, parents);
  for (size_t k = 0; k < parents.size(); ++k) {
    Live& beam = live_.at(beams.ids[k]);
    const SequenceId parent = beams.ids[static_cast<size_t>(parents[k])];
    beam.tokens = Tokens(live_.at(parent).tokens);
    beam.hashes = std::vector<uint64_t>(live_.at(parent).hashes);
    beam.room_seals = -1;  // some now share their last blocks
    ASSERT_TRUE(std::ranges::equal(blocks_->Table(beams.ids[k]), blocks_->Table(parent)));
    if (parent != beams.ids[k]) ++totals_.counts["beam that moved"];
  }
  Count("reorder");
}

}  // namespace quire::engine
