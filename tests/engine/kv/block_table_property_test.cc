// Runs random operations on the block tables of sequences that share blocks. A simulated memory
// shows if a token of a sequence was overwritten.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <rapidcheck.h>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_table.h"
#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using testing::Pick;
using testing::PickOf;

struct Totals {
  int64_t copies = 0;
  int64_t refused = 0;
  int64_t quarantined = 0;
  int64_t shared = 0;
  int64_t replaced = 0;
};

// Holds the block tables of sequences, and a memory with one token per slot. While steps are built
// and in flight, blocks are shared, forked, copied, replaced and released. After each operation,
// each sequence still reads the tokens that it wrote, and no block is free while a step may touch
// it.
class World {
 public:
  explicit World(Totals& totals) : totals_(totals) {}

  void Operate() {
    std::vector<int> ids;
    for (const auto& [id, sequence] : sequences_) ids.push_back(id);
    const int id = PickOf(ids);
    switch (Pick(0, 15)) {  // most often a table grows
      case 0:
      case 1:
      case 2:
      case 3:
        if (building_) {
          EndStep();
        } else if (in_flight_.size() < 2) {
          BeginStep();
        }
        break;
      case 4:
      case 5:
        if (!in_flight_.empty()) Complete();
        break;
      case 6:
        if (building_ && sequences_.size() < 5) Start(id);
        break;
      case 7:
        if (!building_ && sequences_.size() < 5) Fork();
        break;
      case 8:
        if (id >= 0) End(id);
        break;
      case 9:
        if (!building_ && id >= 0) Deduplicate(sequences_[id]);
        break;
      default:
        if (building_ && id >= 0) Grow(id, sequences_[id]);
        break;
    }
    Check();
  }

  void Empty() {
    if (building_) EndStep();
    while (!in_flight_.empty()) Complete();
    while (!sequences_.empty()) End(sequences_.begin()->first);
    RC_ASSERT(store_.pool().num_free() == kNumBlocks);
  }

 private:
  static constexpr int32_t kNumBlocks = 16;

  struct Sequence {
    BlockTable table;
    std::vector<int32_t> tokens;  // including the tokens of uncompleted steps
    int64_t num_written = 0;      // the number of tokens of completed steps
    bool imitates = false;        // takes the next tokens of a sequence with the same prefix
  };
  // The part of a step for one sequence. It writes the tokens from `first` on and reads all tokens.
  struct Run {
    std::vector<int32_t> blocks;
    std::vector<int32_t> tokens;
    int64_t first = 0;
  };
  struct Planned {
    int64_t step = 0;
    std::map<int, kernels::BlockCopy> copies;  // by sequence
    std::map<int, Run> runs;
  };

  size_t Slot(std::span<const int32_t> blocks, int64_t i) const {
    return static_cast<size_t>(blocks[i / block_size_] * block_size_ + i % block_size_);
  }

  static bool Touches(const Planned& planned, int32_t block) {
    return std::ranges::any_of(planned.copies,
                               [&](const auto& entry) {
                                 const kernels::BlockCopy& copy = entry.second;
                                 return copy.source == block || copy.destination == block;
                               }) ||
           std::ranges::any_of(planned.runs, [&](const auto& entry) {
             return std::ranges::count(entry.second.blocks, block) > 0;
           });
  }

  // Returns whether a copy into a block of sequence `id` has yet to run.
  bool WaitsForACopy(int id) const {
    return (building_ && building_->copies.contains(id)) ||
           std::ranges::any_of(in_flight_,
                               [&](const Planned& planned) { return planned.copies.contains(id); });
  }

  int64_t NumTablesWith(int32_t block) const {
    int64_t count = 0;
    for (const auto& [id, sequence] : sequences_) {
      count += std::ranges::count(sequence.table.blocks(), block);
    }
    return count;
  }

  void BeginStep() {
    building_ = Planned{.step = ++step_};
    store_.BeginStep(step_);
  }

  void EndStep() {
    store_.EndStep(/*submitted=*/true);
    in_flight_.push_back(*std::exchange(building_, std::nullopt));
  }

  // Runs the oldest step in flight, also for sequences that have ended. All copies of the step run
  // before its writes.
  void Complete() {
    const Planned planned = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const auto& [id, copy] : planned.copies) {
      std::copy_n(memory_.begin() + copy.source * block_size_, block_size_,
                  memory_.begin() + copy.destination * block_size_);
    }
    for (const auto& [id, run] : planned.runs) {
      for (int64_t i = run.first; i < std::ssize(run.tokens); ++i) {
        memory_[Slot(run.blocks, i)] = run.tokens[i];
      }
    }
    for (const auto& [id, run] : planned.runs) {
      for (int64_t i = 0; i < std::ssize(run.tokens); ++i) {
        RC_ASSERT(memory_[Slot(run.blocks, i)] == run.tokens[i]);
      }
      if (const auto it = sequences_.find(id); it != sequences_.end()) {
        it->second.num_written = std::ssize(run.tokens);
      }
    }
    totals_.copies += std::ssize(planned.copies);
    totals_.quarantined += store_.num_quarantined();
    store_.CompleteStep(planned.step);
  }

  // Starts a sequence. At random, the sequence begins with the first tokens of sequence `other`. It
  // shares the whole blocks of these tokens, and copies the block that they fill only in part.
  void Start(int other) {
    const int id = next_id_++;
    Sequence& sequence = sequences_[id];
    sequence.imitates = Pick(0, 2) > 0;
    if (other < 0 || building_->copies.contains(other) || Pick(0, 2) == 0) return;
    const Sequence& source = sequences_[other];
    int64_t count = Pick(0, static_cast<int>(source.num_written));
    const int64_t num_whole = count / block_size_;
    sequence.table.AppendShared(store_, source.table.blocks().first(num_whole));
    totals_.shared += num_whole;
    sequence.num_written = num_whole * block_size_;
    if (count > sequence.num_written) {
      const int32_t block = source.table.blocks()[num_whole];
      const bool available = store_.num_available() > 0;
      store_.HoldSource(block);
      const int32_t own = sequence.table.AppendOwn(store_);
      RC_ASSERT((own >= 0) == available);
      if (available) {
        AddCopy(id, {.source = block, .destination = own});
      } else {
        store_.DropSource(block);
        count = sequence.num_written;
      }
    }
    sequence.tokens.assign(source.tokens.begin(), source.tokens.begin() + count);
    if (count > 0) AddRun(id, sequence, count);
  }

  // Forks a sequence for which no step is writing.
  void Fork() {
    std::vector<int> parents;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence.num_written == std::ssize(sequence.tokens)) parents.push_back(id);
    }
    const int id = PickOf(parents);
    if (id < 0) return;
    const Sequence& parent = sequences_[id];
    Sequence& child = sequences_[next_id_++];
    child.num_written = Pick(0, static_cast<int>(parent.num_written));
    child.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + child.num_written);
    child.table.ForkFrom(parent.table, store_, block_size_, child.num_written);
    RC_ASSERT(child.table.size() == (child.num_written + block_size_ - 1) / block_size_);
  }

  void Grow(int id, Sequence& sequence) {
    const int64_t first = std::ssize(sequence.tokens);
    const int64_t size = first + Pick(1, 4);
    const std::vector<int32_t> before(sequence.table.blocks().begin(),
                                      sequence.table.blocks().end());
    const int64_t first_block = sequence.num_written / block_size_;
    const bool shared = first_block < std::ssize(before) && NumTablesWith(before[first_block]) > 1;
    const int64_t needed =
        std::max(int64_t{0}, (size + block_size_ - 1) / block_size_ - std::ssize(before)) +
        (shared ? 1 : 0);
    const int64_t available = store_.num_available();
    RC_ASSERT(sequence.table.NumBlocksToGrow(store_, block_size_, sequence.num_written, size) ==
              needed);
    kernels::BlockCopy copy;
    bool copied = false;
    const bool grown =
        sequence.table.TryGrow(store_, block_size_, sequence.num_written, size, &copy, &copied);
    RC_ASSERT(grown == (needed <= available));
    RC_ASSERT(store_.num_available() == (grown ? available - needed : available));
    RC_ASSERT(copied == (grown && shared));
    if (!grown) {
      ++totals_.refused;
      RC_ASSERT(std::ranges::equal(sequence.table.blocks(), before));
      return;
    }
    for (int64_t i = 0; i < std::ssize(before); ++i) {
      const bool is_copy = copied && i == first_block;
      RC_ASSERT(sequence.table.blocks()[i] == (is_copy ? copy.destination : before[i]));
    }
    if (copied) {
      RC_ASSERT(copy.source == before[first_block]);
      AddCopy(id, copy);
    }
    while (std::ssize(sequence.tokens) < size) sequence.tokens.push_back(NextToken(sequence));
    AddRun(id, sequence, first);
  }

  int32_t NextToken(const Sequence& sequence) {
    const std::vector<int32_t>& tokens = sequence.tokens;
    for (const auto& [id, other] : sequences_) {
      if (sequence.imitates && other.tokens.size() > tokens.size() &&
          std::ranges::equal(tokens, std::span(other.tokens).first(tokens.size()))) {
        return other.tokens[tokens.size()];
      }
    }
    return ++last_token_;
  }

  void AddCopy(int id, const kernels::BlockCopy& copy) {
    RC_ASSERT(building_->copies.emplace(id, copy).second);
  }

  void AddRun(int id, const Sequence& sequence, int64_t first) {
    Run& run = building_->runs.try_emplace(id, Run{.first = first}).first->second;
    run.blocks.assign(sequence.table.blocks().begin(), sequence.table.blocks().end());
    run.tokens = sequence.tokens;
  }

  void End(int id) {
    if (building_) {
      // BlockManager would first cancel the planned copy of this sequence. This test keeps the
      // sequence instead.
      if (building_->copies.contains(id)) return;
      building_->runs.erase(id);
    }
    BlockTable& table = sequences_[id].table;
    const bool in_flight = std::ranges::any_of(in_flight_, [&](const Planned& planned) {
      return std::ranges::any_of(table.blocks(),
                                 [&](int32_t block) { return Touches(planned, block); });
    });
    table.Clear(store_, in_flight);
    RC_ASSERT(table.size() == 0);
    sequences_.erase(id);
  }

  // Replaces a block of `sequence` by a block of another sequence. Up to the end of this block,
  // both sequences have the same tokens.
  void Deduplicate(Sequence& sequence) {
    for (const auto& [id, other] : sequences_) {
      const int64_t written = std::min(sequence.num_written, other.num_written);
      for (int64_t i = 0; i < written / block_size_; ++i) {
        const auto prefix = static_cast<size_t>((i + 1) * block_size_);
        const int32_t block = other.table.blocks()[i];
        if (block == sequence.table.blocks()[i] ||
            !std::ranges::equal(std::span(sequence.tokens).first(prefix),
                                std::span(other.tokens).first(prefix))) {
          continue;
        }
        sequence.table.Replace(store_, i, block);
        RC_ASSERT(sequence.table.blocks()[i] == block);
        ++totals_.replaced;
        return;
      }
    }
  }

  void Check() {
    store_.CheckInvariants();
    for (const auto& [id, sequence] : sequences_) {
      RC_ASSERT(sequence.table.size() * block_size_ >= std::ssize(sequence.tokens));
      if (WaitsForACopy(id)) continue;
      for (int64_t i = 0; i < sequence.num_written; ++i) {
        RC_ASSERT(memory_[Slot(sequence.table.blocks(), i)] == sequence.tokens[i]);
      }
    }
    for (int32_t block = 0; block < kNumBlocks; ++block) {
      RC_ASSERT(store_.pool().table_refs(block) == NumTablesWith(block));
      const bool touched = (building_ && Touches(*building_, block)) ||
                           std::ranges::any_of(in_flight_, [&](const Planned& planned) {
                             return Touches(planned, block);
                           });
      if (touched) RC_ASSERT(store_.pool().state(block) == BlockPool::State::kHeld);
      if (!building_ && in_flight_.empty()) RC_ASSERT(store_.pool().handle_refs(block) == 0);
    }
    if (!building_) return;
    for (const auto& [id, copy] : building_->copies) {
      for (const auto& [other, other_copy] : building_->copies) {
        RC_ASSERT(copy.destination != other_copy.source);
        RC_ASSERT(id == other || copy.destination != other_copy.destination);
      }
    }
  }

  Totals& totals_;
  const int32_t block_size_ = Pick(1, 4);
  BlockStore store_{kNumBlocks, block_size_};
  // The token in each slot.
  std::vector<int32_t> memory_ = std::vector<int32_t>(kNumBlocks * block_size_, 0);
  std::map<int, Sequence> sequences_;
  std::optional<Planned> building_;
  std::deque<Planned> in_flight_;  // oldest first
  int next_id_ = 0;
  int64_t step_ = 0;
  int32_t last_token_ = 0;
};

TEST(BlockTablePropertyTest, EachSequenceReadsWhatItWrote) {
  Totals totals;
  EXPECT_TRUE(rc::check([&] {
    World world(totals);
    for (int i = Pick(0, 2000); i > 0; --i) world.Operate();
    world.Empty();
  }));
  EXPECT_GT(totals.copies, 20);
  EXPECT_GT(totals.refused, 20);
  EXPECT_GT(totals.quarantined, 20);
  EXPECT_GT(totals.shared, 20);
  EXPECT_GT(totals.replaced, 20);
}

}  // namespace
}  // namespace quire::engine
