#pragma once

// Random numbers that are the same on every machine, unlike those of std's distributions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace quire::tools {

// SplitMix64's mixing function: a bijection whose results look random.
inline uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Bits() { return engine_(); }
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }  // in [0, 1)
  double Exponential(double mean) { return -mean * std::log(1.0 - Uniform()); }
  // Geometric over 1, 2 .. with this mean, which is at least 1.
  int64_t Geometric(double mean) {
    return 1 + static_cast<int64_t>(Exponential(std::max(mean - 0.5, 0.0)));
  }
  double LogNormal(double median, double sigma) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return median * std::exp(sigma * radius * std::cos(2.0 * std::numbers::pi * Uniform()));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace quire::tools
