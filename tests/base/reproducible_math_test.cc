// ctest runs these tests twice on x86-64: the second time with the variants of libm for processors
// without FMA.

#include "base/reproducible_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <unistd.h>

#include "gtest/gtest.h"

#include "tests/base/reproducible_math_values.h"

namespace quire::base {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

// Expects equal bits. Any NaN equals any other.
void ExpectBits(double got, double want, const std::string& what) {
  if (std::isnan(want) && std::isnan(got)) return;
  EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(want))
      << what << ": got " << std::hexfloat << got << ", want " << want;
}

std::string Text(const char* function, double x, double y = 0.0) {
  char text[100];
  std::snprintf(text, sizeof(text), "%s(%a, %a)", function, x, y);
  return text;
}

// Hides a value from the compiler, which would otherwise compute the function itself.
double AtRunTime(double x) {
  volatile double hidden = x;
  return hidden;
}

TEST(ReproducibleMathTest, HasTheSameBitsOnEveryMachine) {
  for (const Value& v : kLogs) ExpectBits(Log(AtRunTime(v.x)), v.result, Text("Log", v.x));
  for (const Value& v : kExps) ExpectBits(Exp(AtRunTime(v.x)), v.result, Text("Exp", v.x));
  for (const PowValue& v : kPows) {
    ExpectBits(Pow(AtRunTime(v.x), v.y), v.result, Text("Pow", v.x, v.y));
  }
  for (const AngleValue& v : kAngles) {
    ExpectBits(Sin(AtRunTime(v.x)), v.sine, Text("Sin", v.x));
    ExpectBits(Cos(AtRunTime(v.x)), v.cosine, Text("Cos", v.x));
  }
}

// FNV-1a over the bits of 2^16 results. The arguments are exact functions of a counter.
uint64_t HashOf(const std::function<double(double)>& function) {
  uint64_t hash = 0xCBF29CE484222325, state = 1;
  for (int i = 0; i < 1 << 16; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const double unit = static_cast<double>(state >> 11) * 0x1p-53;  // in [0, 1)
    hash = (hash ^ std::bit_cast<uint64_t>(function(unit))) * 0x100000001B3;
  }
  return hash;
}

TEST(ReproducibleMathTest, HashesOfManyResultsAreTheSameOnEveryMachine) {
  EXPECT_EQ(HashOf([](double u) { return Log(u + 0x1p-54); }), 0xB20E53545D2350FDu);
  EXPECT_EQ(HashOf([](double u) { return Log(1e9 * u + 1.0); }), 0xCB609D8CC2039616u);
  EXPECT_EQ(HashOf([](double u) { return Exp(1400.0 * u - 720.0); }), 0x6758C8949F55B446u);
  EXPECT_EQ(HashOf([](double u) { return Pow(500000.0, -u); }), 0x6AFCE6F508CA958Du);
  EXPECT_EQ(HashOf([](double u) { return Pow(100.0 * u, 9.5 - 19.0 * u); }), 0x86105E0FF534B62Cu);
  EXPECT_EQ(HashOf([](double u) { return Sin(8.0 * u - 4.0); }), 0xC19AFA03E9540E92u);
  EXPECT_EQ(HashOf([](double u) { return Sin(0x1p22 * u); }), 0x8FAD2DBADA63B98Du);
  EXPECT_EQ(HashOf([](double u) { return Cos(0x1p22 * u); }), 0x5741E77C4E866890u);
  EXPECT_EQ(HashOf([](double u) { return Cos(0x1p200 * u); }), 0x727409EB7152DC0Eu);
}

// The compiler evaluates constexpr calls with its own floating-point arithmetic.
TEST(ReproducibleMathTest, TheCompilerComputesTheSameBits) {
  constexpr double kLog = Log(0.3), kExp = Exp(-7.7), kPow = Pow(500000.0, -0.28125);
  constexpr double kSin = Sin(1234567.0), kCos = Cos(0x1.9p300);
  ExpectBits(Log(AtRunTime(0.3)), kLog, "Log");
  ExpectBits(Exp(AtRunTime(-7.7)), kExp, "Exp");
  ExpectBits(Pow(AtRunTime(500000.0), -0.28125), kPow, "Pow");
  ExpectBits(Sin(AtRunTime(1234567.0)), kSin, "Sin");
  ExpectBits(Cos(AtRunTime(0x1.9p300)), kCos, "Cos");
}

TEST(ReproducibleMathTest, HasTheSpecialValuesOfC) {
  ExpectBits(Log(0.0), -kInfinity, "Log(0)");
  ExpectBits(Log(-0.0), -kInfinity, "Log(-0)");
  ExpectBits(Exp(0.0), 1.0, "Exp(0)");
  ExpectBits(Sin(-0.0), -0.0, "Sin(-0)");
  for (const double x : {-kTiny, -1.0, -kInfinity, kNan}) ExpectBits(Log(x), kNan, Text("Log", x));
  for (const double x : {1.0, kInfinity}) ExpectBits(Log(x), std::log(x), Text("Log", x));
  for (const double x : {kInfinity, -kInfinity, kNan, 710.0, -746.0, kMax, -kMax, kTiny, -0.0}) {
    ExpectBits(Exp(x), std::exp(x), Text("Exp", x));
  }
  for (const double x : {kInfinity, -kInfinity, kNan, 0.0, kTiny, -kTiny, 0x1p-30}) {
    ExpectBits(Sin(x), std::sin(x), Text("Sin", x));
    ExpectBits(Cos(x), std::cos(x), Text("Cos", x));
  }
  // For every pair of these numbers, the result of Pow is NaN, exact, out of range, or next to a
  // power of two. So std::pow must give the same bits.
  const double edges[] = {0.0, 1.0, 2.0, 0.5, 0x1p1000, kTiny, kMax, 0x1p53, kInfinity, kNan};
  for (const double a : edges) {
    for (const double b :
         {0.0, 1.0, 2.0, 3.0, 1e300, kMax, 0x1p53, 0x1p53 - 1.0, kInfinity, kNan}) {
      for (const double x : {a, -a}) {
        for (const double y : {b, -b}) ExpectBits(Pow(x, y), std::pow(x, y), Text("Pow", x, y));
      }
    }
  }
  for (const double x : {-0.0, -kInfinity}) {
    for (const double y : {0.5, -0.5}) ExpectBits(Pow(x, y), std::pow(x, y), Text("Pow", x, y));
  }
  for (const double x : {-1.0, -2.5, -kMax, -kTiny}) {
    for (const double y : {0.5, -1.5, kTiny}) ExpectBits(Pow(x, y), kNan, Text("Pow", x, y));
  }
}

TEST(ReproducibleMathTest, PowersThatAreDoublesAreExact) {
  for (int n = -1074; n <= 1023; ++n)
    ExpectBits(Pow(2.0, n), std::ldexp(1.0, n), Text("Pow", 2, n));
  int compared = 0;
  for (int64_t base = 3; base < 1000; ++base) {
    int64_t power = base;
    for (int n = 1; power < int64_t{1} << 53; ++n, power *= base) {
      ExpectBits(Pow(static_cast<double>(base), n), static_cast<double>(power),
                 Text("Pow", static_cast<double>(base), n));
      ++compared;
      if (power > (int64_t{1} << 53) / base) break;
    }
  }
  EXPECT_GT(compared, 5000);
}

#if __LDBL_MANT_DIG__ >= 64

// Returns the difference between `got` and `want` in ulps (units in the last place) of a double
// near `want`.
double UlpsApart(double got, long double want) {
  const int exponent = std::max(std::ilogb(want), -1022);
  return static_cast<double>(std::abs(got - want) / std::ldexp(1.0L, exponent - 52));
}

// The last operation of each function rounds by at most 1/2 ulp. The list gives the other errors,
// in ulps of the result.
//   Log       A is the term from which f is subtracted, and |A| < 0.09. A - f rounds by 1/4, or
//             by 1/2 where the subtraction from k ln(2) is exact. The roundings of A itself add at
//             most 0.36, or 0.2 where A - f rounds by 1/4.
//   Exp, Pow  e^r is above 0.7, so an ulp is 2^-53 or more. The sum of r, with |r| <= 0.35, and
//             its correction rounds by 1/4. The correction is below 0.06. Four roundings and
//             the 2^-59 of the polynomial add 0.2. Below the normal range, all these errors count
//             half at most, and the second rounding adds 1/2.
//   Sin       The correction is below 0.081 where the result is 0.7, with an ulp of 2^-53. Its
//             last rounding adds 0.06, and the three roundings before that add 0.24. The 2^-58 of
//             the polynomial adds 0.02.
//   Cos       The rounding of 1 - z / 2 is added again, so it causes no error. The rounding of z
//             adds 1/4. The other terms are below 0.017, and add 0.05.
// So the bound is 1 ulp. The reference is a long double, which has 11 bits more than a double. The
// functions of long doubles are within 2 ulps of a long double.
constexpr double kBound = 1.0 + 0x1p-10;

class Arguments {
 public:
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  // Returns a number with a random exponent.
  double AnySize(int lowest, int highest) {
    return std::ldexp(Uniform(1.0, 2.0),
                      std::uniform_int_distribution<int>(lowest, highest)(random_));
  }

 private:
  std::mt19937_64 random_{1};
};

constexpr int kMany = 50000;

TEST(ReproducibleMathTest, LogIsWithinOneUlp) {
  Arguments random;
  double worst = 0.0;
  const auto check = [&](double x) {
    const double error = UlpsApart(Log(x), std::log(static_cast<long double>(x)));
    ASSERT_LE(error, kBound) << Text("Log", x);
    worst = std::max(worst, error);
  };
  for (int i = 0; i < kMany; ++i) {
    check(random.AnySize(-1074, 1023));
    check(random.Uniform(0.5, 2.0));
    check(1.0 + random.AnySize(-52, -2));
    check(1.0 - random.AnySize(-52, -2));
    check(random.Uniform(0.0, 1.0) + 0x1p-33);
  }
  for (const double x : {kTiny, 0x1p-1022, 0x1.fffffffffffffp-1023, kMax}) check(x);
  EXPECT_GT(worst, 0.5) << "the reference is not better than a double";
}

TEST(ReproducibleMathTest, ExpIsWithinOneUlp) {
  Arguments random;
  double worst = 0.0;
  const auto check = [&](double x) {
    const double error = UlpsApart(Exp(x), std::exp(static_cast<long double>(x)));
    ASSERT_LE(error, kBound) << Text("Exp", x);
    worst = std::max(worst, error);
  };
  for (int i = 0; i < kMany; ++i) {
    check(random.Uniform(-745.1, 709.78));
    check(random.Uniform(-745.1, -708.0));
    check(random.Uniform(-2.0, 2.0));
    check(random.AnySize(-1074, 2));
    check(-random.AnySize(-1074, 2));
  }
  EXPECT_GT(worst, 0.5);
}

TEST(ReproducibleMathTest, PowIsWithinOneUlp) {
  Arguments random;
  double worst = 0.0;
  const auto check = [&](double x, double y) {
    const long double want = std::pow(static_cast<long double>(x), static_cast<long double>(y));
    if (want >= 0x1.fffffffffffff8p1023L) return;
    const double error = UlpsApart(Pow(x, y), want);
    ASSERT_LE(error, kBound) << Text("Pow", x, y);
    worst = std::max(worst, error);
  };
  for (int i = 0; i < kMany; ++i) {
    check(random.Uniform(100.0, 1e8), random.Uniform(-1.0, 0.0));  // RoPE
    check(2.0, random.Uniform(-30.0, 0.0));                        // ALiBi
    const double x = random.AnySize(-1074, 1023);
    check(x, random.Uniform(-1074.0, 1024.0) / std::log2(x));
    const double near_one = 1.0 + random.AnySize(-52, -2);
    check(near_one, random.Uniform(-1074.0, 1024.0) / std::log2(near_one));
    const double below_one = 1.0 - random.AnySize(-52, -2);
    check(below_one, random.Uniform(-1074.0, 1024.0) / std::log2(below_one));
  }
  EXPECT_GT(worst, 0.5);
}

TEST(ReproducibleMathTest, SinAndCosAreWithinOneUlpAtAnyAngle) {
  Arguments random;
  double worst = 0.0;
  const auto check = [&](double x) {
    const double sine = UlpsApart(Sin(x), std::sin(static_cast<long double>(x)));
    const double cosine = UlpsApart(Cos(x), std::cos(static_cast<long double>(x)));
    ASSERT_LE(sine, kBound) << Text("Sin", x);
    ASSERT_LE(cosine, kBound) << Text("Cos", x);
    ExpectBits(Sin(-x), -Sin(x), Text("Sin", -x));
    ExpectBits(Cos(-x), Cos(x), Text("Cos", -x));
    worst = std::max({worst, sine, cosine});
  };
  for (int i = 0; i < kMany; ++i) {
    check(random.Uniform(0.0, 2.0));
    check(random.Uniform(0.0, 1000.0));
    check(random.Uniform(0.0, 0x1p31));
    check(random.AnySize(-1074, 1023));
    // The doubles around a multiple of pi / 2 lose most digits.
    const double multiple = std::floor(random.Uniform(1.0, 1e9)) * (M_PI / 2);
    check(multiple);
    check(std::nextafter(multiple, kInfinity));
  }
  // The double that is nearest of all to a multiple of pi / 2.
  check(6381956970095103.0 * 0x1p797);
  for (const double x : {kTiny, 0x1p-27, M_PI / 4, M_PI, 0x1p1023, kMax}) check(x);
  EXPECT_GT(worst, 0.5);
}

#endif

#if defined(__x86_64__) && defined(__GLIBC__)

uint64_t HashOfLibm() {
  return HashOf([](double u) {
    const double x = AtRunTime(u) + 0x1p-54;
    return std::log(x) + std::exp(x) + std::pow(x, 0.3) + std::sin(1e6 * x) + std::cos(1e6 * x);
  });
}

// Checks that the second run of ctest really uses another libm. Otherwise that run would show
// nothing.
TEST(LibmTest, DiffersFromTheUsualOneWhereItShould) {
  const std::string path = ::testing::TempDir() + "/usual_libm_hash_" + std::to_string(getpid());
  if (const char* const out = std::getenv("QUIRE_LIBM_HASH_TO")) {
    std::FILE* const file = std::fopen(out, "w");
    std::fprintf(file, "%llu", static_cast<unsigned long long>(HashOfLibm()));
    std::fclose(file);
    return;
  }
  if (std::getenv("GLIBC_TUNABLES") == nullptr) GTEST_SKIP() << "this is the usual libm";
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this processor has no FMA to do without";
  const std::string command = "env -u GLIBC_TUNABLES QUIRE_LIBM_HASH_TO=" + path + " " +
                              std::filesystem::read_symlink("/proc/self/exe").string() +
                              " --gtest_filter=LibmTest.*";
  ASSERT_EQ(std::system(command.c_str()), 0);
  unsigned long long usual = 0;
  std::FILE* const file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(std::fscanf(file, "%llu", &usual), 1);
  std::fclose(file);
  std::filesystem::remove(path);
  EXPECT_NE(HashOfLibm(), usual);
}

#endif

}  // namespace
}  // namespace quire::base
