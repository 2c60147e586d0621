#include "engine/kv/kv_check.h"

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/backend_registry.h"

namespace quire::engine {
namespace {

using kernels::DType;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Element {
  DType dtype;
  std::vector<uint8_t> largest, not_finite;  // bytes, the lowest first
};

class KvCheckTest : public ::testing::TestWithParam<Element> {};

// One element is enough, wherever it is. The largest number is finite.
TEST_P(KvCheckTest, FindsOneElementThatIsNotFinite) {
  const Element& element = GetParam();
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  const KvLayerShape layer = {.num_kv_heads = 1, .key_dim = 8, .value_dim = 8};
  std::vector<KvGroup> groups = GroupLayers(std::vector<kernels::AttentionPattern>(2), 100);
  groups[0].num_blocks = 2;
  const KvCache cache = *KvCache::Create(
      *backend, {.layers = {layer, layer}, .block_size = 16, .dtype = element.dtype}, groups);
  const std::vector<int32_t> blocks = {1};
  const std::vector<std::span<const int32_t>> by_group = {blocks};
  const auto describe = [&] { return *DescribeNonFiniteKv(*backend, cache, by_group); };
  const auto set = [&](int64_t block, int64_t at, const std::vector<uint8_t>& bytes) {
    auto* const values = static_cast<uint8_t*>(cache.layer(1).values.Rows(block, 1).raw());
    std::memcpy(values + at * SizeOf(element.dtype), bytes.data(), bytes.size());
  };
  const std::vector<uint8_t> zero(element.largest.size());
  for (int64_t at = 0; at < 16 * 8; ++at) {
    set(1, at, element.largest);
    EXPECT_THAT(describe(), IsEmpty()) << at;
    set(1, at, element.not_finite);
    EXPECT_THAT(describe(), HasSubstr("the values of layer 1 are not finite")) << at;
    set(1, at, zero);
  }
  set(0, 0, element.not_finite);
  EXPECT_THAT(describe(), IsEmpty()) << "block 0 is not to be inspected";
}

INSTANTIATE_TEST_SUITE_P(
    Types, KvCheckTest,
    ::testing::Values(Element{DType::kF32, {0xff, 0xff, 0x7f, 0xff}, {0, 0, 0x80, 0x7f}},
                      Element{DType::kF16, {0xff, 0xfb}, {0, 0x7c}},
                      Element{DType::kBF16, {0x7f, 0xff}, {0x80, 0xff}},
                      Element{DType::kF8E4M3, {0xfe}, {0x7f}}),
    [](const auto& element) { return std::string(Name(element.param.dtype)); });

}  // namespace
}  // namespace quire::engine
