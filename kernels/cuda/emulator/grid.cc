#include "kernels/cuda/emulator/grid.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/emulator/sanitizers.h"

namespace quire::kernels::cuda::emulator {
namespace {

// Returns how many blocks are resident at a time.
int64_t NumResident(const LaunchConfig& config, const ExecutionOptions& options) {
  if (options.order == ThreadOrder::kRandom) return 2 + static_cast<int64_t>(options.seed % 3);
  return config.overlaps_previous || kThreadSanitizer ? 2 : 1;
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

ThreadBlock* Grid::Choose() {
  // On average, a block has eight turns before another block is chosen.
  const bool random = options_.order == ThreadOrder::kRandom;
  const bool stay = chosen_ != nullptr && !chosen_->has_ended() && (!random || random_() % 8 != 0);
  if (stay) return chosen_;
  const size_t first = random ? random_() % slots_.size() : 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    chosen_ = slots_[(first + i) % slots_.size()].get();
    if (!chosen_->has_ended()) return chosen_;
  }
  return nullptr;
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
  for (StartBlocks(); ThreadBlock* const block = Choose(); StartBlocks()) {
    RETURN_IF_ERROR(block->Advance());
  }
  for (const auto& slot : slots_) slot->OrderBeforeHost();
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda::emulator
