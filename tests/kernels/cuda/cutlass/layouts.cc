// Compares the layouts that Quire's kernels and their emulator use with the traits of CuTe
// (CUTLASS), which describe the same instructions. So the emulator's reading of the manual has an
// independent one beside it. Prints the comparisons and what differs; exit status 1 if anything
// does.

#include <cstdint>
#include <cstdio>

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "tests/kernels/cuda/cutlass/quire_layouts.h"

namespace {

using namespace cute;

int num_checks = 0, num_differences = 0;

void Expect(const char* what, int i, int j, int64_t ours, int64_t cutes) {
  constexpr int kMostLines = 20;
  ++num_checks;
  if (ours == cutes) return;
  if (++num_differences > kMostLines) return;
  std::printf("%s (%d, %d): Quire has %lld, CuTe %lld\n", what, i, j, static_cast<long long>(ours),
              static_cast<long long>(cutes));
}

// mma.m16n8k16. A unit of a at (m, k) and one of b at (n, k') have a product at (m, n) if k is k'.
void CheckWarpProducts() {
  using Traits = MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>;
  typename Traits::ALayout a;
  typename Traits::BLayout b;
  typename Traits::CLayout c;
  for (int la = 0; la < 32; ++la) {
    for (int va = 0; va < 8; ++va) {
      const int of_a = a(la, va), m = of_a % 16, k = of_a / 16;
      for (int lb = 0; lb < 32; ++lb) {
        for (int vb = 0; vb < 4; ++vb) {
          const int of_b = b(lb, vb), n = of_b % 8;
          const quire::Held found = quire::ProductOfUnits({la, va}, {lb, vb});
          const int64_t place = found.lane < 0 ? -1 : int64_t{c(found.lane, found.element)};
          Expect("mma: the product of units", la * 8 + va, lb * 4 + vb, place,
                 of_b / 8 == k ? m + 16 * n : -1);
        }
      }
    }
  }
}

// Register r of lane l has two elements of the row of 16 bytes that a lane addresses
// (primitives.cuh, LdMatrix and LdMatrixTransposed).
void CheckMatrixLoads() {
  using Plain = Copy_Traits<SM75_U32x4_LDSM_N>;
  using Transposed = Copy_Traits<SM75_U16x8_LDSM_T>;
  typename Plain::DstLayout to;
  typename Plain::SrcLayout from;
  typename Transposed::DstLayout to_transposed;
  typename Transposed::SrcLayout from_transposed;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const int r = i / 2, half = i % 2, pair = lane % 4 * 2 + half, bit = r * 32 + half * 16;
      Expect("ldmatrix", lane, i, from(8 * r + lane / 4, pair * 16), to(lane, bit));
      Expect("ldmatrix.trans", lane, i, from_transposed(8 * r + pair, lane / 4 * 16),
             to_transposed(lane, bit));
    }
  }
}

template <int kCols>
void CheckAccumulators() {
  GMMA::CLayout_64xN<kCols> c;
  for (int t = 0; t < 128; ++t) {
    for (int i = 0; i < kCols / 2; ++i) {
      const quire::Place place = quire::PlaceOfAccumulator(t, i);
      Expect("wgmma: an accumulator", t, i, place.row + 64 * place.col, c(t, i));
    }
  }
}

void CheckRegistersOfA() {
  GMMA::ALayout_64x16 a;
  for (int t = 0; t < 128; ++t) {
    for (int i = 0; i < 8; ++i) {
      const quire::Place place = quire::PlaceOfRegisterA(t, i);
      Expect("wgmma: a in registers", t, i, place.row + 64 * place.col, a(t, i));
    }
  }
}

constexpr uint64_t kAddressBits = 0x3fff;
constexpr int kAtomBytes = 1024;  // eight rows of 128 bytes

// A tile as TMA writes it and as the kernels address it: byte `plain` of CuTe's layout before the
// swizzle is at TileByte.
void CheckByte(const char* what, int row, int col, int64_t plain, int ours) {
  Expect(what, row, col, ours, Swizzle<3, 4, 3>{}(static_cast<int>(plain)));
  Expect("the emulator's swizzle", row, col, quire::SwizzledByte(static_cast<int>(plain)), ours);
}

// An operand in which k is contiguous: queries, keys, rows and weights of experts.
template <int kRows, int kDepth>
void CheckKMajor() {
  const auto layout = tile_to_shape(GMMA::Layout_K_SW128_Atom<bfloat16_t>{},
                                    Shape<Int<kRows>, Int<kDepth>>{}, Step<_1, _2>{});
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      CheckByte("a tile with k contiguous", row, k, int64_t{layout.layout_b()(row, k)} * 2,
                quire::TileByte(kRows, row, k / 8) + k % 8 * 2);
    }
  }
  alignas(kAtomBytes) static bfloat16_t memory[1];
  const auto slice = local_tile(make_tensor(make_smem_ptr(memory), layout),
                                Shape<Int<kRows>, _16>{}, make_coord(_0{}, _0{}));
  const uint64_t cutes = SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::K>(slice);
  const uint64_t ours = quire::Descriptor(0, 16, kAtomBytes);
  Expect("a descriptor with k contiguous", kRows, kDepth,
         static_cast<int64_t>(ours & ~kAddressBits), static_cast<int64_t>(cutes & ~kAddressBits));
}

// An operand in which the columns are contiguous: values.
template <int kCols, int kKeys>
void CheckColumnMajor() {
  const auto layout = tile_to_shape(GMMA::Layout_MN_SW128_Atom<bfloat16_t>{},
                                    Shape<Int<kCols>, Int<kKeys>>{}, Step<_2, _1>{});
  for (int key = 0; key < kKeys; ++key) {
    for (int col = 0; col < kCols; ++col) {
      CheckByte("a tile with columns contiguous", key, col,
                int64_t{layout.layout_b()(col, key)} * 2,
                quire::TileByte(kKeys, key, col / 8) + col % 8 * 2);
    }
  }
  alignas(kAtomBytes) static bfloat16_t memory[1];
  const auto slice = local_tile(make_tensor(make_smem_ptr(memory), layout),
                                Shape<Int<kCols>, _16>{}, make_coord(_0{}, _0{}));
  const uint64_t cutes = SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::MN>(slice);
  const uint64_t ours = quire::Descriptor(0, kKeys * 128, kAtomBytes);
  // With 64 columns there is no next piece, and wgmma does not read how far it is.
  const uint64_t ignored = kAddressBits | (kCols == 64 ? kAddressBits << 16 : 0);
  Expect("a descriptor with columns contiguous", kCols, kKeys,
         static_cast<int64_t>(ours & ~ignored), static_cast<int64_t>(cutes & ~ignored));
  // From one product to the next, the descriptor advances by 16 keys.
  Expect("the step of 16 keys", kCols, kKeys, 16 * 128, int64_t{layout.layout_b()(0, 16)} * 2);
}

}  // namespace

int main() {
  CheckWarpProducts();
  CheckMatrixLoads();
  CheckAccumulators<64>();
  CheckAccumulators<128>();
  CheckAccumulators<256>();
  CheckRegistersOfA();
  // Queries of 64 rows and 128, keys, and rows and weights of experts.
  CheckKMajor<64, 64>();
  CheckKMajor<64, 256>();
  CheckKMajor<128, 64>();
  CheckKMajor<128, 128>();
  CheckKMajor<128, 256>();
  CheckKMajor<192, 64>();
  CheckKMajor<256, 64>();
  CheckColumnMajor<64, 128>();
  CheckColumnMajor<128, 128>();
  CheckColumnMajor<256, 64>();
  std::printf("%d comparisons, %d differ\n", num_checks, num_differences);
  return num_differences != 0 ? 1 : 0;
}
