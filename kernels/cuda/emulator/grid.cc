#include "kernels/cuda/emulator/grid.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/emulator/sanitizers.h"

namespace quire::kernels::cuda::emulator {
namespace {

// Returns how many blocks are resident at a time.
int64_t NumResident(const LaunchConfig& config, const ExecutionOptions& options) {
  if (kThreadSanitizer) return 2;  // it takes long to make the fibers of a block
  if (options.order == ThreadOrder::kRandom) return 2 + static_cast<int64_t>(options.seed % 3);
  return config.overlaps_previous ? 2 : 1;
}

int64_t NumBlocks(const Dim3& grid) { return int64_t{grid.x} * grid.y * grid.z; }

}  // namespace

Grid::Grid(const KernelLaunch& launch, const ExecutionOptions& options, int compute_capability,
           AccessCounts* counts)
    : config_(launch.config),
      options_(options),
      num_blocks_(NumBlocks(launch.config.grid)),
      random_(options.seed) {
  const EmulatorsOwn own;
  const int64_t num_slots = std::min(num_blocks_, NumResident(config_, options));
  for (int64_t i = 0; i < num_slots; ++i) {
    ExecutionOptions of_slot = options;
    of_slot.seed = options.seed * static_cast<uint64_t>(num_slots) + static_cast<uint64_t>(i);
    slots_.push_back(std::make_unique<ThreadBlock>(launch, of_slot, compute_capability, counts));
  }
}

Grid::~Grid() {
  const EmulatorsOwn own;
  slots_.clear();
}

Index3 Grid::IndexOf(int64_t number) const {
  if (options_.order == ThreadOrder::kReverse) number = num_blocks_ - 1 - number;
  const Dim3 grid = config_.grid;
  const int64_t row = number / grid.x;
  return {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(row % grid.y),
          static_cast<unsigned>(row / grid.y)};
}

void Grid::StartBlocks() {
  for (const auto& slot : slots_) {
    if (slot->has_ended() && num_started_ < num_blocks_) slot->Start(IndexOf(num_started_++));
  }
}

bool Grid::HaveAllEnded() const {
  return std::ranges::all_of(slots_, [](const auto& slot) { return slot->has_ended(); });
}

absl::Status Grid::RunAhead() {
  const EmulatorsOwn own;
  StartBlocks();
  for (const auto& slot : slots_) {
    while (!slot->has_ended() && !slot->awaits_previous_launch()) RETURN_IF_ERROR(slot->Advance());
  }
  return absl::OkStatus();
}

absl::Status Grid::Run() {
  const EmulatorsOwn own;
  for (const auto& slot : slots_) slot->PreviousLaunchHasEnded();
  const bool random = options_.order == ThreadOrder::kRandom;
  size_t turn = 0;  // the slot whose turn it is
  for (StartBlocks(); !HaveAllEnded(); StartBlocks()) {
    ThreadBlock& block = *slots_[turn];
    if (!block.has_ended()) RETURN_IF_ERROR(block.Advance());
    // In random order, a block has eight turns on average before another block has one.
    if (random) {
      if (block.has_ended() || random_() % 8 == 0) turn = random_() % slots_.size();
    } else if (block.has_ended()) {
      turn = (turn + 1) % slots_.size();
    }
  }
  for (const auto& slot : slots_) slot->OrderBeforeHost();
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda::emulator
