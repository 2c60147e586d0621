// Tests the primitives against plain C++, except those in hopper_primitives_test.cu. On a GPU, the
// tests prove that the PTX of a primitive gives the same results as its emulation. Inputs are small
// integers where sums must be exact.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/small_integers.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;

constexpr unsigned kAllLanes = 0xffffffffu;

template <typename In, typename Out>
struct Arrays {
  const In* in;
  Out* out;
  int size;
};

class PrimitivesTest : public ::testing::Test {
 protected:
  // Runs `kernel` on `in` in one block of `threads` threads and returns the output.
  template <typename In, typename Out>
  std::vector<Out> Run(void (*kernel)(Arrays<In, Out>), const std::vector<In>& in, int64_t out_size,
                       unsigned threads = 32, int64_t shared_bytes = 0) {
    DeviceArray<In> device_in(*device_, in);
    DeviceArray<Out> device_out(*device_, out_size);
    const Arrays<In, Out> arrays = {device_in.data(), device_out.data(),
                                    static_cast<int>(in.size())};
    EXPECT_TRUE(
        Launch(*device_, {.block = {threads}, .shared_bytes = shared_bytes}, kernel, arrays).ok());
    return device_out.ToHost();
  }

  std::unique_ptr<Device> device_ = MakeDevice();
};

// --- Numbers

template <typename T>
__global__ void DecodeKernel(const __grid_constant__ Arrays<uint16_t, float> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += static_cast<int>(blockDim.x)) {
    p.out[i] = ToFloat(T{p.in[i]});
  }
}

template <typename T>
__global__ void EncodeKernel(const __grid_constant__ Arrays<float, uint16_t> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += static_cast<int>(blockDim.x)) {
    p.out[i] = FromFloat<T>(p.in[i]).bits;
  }
}

// Packs two numbers at a time and unpacks them again.
template <typename T>
__global__ void PackKernel(const __grid_constant__ Arrays<float, float> p) {
  for (int i = static_cast<int>(threadIdx.x) * 2; i < p.size; i += 64) {
    const float2 pair = Unpack2<T>(Pack2<T>(p.in[i], p.in[i + 1]));
    p.out[i] = pair.x;
    p.out[i + 1] = pair.y;
  }
}

std::vector<uint16_t> All16BitNumbers() {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

// Returns numbers near every border of rounding to f16 and bf16: near the midpoints between
// neighbouring numbers, near the largest numbers, and near the smallest.
std::vector<float> NumbersToRound() {
  std::vector<float> numbers = {0.0f,
                                -0.0f,
                                65504.0f,
                                65519.9f,
                                65520.0f,
                                0x1p-24f,
                                0x1p-25f,
                                0x1p-26f,
                                INFINITY,
                                -INFINITY,
                                std::numeric_limits<float>::max()};
  for (const float base : {1.0f, 3.0f, -1.5f, 0x1p-14f, 0x1.8p-15f, 1000.0f}) {
    for (const float step : {0x1p-7f, 0x1p-8f, 0x1p-9f, 0x1p-10f, 0x1p-11f, 0x1p-12f}) {
      for (const float factor : {1.0f, 1.5f, 0.999f, 1.001f}) {
        numbers.push_back(base * (1.0f + step * factor));
      }
    }
  }
  numbers.resize(numbers.size() / 2 * 2);
  return numbers;
}

void ExpectSameNumbers(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i;  // a device may choose which NaN
    } else {
      EXPECT_EQ(got[i], want[i]) << i;
    }
  }
}

void CheckNumbers(const std::vector<float>& decoded, const std::vector<uint16_t>& encoded,
                  const std::vector<float>& packed, float (*decode)(uint16_t),
                  uint16_t (*encode)(float)) {
  std::vector<float> want;
  for (const uint16_t bits : All16BitNumbers()) want.push_back(decode(bits));
  ExpectSameNumbers(decoded, want);
  std::vector<uint16_t> want_bits;
  std::vector<float> want_packed;
  for (const float number : NumbersToRound()) {
    want_bits.push_back(encode(number));
    want_packed.push_back(decode(want_bits.back()));
  }
  EXPECT_EQ(encoded, want_bits);
  ExpectSameNumbers(packed, want_packed);
}

TEST_F(PrimitivesTest, Bf16) {
  const auto numbers = NumbersToRound();
  const auto size = static_cast<int64_t>(numbers.size());
  CheckNumbers(Run(&DecodeKernel<Bf16>, All16BitNumbers(), 1 << 16),
               Run(&EncodeKernel<Bf16>, numbers, size), Run(&PackKernel<Bf16>, numbers, size),
               &kernels::Bf16ToF32, &kernels::F32ToBf16);
}

TEST_F(PrimitivesTest, F16) {
  const auto numbers = NumbersToRound();
  const auto size = static_cast<int64_t>(numbers.size());
  CheckNumbers(Run(&DecodeKernel<F16>, All16BitNumbers(), 1 << 16),
               Run(&EncodeKernel<F16>, numbers, size), Run(&PackKernel<F16>, numbers, size),
               &kernels::F16ToF32, &kernels::F32ToF16);
}

__global__ void DecodeE4M3Kernel(const __grid_constant__ Arrays<uint8_t, float> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += 32)
    p.out[i] = ToFloat(E4M3{p.in[i]});
}
__global__ void EncodeE4M3Kernel(const __grid_constant__ Arrays<float, uint8_t> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += 32) {
    p.out[i] = FromFloat<E4M3>(p.in[i]).bits;
  }
}

// A cache that one device wrote has the bits of another's, NaN included.
TEST_F(PrimitivesTest, E4M3HasTheBitsOfTheHost) {
  std::vector<uint8_t> codes(256), want_codes;
  std::vector<float> want;
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i);
    want.push_back(kernels::E4M3ToF32(codes[i]));
  }
  ExpectSameNumbers(Run(&DecodeE4M3Kernel, codes, 256), want);
  std::vector<float> numbers = NumbersToRound();
  for (size_t i = 0; i + 1 < 0x7f; ++i) {  // the middles of two neighbours
    const float middle = (want[i] + want[i + 1]) / 2;
    numbers.insert(numbers.end(), {middle, -middle, std::nextafter(middle, INFINITY)});
  }
  for (const float number : numbers) want_codes.push_back(kernels::F32ToE4M3(number));
  EXPECT_EQ(Run(&EncodeE4M3Kernel, numbers, std::ssize(numbers)), want_codes);
}

__global__ void SignExtendKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += 32) {
    p.out[3 * i] = SignExtend<0, 2>(p.in[i]);
    p.out[3 * i + 1] = SignExtend<1, 3>(p.in[i]);
    p.out[3 * i + 2] = SignExtend<2, 3>(p.in[i]);
  }
}

TEST_F(PrimitivesTest, BytesBecome16Bits) {
  const std::vector<uint32_t> words = {0x00000000, 0x7f017e02, 0x80818283, 0xff7f00fe, 0x01ff8000};
  EXPECT_EQ(Run(&SignExtendKernel, words, 3 * std::ssize(words)),
            (std::vector<uint32_t>{0, 0, 0, 0x00010002, 0x007f007e, 0x007f0001, 0xff81ff83,
                                   0xff80ff82, 0xff80ff81, 0x007ffffe, 0xffff0000, 0xffff007f,
                                   0xffff0000, 0x0001ff80, 0x0001ffff}));
}

__global__ void MultiplyBf16Kernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += 32) {
    p.out[2 * i] = MultiplyBf16(p.in[i], 0x5f805f80);      // by 2^64
    p.out[2 * i + 1] = MultiplyBf16(p.in[i], 0xbfc04040);  // by 3 and -1.5
  }
}

// Zeros keep their signs, subnormal numbers become normal, and products are rounded.
TEST_F(PrimitivesTest, ProductsOfPairsOfBf16) {
  std::vector<uint32_t> pairs;
  std::vector<uint32_t> want;
  const auto product = [](uint32_t bits, float factor) -> uint32_t {
    const auto half = static_cast<uint16_t>(bits);
    return kernels::F32ToBf16(kernels::Bf16ToF32(half) * factor);
  };
  for (uint32_t low = 0; low < 0x10000; ++low) {
    const uint32_t high = (low * 0x9e37 + 0x8000) % 0x10000;
    const auto is_nan = [](uint32_t bits) { return (bits & 0x7fff) > 0x7f80; };
    if (is_nan(low) || is_nan(high)) continue;
    pairs.push_back(low | high << 16);
    want.push_back(product(low, 0x1p64f) | product(high, 0x1p64f) << 16);
    want.push_back(product(low, 3.0f) | product(high, -1.5f) << 16);
  }
  EXPECT_EQ(Run(&MultiplyBf16Kernel, pairs, 2 * std::ssize(pairs)), want);
}

// Writes three results for each number: Exp2 of the number, Log2 of its magnitude, and Reciprocal.
__global__ void FunctionsKernel(const __grid_constant__ Arrays<float, float> p) {
  for (int i = static_cast<int>(threadIdx.x); i < p.size; i += static_cast<int>(blockDim.x)) {
    p.out[3 * i] = Exp2(p.in[i]);
    p.out[3 * i + 1] = Log2(fabsf(p.in[i]));
    p.out[3 * i + 2] = Reciprocal(p.in[i]);
  }
}

TEST_F(PrimitivesTest, Functions) {
  std::vector<float> numbers;
  for (int i = 1; i < 400; ++i) {
    numbers.push_back(static_cast<float>(i) * 0.21f);
    numbers.push_back(static_cast<float>(-i) * 0.21f);
    numbers.push_back(std::exp2(static_cast<float>(i - 200) * 0.3f));
  }
  const auto got = Run(&FunctionsKernel, numbers, static_cast<int64_t>(numbers.size()) * 3);
  // The PTX manual promises errors of at most 2 ulp for Exp2, 2^-22 for Log2 and 1 ulp for
  // Reciprocal. The bounds here are twice as large.
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double x = numbers[i];
    if (x < 127.0) {
      EXPECT_NEAR(got[3 * i], std::exp2(x), 0x1p-21 * std::exp2(x)) << x;
    }
    const double log = std::log2(std::abs(x));
    EXPECT_NEAR(got[3 * i + 1], log, 0x1p-21 * std::max(1.0, std::abs(log))) << x;
    EXPECT_NEAR(got[3 * i + 2], 1.0 / x, 0x1p-22 * std::abs(1.0 / x)) << x;
  }
}

TEST_F(PrimitivesTest, Exp2OfMinusInfinityIsZero) {
  EXPECT_EQ(Run(&FunctionsKernel, std::vector<float>{-INFINITY}, 3)[0], 0.0f);
}

// The soft cap of a large score divides by infinity.
TEST_F(PrimitivesTest, ReciprocalOfInfinityIsZero) {
  EXPECT_EQ(Run(&FunctionsKernel, std::vector<float>{INFINITY}, 3)[2], 0.0f);
}

// --- Memory

template <typename V>
__global__ void MoveKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  constexpr int kWords = sizeof(V) / 4;
  const int first = static_cast<int>(threadIdx.x) * kWords;
  if (first < p.size) StoreVector(p.out + first, LoadReadOnly<V>(p.in + first));
}

std::vector<uint32_t> Counting(uint32_t size) {
  std::vector<uint32_t> words(size);
  for (uint32_t i = 0; i < size; ++i) words[i] = i * 0x01010101u + 7;
  return words;
}

TEST_F(PrimitivesTest, VectorsMoveWhole) {
  const auto words = Counting(32);
  EXPECT_EQ(Run(&MoveKernel<unsigned>, words, 32), words);
  EXPECT_EQ(Run(&MoveKernel<uint2>, words, 32), words);
  EXPECT_EQ(Run(&MoveKernel<uint4>, words, 32), words);
}

// Each lane copies kBytes in each of two groups, and odd lanes get zeros. The kernel waits for the
// first group, reads what the group copied, and only then waits for the second group.
template <int kBytes>
__global__ void CopyKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  constexpr int kWords = kBytes / 4;
  uint32_t* const shared = DynamicShared<uint32_t>();
  const int lane = static_cast<int>(threadIdx.x), first = lane * kWords;
  for (int group = 0; group < 2; ++group) {
    CpAsync<kBytes>(shared + group * 128 + first, p.in + group * 128 + first, lane % 2 == 0);
    CpAsyncCommit();
  }
  CpAsyncWait<1>();
  for (int i = 0; i < kWords; ++i) p.out[first + i] = shared[first + i];
  CpAsyncWait<0>();
  for (int i = 0; i < kWords; ++i) p.out[128 + first + i] = shared[128 + first + i];
}

template <int kBytes>
void CheckCopy(const std::vector<uint32_t>& in, const std::vector<uint32_t>& got) {
  constexpr uint32_t kWords = kBytes / 4;
  for (uint32_t group = 0; group < 2; ++group) {
    for (uint32_t i = 0; i < 32 * kWords; ++i) {
      const uint32_t word = group * 128 + i;
      EXPECT_EQ(got[word], i / kWords % 2 == 0 ? in[word] : 0) << word;
    }
  }
}

// Lanes whose copy is not wanted have no source, and keep what was there.
__global__ void CopyIfKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  const auto lane = static_cast<int>(threadIdx.x);
  uint32_t* const shared = DynamicShared<uint32_t>() + lane * 4;
  for (int i = 0; i < 4; ++i) shared[i] = 7;
  const bool wanted = lane % 4 < 2;
  CpAsyncIf(wanted, shared, wanted ? p.in + lane * 4 : nullptr, lane % 2 == 0);
  CpAsyncCommit();
  CpAsyncWait<0>();
  for (int i = 0; i < 4; ++i) p.out[lane * 4 + i] = shared[i];
}

TEST_F(PrimitivesTest, CopiesThatAreNotWantedAreNotMade) {
  const auto in = Counting(128);
  const auto got = Run(&CopyIfKernel, in, 128, 32, 512);
  for (uint32_t i = 0; i < 128; ++i) {
    const uint32_t lane = i / 4;
    EXPECT_EQ(got[i], lane % 4 >= 2 ? 7 : lane % 2 == 0 ? in[i] : 0) << i;
  }
}

TEST_F(PrimitivesTest, AsynchronousCopies) {
  const auto in = Counting(256);
  CheckCopy<4>(in, Run(&CopyKernel<4>, in, 256, 32, 1024));
  CheckCopy<8>(in, Run(&CopyKernel<8>, in, 256, 32, 1024));
  CheckCopy<16>(in, Run(&CopyKernel<16>, in, 256, 32, 1024));
}

// --- Matrices

// Loads kMatrices 8 x 8 matrices that are stored one after another.
template <int kMatrices, bool kTransposed>
__global__ void LoadMatrixKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < p.size; i += 32) shared[i] = p.in[i];
  __syncwarp();
  uint32_t r[kMatrices];
  const uint32_t* const row = shared + lane % (8 * kMatrices) * 4;
  if constexpr (kTransposed) {
    LdMatrixTransposed(r, row);
  } else {
    LdMatrix(r, row);
  }
  for (int i = 0; i < kMatrices; ++i) p.out[i * 32 + lane] = r[i];
}

template <int kMatrices, bool kTransposed>
void CheckLoadMatrix(const std::vector<uint32_t>& got) {
  for (uint32_t matrix = 0; matrix < kMatrices; ++matrix) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t want = 0;
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t major = lane / 4, minor = lane % 4 * 2 + i;
        const uint32_t row = kTransposed ? minor : major, col = kTransposed ? major : minor;
        want |= (matrix * 64 + row * 8 + col) << (16 * i);
      }
      EXPECT_EQ(got[matrix * 32 + lane], want) << matrix << " " << lane;
    }
  }
}

TEST_F(PrimitivesTest, MatricesLoadInFragments) {
  std::vector<uint32_t> in(128);  // element i is the 16-bit number i
  for (uint32_t i = 0; i < 128; ++i) in[i] = 2 * i | (2 * i + 1) << 16;
  CheckLoadMatrix<1, false>(Run(&LoadMatrixKernel<1, false>, in, 32, 32, 512));
  CheckLoadMatrix<2, false>(Run(&LoadMatrixKernel<2, false>, in, 64, 32, 512));
  CheckLoadMatrix<4, false>(Run(&LoadMatrixKernel<4, false>, in, 128, 32, 512));
  CheckLoadMatrix<1, true>(Run(&LoadMatrixKernel<1, true>, in, 32, 32, 512));
  CheckLoadMatrix<2, true>(Run(&LoadMatrixKernel<2, true>, in, 64, 32, 512));
  CheckLoadMatrix<4, true>(Run(&LoadMatrixKernel<4, true>, in, 128, 32, 512));
}

// Multiplies matrices. `in` holds a [16, 16] and then b [8, 16], both with k innermost. `out` is c
// [16, 8] plus a . b^T, where every element of c is its own index.
template <typename T>
__global__ void MmaKernel(const __grid_constant__ Arrays<T, float> p) {
  const int lane = static_cast<int>(threadIdx.x), row = lane / 4, col = lane % 4 * 2;
  const auto pair = [&](int offset) { return LoadReadOnly<uint32_t>(p.in + offset); };
  const uint32_t a[4] = {pair(row * 16 + col), pair((row + 8) * 16 + col), pair(row * 16 + col + 8),
                         pair((row + 8) * 16 + col + 8)};
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = static_cast<float>((row + i / 2 * 8) * 8 + col + i % 2);
  Mma<T>(c, a, pair(256 + row * 16 + col), pair(256 + row * 16 + col + 8));
  for (int i = 0; i < 4; ++i) p.out[(row + i / 2 * 8) * 8 + col + i % 2] = c[i];
}

template <typename T>
void CheckMma(const std::vector<T>& in, const std::vector<float>& got) {
  for (size_t row = 0; row < 16; ++row) {
    for (size_t col = 0; col < 8; ++col) {
      float want = static_cast<float>(row * 8 + col);
      for (size_t k = 0; k < 16; ++k) {
        want += ValueOf(in[row * 16 + k]) * ValueOf(in[256 + col * 16 + k]);
      }
      EXPECT_EQ(got[row * 8 + col], want) << row << " " << col;
    }
  }
}

TEST_F(PrimitivesTest, MatricesMultiply) {
  const auto bf16 = SmallIntegers<Bf16>(256 + 128, 1);
  CheckMma(bf16, Run(&MmaKernel<Bf16>, bf16, 128));
  const auto f16 = SmallIntegers<F16>(256 + 128, 2);
  CheckMma(f16, Run(&MmaKernel<F16>, f16, 128));
}

// The elements of b are subnormal, as those of an fp8 cache are below e4m3's normal numbers. Those
// of a are so large that the sums are exact.
template <typename T>
std::vector<T> SubnormalFactors(float power, uint16_t (*encode)(float)) {
  std::vector<T> in = SmallIntegers<T>(256, 3);
  for (T& a : in) a.bits = encode(ValueOf(a) * power);
  for (uint16_t i = 0; i < 128; ++i) {
    in.push_back(T{static_cast<uint16_t>(i % 8 | i % 3 / 2 << 15)});
  }
  return in;
}

TEST_F(PrimitivesTest, SubnormalMatricesMultiply) {
  const auto bf16 = SubnormalFactors<Bf16>(0x1p120f, &kernels::F32ToBf16);
  CheckMma(bf16, Run(&MmaKernel<Bf16>, bf16, 128));
  const auto f16 = SubnormalFactors<F16>(0x1p8f, &kernels::F32ToF16);
  CheckMma(f16, Run(&MmaKernel<F16>, f16, 128));
}

// --- Warps

__global__ void ShuffleKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t value = p.in[lane];
  p.out[lane] = __shfl_sync(kAllLanes, value, lane * 5 + 3);
  p.out[32 + lane] = __shfl_xor_sync(kAllLanes, value, 5);
  p.out[64 + lane] = __shfl_up_sync(kAllLanes, value, 3);
  p.out[96 + lane] = __shfl_down_sync(kAllLanes, value, 3);
  p.out[128 + lane] = __ballot_sync(kAllLanes, lane % 3 == 0);
  p.out[160 + lane] =
      (__any_sync(kAllLanes, lane == 9) ? 1 : 0) | (__any_sync(kAllLanes, lane == 32) ? 2 : 0) |
      (__all_sync(kAllLanes, lane < 32) ? 4 : 0) | (__all_sync(kAllLanes, lane != 9) ? 8 : 0);
  // The upper half of the warp shuffles without the lower half.
  if (lane >= 16) p.out[192 + lane] = __shfl_xor_sync(0xffff0000u, value, 15);
}

TEST_F(PrimitivesTest, LanesExchange) {
  const auto in = Counting(32);
  const auto got = Run(&ShuffleKernel, in, 224);
  uint32_t thirds = 0;
  for (uint32_t lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(got[lane], in[(lane * 5 + 3) % 32]);
    EXPECT_EQ(got[32 + lane], in[lane ^ 5]);
    EXPECT_EQ(got[64 + lane], in[lane < 3 ? lane : lane - 3]);
    EXPECT_EQ(got[96 + lane], in[lane > 28 ? lane : lane + 3]);
    EXPECT_EQ(got[128 + lane], thirds);
    EXPECT_EQ(got[160 + lane], 5u);
    if (lane >= 16) {
      EXPECT_EQ(got[192 + lane], in[lane ^ 15]);
    }
  }
}

// Warps 0 and 1 exchange values through one named barrier, and warps 2 and 3 through another.
__global__ void NamedBarrierKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  const int thread = static_cast<int>(threadIdx.x), pair = thread / 64;
  shared[thread] = p.in[thread];
  NamedBarrier(1 + pair, 64);
  p.out[thread] = shared[pair * 64 + 63 - thread % 64];
}

TEST_F(PrimitivesTest, NamedBarriers) {
  const auto in = Counting(128);
  const auto got = Run(&NamedBarrierKernel, in, 128, 128, 512);
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(got[i], in[i / 64 * 64 + 63 - i % 64]);
}

__global__ void GridDependencyKernel(const __grid_constant__ Arrays<uint32_t, uint32_t> p) {
  GridDependencyWait();
  p.out[threadIdx.x] = p.in[threadIdx.x] + 1;
  GridDependencyLaunch();
}

TEST_F(PrimitivesTest, ADependentLaunchSeesWhatTheOneBeforeItWrote) {
  DeviceArray<uint32_t> a(*device_, Counting(32)), b(*device_, 32), c(*device_, 32);
  const Arrays<uint32_t, uint32_t> first = {a.data(), b.data(), 32},
                                   second = {b.data(), c.data(), 32};
  ASSERT_TRUE(Launch(*device_, {.block = {32}}, &GridDependencyKernel, first).ok());
  ASSERT_TRUE(
      Launch(*device_, {.block = {32}, .overlaps_previous = true}, &GridDependencyKernel, second)
          .ok());
  const auto got = c.ToHost();
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(got[i], Counting(32)[i] + 2);
}

}  // namespace
}  // namespace quire::testing
