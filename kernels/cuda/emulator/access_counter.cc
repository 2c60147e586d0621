#include "kernels/cuda/emulator/access_counter.h"

#include <algorithm>

namespace quire::kernels::cuda::emulator {
namespace {

constexpr int kWordBytes = 4, kBanks = 32, kSectorBytes = 32;

// Returns the distinct units of `unit` bytes that the lanes access.
std::vector<uintptr_t> DistinctUnits(std::span<const LaneAccess> lanes, int unit) {
  std::vector<uintptr_t> units;
  for (const LaneAccess& lane : lanes) {
    for (int at = 0; at < lane.bytes; at += kWordBytes) {
      units.push_back((lane.address + static_cast<uintptr_t>(at)) / static_cast<uintptr_t>(unit));
    }
  }
  std::ranges::sort(units);
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

// Returns the passes of lanes whose words would all fit into one pass.
int64_t NumPasses(std::span<const LaneAccess> lanes) {
  std::array<int64_t, kBanks> words_of_bank = {};
  for (const uintptr_t word : DistinctUnits(lanes, kWordBytes)) ++words_of_bank[word % kBanks];
  return std::ranges::max(words_of_bank);
}

}  // namespace

void CountInstruction(Access access, std::span<const LaneAccess, 32> lanes, AccessCount& count) {
  const int bytes = std::ranges::max(lanes, {}, &LaneAccess::bytes).bytes;
  if (bytes == 0) return;
  ++count.instructions;
  if (access >= Access::kGlobalLoad) {
    count.cost += std::ssize(DistinctUnits(lanes, kSectorBytes));
    const int64_t total = std::ssize(DistinctUnits(lanes, kWordBytes)) * kWordBytes;
    count.least += (total + kSectorBytes - 1) / kSectorBytes;
    return;
  }
  const auto lanes_of_pass = static_cast<size_t>(kBanks * kWordBytes / bytes);
  for (size_t first = 0; first < lanes.size(); first += lanes_of_pass) {
    const int64_t passes = NumPasses(std::span<const LaneAccess>(lanes).subspan(
        first, std::min(lanes_of_pass, lanes.size() - first)));
    count.cost += passes;
    count.least += std::min<int64_t>(passes, 1);
  }
}

void WarpAccesses::Add(Access access, int lane, const void* address, int bytes, Where where) {
  auto site = std::ranges::find_if(
      sites_, [&](const Site& s) { return s.access == access && SameLine(s.where, where); });
  if (site == sites_.end()) site = sites_.insert(site, Site{.access = access, .where = where});
  const size_t number = site->num_accesses[static_cast<size_t>(lane)]++;
  if (number == site->instructions.size()) site->instructions.emplace_back();
  site->instructions[number][static_cast<size_t>(lane)] = {reinterpret_cast<uintptr_t>(address),
                                                           bytes};
}

void WarpAccesses::CountInto(AccessCounts& counts) {
  for (const Site& site : sites_) {
    for (const auto& lanes : site.instructions) {
      CountInstruction(site.access, lanes, counts[site.access]);
    }
  }
  sites_.clear();
}

}  // namespace quire::kernels::cuda::emulator
