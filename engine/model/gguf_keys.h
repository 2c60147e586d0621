#pragma once

// Writes an architecture's keys into the metadata of a GGUF file: "block_count" becomes
// "gemma3.block_count", as GgufFields reads it.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "files/gguf_values.h"

namespace quire::engine {

// Keys of Quire: the scales of an fp8 KV cache, a float32 for each layer. Other readers have no
// such keys, and ignore them.
inline constexpr std::string_view kGgufKCacheScales = "attention.k_cache_scales";
inline constexpr std::string_view kGgufVCacheScales = "attention.v_cache_scales";

class GgufKeys {
 public:
  // Borrows `values`.
  GgufKeys(files::GgufValues& values, std::string_view architecture)
      : values_(values), prefix_(std::string(architecture) + ".") {}

  void Int(std::string_view name, int64_t value) { values_.Int(Key(name), value); }
  // Writes one number if all are equal, else the array.
  void IntsOfLayers(std::string_view name, std::span<const int32_t> values) {
    if (std::ranges::count(values, values.front()) == std::ssize(values)) {
      Int(name, values.front());
    } else {
      values_.Ints(Key(name), values);
    }
  }
  void Float(std::string_view name, double value) { values_.Float(Key(name), value); }
  void Floats(std::string_view name, std::span<const float> values) {
    values_.Floats(Key(name), values);
  }
  void Bool(std::string_view name, bool value) { values_.Bool(Key(name), value); }
  void String(std::string_view name, std::string_view value) { values_.String(Key(name), value); }

 private:
  std::string Key(std::string_view name) const { return prefix_ + std::string(name); }

  files::GgufValues& values_;
  const std::string prefix_;
};

}  // namespace quire::engine
