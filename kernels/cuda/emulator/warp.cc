// Warp-wide instructions. The lanes meet, and the last lane to arrive computes for all of them.

#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/emulator/warp_tile.h"

namespace quire::kernels::cuda::emulator {

namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;

// Faults unless `self` and `first` meet at the same line, with the same operation and mask. Every
// lane that arrives is compared with one lane that waits, so all lanes that meet agree.
void CheckAgainstFirst(const Thread& self, const Thread& first, Where where) {
  if (first.operation != self.operation || !SameLine(first.where, where)) {
    Fault(absl::StrCat("lanes of one warp meet at different instructions, lane ", first.lane,
                       " is at line ", first.where.line),
          where);
  }
  if (first.mask != self.mask) Fault("lanes of one warp name different masks", where);
}

// Runs the operation for the lanes of the mask, and wakes these lanes.
void Complete(ThreadBlock& block, int warp, uint32_t mask, WarpOperation operation,
              bool orders_memory, Where where) {
  std::array<const void*, kWarpSize> in = {};
  std::array<void*, kWarpSize> out = {};
  std::array<Thread*, kWarpSize> members = {};
  size_t num_members = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Thread& member = block.thread(warp, lane);
    in[lane] = member.in;
    out[lane] = member.out;
    members[num_members++] = &member;
  }
  operation(in.data(), out.data(), mask, where);
  block.LanesHaveMet(warp, mask);
  const std::span<Thread*> met(members.data(), num_members);
  if (orders_memory) ThreadBlock::OrderMemory(met);
  for (Thread* member : met) block.Wake(*member);
  block.warp(warp).meeting &= ~mask;
}

// Suspends the running lane until all lanes of the mask have arrived and the last lane has run the
// operation.
void Meet(uint32_t mask, const void* in, void* out, WarpOperation operation, bool orders_memory,
          Where where) {
  const EmulatorsOwn own;
  ThreadBlock& block = ThreadBlock::current();
  Thread& self = block.thread();
  Warp& warp = block.warp(self.warp);
  if ((mask >> self.lane & 1) == 0) Fault("a lane is not in its own mask", where);
  if ((mask & warp.ended) != 0) {
    Fault(absl::StrCat("lane ", std::countr_zero(mask & warp.ended), " of the mask has ended"),
          where);
  }
  self.in = in;
  self.out = out;
  self.operation = operation;
  self.mask = mask;
  self.where = where;
  if (orders_memory) TsanRelease(&self.before_meeting);
  if (const uint32_t others = warp.meeting & mask; others != 0) {
    CheckAgainstFirst(self, block.thread(self.warp, std::countr_zero(others)), where);
  }
  warp.meeting |= 1u << self.lane;
  if ((warp.meeting & mask) == mask) {
    Complete(block, self.warp, mask, operation, orders_memory, where);
  } else {
    block.Wait("the other lanes of its warp", where);
  }
  if (orders_memory) TsanAcquire(&self.after_meeting);
}

void DoNothing(const void* const*, void* const*, uint32_t, Where) {}

void BallotOperation(const void* const* in, void* const* out, uint32_t mask, Where) {
  uint32_t votes = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (in[lane] != nullptr && *static_cast<const bool*>(in[lane])) votes |= 1u << lane;
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    *static_cast<uint32_t*>(out[std::countr_zero(rest)]) = votes;
  }
}

struct ShuffleInput {
  unsigned char value[16];
  int bytes;
  ShuffleKind kind;
  int argument;
};

// Returns the lane that a shuffle of lane `lane` reads. Returns `lane` where a GPU leaves the value
// unchanged.
int SourceLane(const ShuffleInput& input, int lane) {
  int source = lane;
  switch (input.kind) {
    case ShuffleKind::kIndex:
      source = input.argument & (kWarpSize - 1);
      break;
    case ShuffleKind::kXor:
      source = lane ^ input.argument;
      break;
    case ShuffleKind::kUp:
      source = lane - input.argument;
      break;
    case ShuffleKind::kDown:
      source = lane + input.argument;
      break;
  }
  return source < 0 || source >= kWarpSize ? lane : source;
}

void ShuffleOperation(const void* const* in, void* const* out, uint32_t mask, Where where) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto& input = *static_cast<const ShuffleInput*>(in[lane]);
    const int source = SourceLane(input, lane);
    if ((mask >> source & 1) == 0) {
      Fault(absl::StrCat("lane ", lane, " shuffles from lane ", source, ", outside its mask"),
            where);
    }
    std::memcpy(out[lane], static_cast<const ShuffleInput*>(in[source])->value, input.bytes);
  }
}

struct MatrixRow {
  uint16_t elements[8];
  bool transposed;
  int num_matrices;
};

// Lane l gets two elements of each matrix: elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4. If
// transposed, they are elements of column l / 4 instead.
void LoadMatricesOperation(const void* const* in, void* const* out, uint32_t, Where) {
  const auto row = [&](int i) -> const MatrixRow& { return *static_cast<const MatrixRow*>(in[i]); };
  for (int matrix = 0; matrix < row(0).num_matrices; ++matrix) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int major = lane / 4, minor = lane % 4 * 2;
      uint32_t pair[2];
      for (int i = 0; i < 2; ++i) {
        pair[i] = row(0).transposed ? row(matrix * 8 + minor + i).elements[major]
                                    : row(matrix * 8 + major).elements[minor + i];
      }
      static_cast<uint32_t*>(out[lane])[matrix] = pair[0] | pair[1] << 16;
    }
  }
}

void MultiplyBf16Operation(const void* const* in, void* const* out, uint32_t, Where) {
  MultiplyWarpTile(reinterpret_cast<const WarpTileInput* const*>(in),
                   reinterpret_cast<float* const*>(out), MatrixType::kBf16);
}

void MultiplyF16Operation(const void* const* in, void* const* out, uint32_t, Where) {
  MultiplyWarpTile(reinterpret_cast<const WarpTileInput* const*>(in),
                   reinterpret_cast<float* const*>(out), MatrixType::kF16);
}

}  // namespace

void MeetLanes(uint32_t mask, const void* in, void* out, WarpOperation operation, Where where) {
  Meet(mask, in, out, operation, /*orders_memory=*/false, where);
}

void SyncWarp(uint32_t mask, Where where) {
  Meet(mask, nullptr, nullptr, &DoNothing, /*orders_memory=*/true, where);
}

uint32_t Ballot(uint32_t mask, bool predicate, Where where) {
  uint32_t votes = 0;
  MeetLanes(mask, &predicate, &votes, &BallotOperation, where);
  return votes;
}

void ShuffleBytes(uint32_t mask, void* value, int bytes, ShuffleKind kind, int argument,
                  Where where) {
  ShuffleInput input;
  std::memcpy(input.value, value, bytes);
  input.bytes = bytes;
  input.kind = kind;
  input.argument = argument;
  MeetLanes(mask, &input, value, &ShuffleOperation, where);
}

void LoadMatrices(uint32_t* result, int num_matrices, bool transposed, const void* row,
                  Where where) {
  MatrixRow own_row = {};
  own_row.transposed = transposed;
  own_row.num_matrices = num_matrices;
  if (Lane() < num_matrices * 8) {
    // Each lane reads its own row when it arrives, so that ThreadSanitizer attributes a race to
    // this lane.
    CheckShared(row, 16, 16, "a row of ldmatrix", where);
    CountAccess(Access::kLdMatrix, row, 16, where);
    std::memcpy(own_row.elements, row, 16);
  }
  MeetLanes(kAllLanes, &own_row, result, &LoadMatricesOperation, where);
}

void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, MatrixType type,
                  Where where) {
  const WarpTileInput input = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  MeetLanes(kAllLanes, &input, c,
            type == MatrixType::kBf16 ? &MultiplyBf16Operation : &MultiplyF16Operation, where);
}

}  // namespace quire::kernels::cuda::emulator
