// Tests mbarriers, TMA, setmaxnreg and wgmma against plain C++. See also primitives_test.cu.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/small_integers.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;

class HopperPrimitivesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_->info().compute_capability < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
  std::unique_ptr<Device> device_ = MakeDevice();
};

// --- mbarriers

struct HandOverParams {
  const uint32_t* in;  // [phases][64]
  uint32_t* out;
};

inline constexpr int kPhases = 5;

// Two warps exchange values in each of several phases. Each warp arrives once at `full` when its
// values are stored. Each thread arrives once at `empty` when it has read a value.
__global__ void HandOverKernel(const __grid_constant__ HandOverParams p) {
  uint32_t* const values = DynamicShared<uint32_t>();
  uint64_t* const full = reinterpret_cast<uint64_t*>(values + 64);
  uint64_t* const empty = full + 1;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    MbarrierInit(full, 2);
    MbarrierInit(empty, 64);
    FenceMbarrierInit();
  }
  __syncthreads();
  for (int phase = 0; phase < kPhases; ++phase) {
    if (phase > 0) MbarrierWait(empty, (phase - 1) & 1);
    values[thread] = p.in[phase * 64 + thread];
    __syncwarp();
    if (thread % 32 == 0) MbarrierArrive(full);
    MbarrierWait(full, phase & 1);
    p.out[phase * 64 + thread] = values[63 - thread];
    MbarrierArrive(empty);
  }
}

TEST_F(HopperPrimitivesTest, MbarriersCountArrivalsPhaseAfterPhase) {
  std::vector<uint32_t> in(kPhases * 64);
  for (uint32_t i = 0; i < in.size(); ++i) in[i] = i * 0x01010101u + 7;
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order);
    DeviceArray<uint32_t> device_in(*device, in), out(*device, kPhases * 64);
    ASSERT_TRUE(Launch(*device, {.block = {64}, .shared_bytes = 64 * 4 + 16}, &HandOverKernel,
                       {device_in.data(), out.data()})
                    .ok());
    const auto got = out.ToHost();
    for (uint32_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], in[i / 64 * 64 + 63 - i % 64]) << i;
  }
}

// --- Registers

// Tests that a thread's registers keep their values when its warpgroup gives up registers or gets
// more.
__global__ void __launch_bounds__(384, 1)
    RegistersKernel(const __grid_constant__ HandOverParams p) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t values[8];
  for (int i = 0; i < 8; ++i) values[i] = p.in[i * 384 + thread];
  if (thread / 128 == 2) {
    ShrinkRegisters<24>();
  } else {
    GrowRegisters<240>();
  }
  for (int i = 0; i < 8; ++i) p.out[i * 384 + thread] = values[i];
}

TEST_F(HopperPrimitivesTest, RegistersMoveBetweenWarpgroups) {
  std::vector<uint32_t> in(8 * 384);
  for (uint32_t i = 0; i < in.size(); ++i) in[i] = i * 0x01010101u + 7;
  DeviceArray<uint32_t> device_in(*device_, in), out(*device_, 8 * 384);
  ASSERT_TRUE(
      Launch(*device_, {.block = {384}}, &RegistersKernel, {device_in.data(), out.data()}).ok());
  EXPECT_EQ(out.ToHost(), in);
}

// --- TMA

struct TmaParams {
  TensorMap map;
  uint8_t* out;
  std::array<int, 5> coordinates;
  int bytes;
};

// Loads one box into shared memory, then copies the box to `out` without changing its layout.
template <int kRank>
__global__ void TmaKernel(const __grid_constant__ TmaParams p) {
  unsigned char* const shared = DynamicShared<unsigned char>();
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(shared + 4096);
  if (threadIdx.x == 0) {
    MbarrierInit(barrier, 1);
    FenceMbarrierInit();
    MbarrierArriveExpect(barrier, p.bytes);
    int coordinates[kRank];
    for (int i = 0; i < kRank; ++i) coordinates[i] = p.coordinates[i];
    TmaLoad(shared, p.map, barrier, coordinates);
  }
  __syncthreads();
  MbarrierWait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < p.bytes; i += 64) p.out[i] = shared[i];
}

// A tensor in which each element is its own index plus 1. At(c) returns the element (c[0], c[1],
// ...), or 0 outside the tensor.
struct Numbered {
  std::vector<int64_t> dims;

  int64_t size() const {
    int64_t n = 1;
    for (const int64_t dim : dims) n *= dim;
    return n;
  }
  int64_t At(const std::vector<int64_t>& c) const {
    int64_t index = 0;
    for (size_t i = dims.size(); i-- > 0;) {
      if (c[i] < 0 || c[i] >= dims[i]) return 0;
      index = index * dims[i] + c[i];
    }
    return index + 1;
  }
};

template <int kRank, typename T = uint16_t>
void CheckTma(Device& device, const Numbered& tensor, const std::vector<int32_t>& box,
              const std::vector<int64_t>& at) {
  std::vector<T> elements(static_cast<size_t>(tensor.size()));
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<T>(i + 1);
  DeviceArray<T> data(device, elements);
  TensorMapSpec spec = {.data = data.data(), .element_bytes = sizeof(T), .rank = kRank};
  TmaParams params = {};
  int64_t stride = sizeof(T), box_size = 1;
  for (size_t i = 0; i < kRank; ++i) {
    spec.dims[i] = tensor.dims[i];
    spec.strides[i] = stride;
    spec.box[i] = box[i];
    stride *= tensor.dims[i];
    box_size *= box[i];
    params.coordinates[i] = static_cast<int>(at[i]);
  }
  const auto map = device.MakeTensorMap(spec);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  DeviceArray<T> out(device, box_size);
  params.map = *map;
  params.out = reinterpret_cast<uint8_t*>(out.data());
  params.bytes = static_cast<int>(box_size * static_cast<int64_t>(sizeof(T)));
  ASSERT_TRUE(
      Launch(device, {.block = {64}, .shared_bytes = 4096 + 8}, &TmaKernel<kRank>, params).ok());
  const auto got = out.ToHost();
  for (int64_t i = 0; i < box_size; ++i) {
    std::vector<int64_t> c;
    int64_t rest = i;
    for (size_t d = 0; d < kRank; ++d) {
      c.push_back(at[d] + rest % box[d]);
      rest /= box[d];
    }
    // The 128-byte swizzle moves whole 16-byte chunks: the index of a chunk in its row of 128 bytes
    // is xored with the row number modulo 8.
    const int64_t byte = i * static_cast<int64_t>(sizeof(T));
    const int64_t swizzled = byte ^ ((byte >> 7 & 7) << 4);
    EXPECT_EQ(got[static_cast<size_t>(swizzled) / sizeof(T)], static_cast<T>(tensor.At(c)))
        << "element " << i;
  }
}

TEST_F(HopperPrimitivesTest, TmaBringsBoxesOfEveryRank) {
  CheckTma<2>(*device_, {{128, 24}}, {64, 8}, {64, 8});
  CheckTma<3>(*device_, {{64, 6, 5}}, {64, 2, 3}, {0, 4, 1});
  CheckTma<4>(*device_, {{64, 4, 3, 2}}, {64, 4, 1, 2}, {0, 0, 2, 0});
  CheckTma<5>(*device_, {{128, 16, 2, 2, 3}}, {64, 16, 1, 1, 1}, {64, 0, 1, 1, 2});
}

TEST_F(HopperPrimitivesTest, TmaBringsElementsOfOneAndFourBytes) {
  CheckTma<2, uint8_t>(*device_, {{256, 10}}, {128, 8}, {128, 1});
  CheckTma<3, uint8_t>(*device_, {{256, 6, 5}}, {128, 4, 2}, {128, 4, 1});
  CheckTma<2, uint32_t>(*device_, {{64, 10}}, {32, 8}, {32, 3});
  CheckTma<4, uint32_t>(*device_, {{32, 4, 3, 2}}, {32, 4, 1, 2}, {0, 0, 2, 0});
}

TEST_F(HopperPrimitivesTest, TmaFillsWithZerosOutsideTheTensor) {
  CheckTma<2>(*device_, {{64, 10}}, {64, 8}, {0, 6});
  CheckTma<2>(*device_, {{64, 10}}, {64, 8}, {0, -3});
  CheckTma<2>(*device_, {{72, 10}}, {64, 8}, {64, 0});
  CheckTma<5>(*device_, {{64, 16, 2, 2, 3}}, {64, 16, 1, 1, 1}, {0, 0, 1, 1, -1});
}

// --- wgmma

// The product of a [64][kDepth] and b, with N = 8 * kTiles columns.
template <typename T>
struct WgmmaParams {
  const T* a;
  const T*
      b;  // WgmmaShared: [N][kDepth], k innermost; WgmmaRegisters: [kDepth][N], columns innermost
  float* out;  // [64][N]; each sum starts as its own index
};

inline constexpr int kDepth = 64;  // four products of 16

// Returns the index of element (row, col) in a swizzled tile. The tile stores columns 0 to 63
// first, in `rows` rows of 128 bytes, and then columns 64 to 127 in the same way.
__device__ inline int SwizzledIndex(int row, int col, int rows) {
  const int byte = col / 64 * rows * 128 + row * 128 + col % 64 * 2;
  return (byte ^ ((byte >> 7 & 7) << 4)) / 2;
}

// Returns the index in `out` of this thread's accumulator d[n][i].
template <int kTiles>
__device__ inline int OutIndex(int n, int i) {
  const int t = static_cast<int>(threadIdx.x);
  const int row = t / 32 * 16 + t % 32 / 4 + i / 2 * 8;
  return row * 8 * kTiles + n * 8 + t % 4 * 2 + i % 2;
}

template <int kTiles>
__device__ inline void StartAsIndex(float (&d)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] = static_cast<float>(OutIndex<kTiles>(n, i));
  }
}

template <int kTiles>
__device__ inline void StoreSums(const float (&d)[kTiles][4], float* out) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[OutIndex<kTiles>(n, i)] = d[n][i];
  }
}

// Stores both operands in shared memory, swizzled, and makes them visible to wgmma.
template <typename T, int kTiles>
__device__ void StoreOperands(const WgmmaParams<T>& p, T* a, T* b) {
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kDepth; i += 128) {
    a[SwizzledIndex(i / kDepth, i % kDepth, 64)] = p.a[i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTiles * kDepth; i += 128) {
    b[SwizzledIndex(i / kDepth, i % kDepth, 8 * kTiles)] = p.b[i];
  }
  FenceAsyncProxy();
  __syncthreads();
}

template <typename T, int kTiles>
__global__ void WgmmaSharedKernel(const __grid_constant__ WgmmaParams<T> p) {
  T* const a = DynamicShared<T>();
  T* const b = a + 64 * kDepth;
  StoreOperands<T, kTiles>(p, a, b);
  float d[kTiles][4];
  StartAsIndex(d);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    WgmmaShared<T>(d, WgmmaDescriptor(a + k * 16, 16, 1024), WgmmaDescriptor(b + k * 16, 16, 1024),
                   true);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  StoreSums(d, p.out);
}

// Multiplies over the two halves of the depth, each in one wgmma group. The first product is added
// to d, whose elements initially are their own indices. The second product is stored in e. The
// kernel waits for the first group and writes d to `out`, then waits for the second group and
// writes e after d.
template <typename T>
__global__ void WgmmaGroupsKernel(const __grid_constant__ WgmmaParams<T> p) {
  T* const a = DynamicShared<T>();
  T* const b = a + 64 * kDepth;
  StoreOperands<T, 16>(p, a, b);
  float d[16][4], e[16][4];
  StartAsIndex(d);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    WgmmaShared<T>(d, WgmmaDescriptor(a + k * 16, 16, 1024), WgmmaDescriptor(b + k * 16, 16, 1024),
                   true);
  }
  WgmmaCommit();
#pragma unroll
  for (int k = 2; k < 4; ++k) {
    WgmmaShared<T>(e, WgmmaDescriptor(a + k * 16, 16, 1024), WgmmaDescriptor(b + k * 16, 16, 1024),
                   k > 2);
  }
  WgmmaCommit();
  WgmmaWait<1>();
  StoreSums(d, p.out);
  WgmmaWait<0>();
  StoreSums(e, p.out + 64 * 128);
}

template <typename T, int kTiles>
__global__ void WgmmaRegistersKernel(const __grid_constant__ WgmmaParams<T> p) {
  constexpr int kCols = 8 * kTiles;
  T* const b = DynamicShared<T>();
  for (int i = static_cast<int>(threadIdx.x); i < kCols * kDepth; i += 128) {
    b[SwizzledIndex(i / kCols, i % kCols, kDepth)] = p.b[i];
  }
  FenceAsyncProxy();
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  const int row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
  float d[kTiles][4];
  StartAsIndex(d);
  uint32_t a[kDepth / 16][4];
#pragma unroll
  for (int i = 0; i < kDepth / 4; ++i) {
    a[i / 4][i % 4] =
        LoadReadOnly<uint32_t>(p.a + (row + i % 2 * 8) * kDepth + i / 4 * 16 + col + i % 4 / 2 * 8);
  }
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    WgmmaRegisters<T>(d, a[k], WgmmaDescriptor(b + k * 16 * 64, kDepth * 128, 1024));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  StoreSums(d, p.out);
}

template <typename T, int kTiles>
void CheckWgmma(Device& device, void (*kernel)(WgmmaParams<T>), bool columns_innermost) {
  constexpr size_t kCols = 8 * kTiles;
  const auto a = SmallIntegers<T>(64 * kDepth, 3), b = SmallIntegers<T>(kCols * kDepth, 4);
  DeviceArray<T> device_a(device, a), device_b(device, b);
  DeviceArray<float> out(device, 64 * kCols);
  const WgmmaParams<T> params = {device_a.data(), device_b.data(), out.data()};
  ASSERT_TRUE(Launch(device, {.block = {128}, .shared_bytes = (64 + int64_t{kCols}) * kDepth * 2},
                     kernel, params)
                  .ok());
  const auto got = out.ToHost();
  for (size_t row = 0; row < 64; ++row) {
    for (size_t col = 0; col < kCols; ++col) {
      float want = static_cast<float>(row * kCols + col);
      for (size_t k = 0; k < kDepth; ++k) {
        want += ValueOf(a[row * kDepth + k]) *
                ValueOf(columns_innermost ? b[k * kCols + col] : b[col * kDepth + k]);
      }
      EXPECT_EQ(got[row * kCols + col], want) << row << " " << col;
    }
  }
}

template <typename T, int kTiles>
void CheckWgmmaShared(Device& device) {
  CheckWgmma<T, kTiles>(device, &WgmmaSharedKernel<T, kTiles>, /*columns_innermost=*/false);
}

TEST_F(HopperPrimitivesTest, WarpgroupsMultiplyFromSharedMemory) {
  CheckWgmmaShared<Bf16, 8>(*device_);
  CheckWgmmaShared<F16, 8>(*device_);
  CheckWgmmaShared<Bf16, 16>(*device_);
  CheckWgmmaShared<F16, 16>(*device_);
}

TEST_F(HopperPrimitivesTest, WarpgroupsWaitForGroupsInTurnAndStartFromNothing) {
  const auto a = SmallIntegers<Bf16>(64 * kDepth, 5), b = SmallIntegers<Bf16>(128 * kDepth, 6);
  DeviceArray<Bf16> device_a(*device_, a), device_b(*device_, b);
  DeviceArray<float> out(*device_, 2 * 64 * 128);
  ASSERT_TRUE(Launch(*device_, {.block = {128}, .shared_bytes = 192 * kDepth * 2},
                     &WgmmaGroupsKernel<Bf16>, {device_a.data(), device_b.data(), out.data()})
                  .ok());
  const auto got = out.ToHost();
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t half = i / (64 * 128), row = i / 128 % 64, col = i % 128;
    float want = half == 0 ? static_cast<float>(row * 128 + col) : 0.0f;
    for (size_t k = half * kDepth / 2; k < (half + 1) * kDepth / 2; ++k) {
      want += ValueOf(a[row * kDepth + k]) * ValueOf(b[col * kDepth + k]);
    }
    EXPECT_EQ(got[i], want) << half << " " << row << " " << col;
  }
}

template <typename T, int kTiles>
void CheckWgmmaRegisters(Device& device) {
  CheckWgmma<T, kTiles>(device, &WgmmaRegistersKernel<T, kTiles>, /*columns_innermost=*/true);
}

TEST_F(HopperPrimitivesTest, WarpgroupsMultiplyFromRegisters) {
  CheckWgmmaRegisters<Bf16, 8>(*device_);
  CheckWgmmaRegisters<F16, 8>(*device_);
  CheckWgmmaRegisters<Bf16, 16>(*device_);
  CheckWgmmaRegisters<F16, 16>(*device_);
  CheckWgmmaRegisters<Bf16, 32>(*device_);
  CheckWgmmaRegisters<F16, 32>(*device_);
}

}  // namespace
}  // namespace quire::testing
