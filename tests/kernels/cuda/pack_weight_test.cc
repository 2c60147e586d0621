// Tests the packed form of weights against Dequantize. The unpacking here follows the words of
// packed_weight.h, not the code of the kernels.

#include "kernels/cuda/product/pack_weight.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/product/cuda_weight_layout.h"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::RandomWeight;
using testing::TestWeight;

constexpr WeightType kPackedTypes[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
    WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ4_K,
    WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kF8E4M3Scaled};

uint32_t Word(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}
float Half(const uint8_t* at) {
  return F16ToF32(static_cast<uint16_t>(at[0] | static_cast<uint16_t>(at[1]) << 8));
}

int BitsOf(WeightType type) {
  switch (type) {
    case WeightType::kQ8_0:
    case WeightType::kF8E4M3Scaled:
      return 8;
    case WeightType::kQ6_K:
      return 6;
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ5_K:
      return 5;
    default:
      return 4;
  }
}

// Returns the code of column `c` of the 16 that `lane` holds of one row.
uint32_t CodeOf(int bits, const uint8_t* tile, int lane, int half, int c) {
  if (bits == 8) return tile[half * 512 + lane * 16 + c];
  const uint8_t* const words = tile + lane * 16 + half * 8;
  if (bits == 4) return Word(words + c / 8 * 4) >> (4 * (c % 8)) & 15;
  if (bits == 5) {
    const uint32_t third = Word(tile + 512 + lane * 4) >> (16 * half) & 0xffff;
    const uint32_t words_of_row[] = {Word(words), Word(words + 4), third};
    if (c < 15) return words_of_row[c / 6] >> (5 * (c % 6)) & 31;
    return words_of_row[0] >> 30 | words_of_row[1] >> 30 << 2 | third >> 15 << 4;
  }
  const uint32_t three[] = {Word(words), Word(words + 4), Word(tile + 512 + lane * 8 + half * 4)};
  if (c < 15) return three[c / 5] >> (6 * (c % 5)) & 63;
  return three[0] >> 30 | three[1] >> 30 << 2 | three[2] >> 30 << 4;
}

// Returns one weight of a packed group.
float Unpack(WeightType type, const uint8_t* group, int64_t row, int64_t col) {
  const bool k_quant = Traits(type).block_elements == 256;
  const bool pair_of_scales = type == WeightType::kQ4_1 || type == WeightType::kQ5_1;
  const int bits = BitsOf(type);
  const int code_bytes = 16 * 64 * bits / 8;
  const int tile_bytes = code_bytes + (pair_of_scales ? 128 : 64);
  const int header_bytes = !k_quant ? 0 : type == WeightType::kQ6_K ? 32 : 64;
  const int64_t tile_index = col / 64;
  const uint8_t* const header = group + tile_index / 4 * (header_bytes + 4 * tile_bytes);
  const uint8_t* const tile = k_quant ? header + header_bytes + tile_index % 4 * tile_bytes
                                      : group + tile_index * tile_bytes;
  const int r = static_cast<int>(row % 8), half = static_cast<int>(row / 8);
  const int q = static_cast<int>(col % 64 / 16);
  const auto code =
      static_cast<float>(CodeOf(bits, tile, r * 4 + q, half, static_cast<int>(col % 16)));
  const uint8_t* const scales = tile + code_bytes;
  const int pair = r * 2 + q / 2;
  switch (type) {
    case WeightType::kF8E4M3Scaled: {
      float scale;
      std::memcpy(&scale, scales + r * 8 + half * 4, sizeof(scale));
      return scale * E4M3ToF32(static_cast<uint8_t>(code));
    }
    case WeightType::kQ4_0:
      return Half(scales + pair * 4 + half * 2) * (code - 8);
    case WeightType::kQ5_0:
      return Half(scales + pair * 4 + half * 2) * (code - 16);
    case WeightType::kQ8_0:
      return Half(scales + pair * 4 + half * 2) * (code - 128);
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
      return Half(scales + pair * 8 + half * 4) * code + Half(scales + pair * 8 + half * 4 + 2);
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const uint8_t* const super = header + r * 8 + half * 4;
      const uint8_t* const factors = scales + pair * 4 + half * 2;
      return Half(super) * factors[0] * code - Half(super + 2) * factors[1];
    }
    default:
      return Half(header + r * 4 + half * 2) *
             static_cast<int8_t>(scales[pair * 4 + q % 2 * 2 + half]) * (code - 32);
  }
}

TEST(PackWeightTest, KeepsEveryWeightAndZerosWhatIsPastTheEnd) {
  for (const WeightType type : kPackedTypes) {
    const bool k_quant = Traits(type).block_elements == 256;
    for (const int64_t cols : k_quant ? std::vector<int64_t>{256, 768}
                              : Traits(type).block_elements == 64
                                  ? std::vector<int64_t>{64, 320}
                                  : std::vector<int64_t>{32, 64, 96, 352}) {
      for (const int64_t rows : {1, 9, 16, 37}) {
        SCOPED_TRACE(Traits(type).name);
        const TestWeight weight = RandomWeight(type, rows, cols, 1);
        const int64_t group_bytes = PackedGroupBytes(type, cols);
        const int64_t padded_cols = (cols + 63) / 64 * 64;
        for (int64_t g = 0; g < NumGroups(rows); ++g) {
          std::vector<std::byte> group(static_cast<size_t>(group_bytes), std::byte{0xff});
          PackGroup(weight.view, g, group.data());
          for (int64_t row = 0; row < 16; ++row) {
            for (int64_t col = 0; col < padded_cols; ++col) {
              const bool inside = g * 16 + row < rows && col < cols;
              const float want =
                  inside ? weight.values[static_cast<size_t>((g * 16 + row) * cols + col)] : 0.0f;
              ASSERT_EQ(Unpack(type, reinterpret_cast<const uint8_t*>(group.data()), row, col),
                        want)
                  << "row " << g * 16 + row << ", column " << col;
            }
          }
        }
      }
    }
  }
}

// Whole groups of many columns. Only Q4_K and Q5_K are larger than in the file: their factors, of 6
// bits there, take a byte, which makes 4 bytes more of 144 and 176.
TEST(PackWeightTest, TakesTheBytesOfTheFile) {
  constexpr int64_t kCols = 4096;
  for (const WeightType type : kPackedTypes) {
    SCOPED_TRACE(Traits(type).name);
    const WeightTypeTraits& traits = Traits(type);
    const int64_t in_file = 16 * kCols / traits.block_elements * traits.block_bytes;
    const bool grows = type == WeightType::kQ4_K || type == WeightType::kQ5_K;
    const int64_t more = grows ? 16 * kCols / 256 * 4 : 0;
    EXPECT_EQ(PackedGroupBytes(type, kCols), in_file + more);
    EXPECT_LT(more * 100, in_file * 3);
  }
  EXPECT_EQ(PackedGroupBytes(WeightType::kF32, kCols), 0);
  EXPECT_EQ(PackedGroupBytes(WeightType::kBF16, kCols), 0);
}

TEST(PackWeightTest, OnlyExpertsOfOneTypeInWholePairsOfGroupsCanBePacked) {
  const TestWeight q8 = RandomWeight(WeightType::kQ8_0, 32, 64, 1),
                   q4 = RandomWeight(WeightType::kQ4_0, 32, 64, 2),
                   half = RandomWeight(WeightType::kQ8_0, 16, 64, 3),
                   plain = RandomWeight(WeightType::kBF16, 32, 64, 4);
  EXPECT_TRUE(CanPackExperts(std::vector{q8.view, q8.view}));
  EXPECT_FALSE(CanPackExperts(std::vector{q8.view, q4.view}));
  EXPECT_FALSE(CanPackExperts(std::vector{half.view}));
  EXPECT_FALSE(CanPackExperts(std::vector{plain.view}));
}

TEST(PackWeightTest, ViewsOfOneFormAreOnePartWhereTheirRowsAreTogether) {
  const auto view = [](WeightType type, int64_t rows) {
    return WeightView{.type = type, .rows = rows, .cols = 256};
  };
  const std::vector<WeightView> views = {view(WeightType::kQ4_K, 32), view(WeightType::kQ4_K, 17),
                                         view(WeightType::kQ4_K, 16), view(WeightType::kF32, 3),
                                         view(WeightType::kBF16, 2),  view(WeightType::kQ6_K, 1)};
  const CudaWeightLayout layout = LayOut(views, DType::kBF16, /*packs=*/true);
  struct Want {
    int64_t first_row, num_rows, offset;
    std::optional<WeightType> packed;
  };
  // A group of Q4_K is 64 + 4 * 576 = 2368 bytes. Parts begin at multiples of 256.
  const std::vector<Want> want = {{0, 49, 0, WeightType::kQ4_K},
                                  {49, 16, 9472, WeightType::kQ4_K},
                                  {65, 5, 12032, std::nullopt},
                                  {70, 1, 14592, WeightType::kQ6_K}};
  ASSERT_EQ(layout.parts.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(layout.parts[i].first_row, want[i].first_row);
    EXPECT_EQ(layout.parts[i].num_rows, want[i].num_rows);
    EXPECT_EQ(layout.parts[i].offset, want[i].offset);
    EXPECT_EQ(layout.parts[i].packed, want[i].packed);
  }
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 4736, 9472, 12032, 13568, 14592}));
  EXPECT_EQ(layout.is_packed, (std::vector<bool>{true, true, true, false, false, true}));
  EXPECT_EQ(layout.bytes, 14592 + 32 + 4 * 832);

  const CudaWeightLayout expanded = LayOut(views, DType::kBF16, /*packs=*/false);
  ASSERT_EQ(expanded.parts.size(), 1u);
  EXPECT_EQ(expanded.parts[0].num_rows, 71);
  EXPECT_EQ(expanded.bytes, 71 * 256 * 2);
}

}  // namespace
}  // namespace quire::kernels::cuda
