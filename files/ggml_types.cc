#include "files/ggml_types.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/strings.h"

namespace quire::files {
namespace {

using kernels::WeightType;

// ggml no longer uses the numbers 4, 5, 31 to 33 and 36 to 38.
constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, WeightType::kF32},        {1, "F16", 1, 2, WeightType::kF16},
    {30, "BF16", 1, 2, WeightType::kBF16},     {2, "Q4_0", 32, 18, WeightType::kQ4_0},
    {3, "Q4_1", 32, 20, WeightType::kQ4_1},    {6, "Q5_0", 32, 22, WeightType::kQ5_0},
    {7, "Q5_1", 32, 24, WeightType::kQ5_1},    {8, "Q8_0", 32, 34, WeightType::kQ8_0},
    {12, "Q4_K", 256, 144, WeightType::kQ4_K}, {13, "Q5_K", 256, 176, WeightType::kQ5_K},
    {14, "Q6_K", 256, 210, WeightType::kQ6_K}, {9, "Q8_1", 32, 36, std::nullopt},
    {10, "Q2_K", 256, 84, std::nullopt},       {11, "Q3_K", 256, 110, std::nullopt},
    {15, "Q8_K", 256, 292, std::nullopt},      {16, "IQ2_XXS", 256, 66, std::nullopt},
    {17, "IQ2_XS", 256, 74, std::nullopt},     {18, "IQ3_XXS", 256, 98, std::nullopt},
    {19, "IQ1_S", 256, 50, std::nullopt},      {20, "IQ4_NL", 32, 18, std::nullopt},
    {21, "IQ3_S", 256, 110, std::nullopt},     {22, "IQ2_S", 256, 82, std::nullopt},
    {23, "IQ4_XS", 256, 136, std::nullopt},    {24, "I8", 1, 1, std::nullopt},
    {25, "I16", 1, 2, std::nullopt},           {26, "I32", 1, 4, std::nullopt},
    {27, "I64", 1, 8, std::nullopt},           {28, "F64", 1, 8, std::nullopt},
    {29, "IQ1_M", 256, 56, std::nullopt},      {34, "TQ1_0", 256, 54, std::nullopt},
    {35, "TQ2_0", 256, 66, std::nullopt},      {39, "MXFP4", 32, 17, std::nullopt},
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

const GgmlType& GgmlTypeOf(WeightType weight_type) {
  const GgmlType* type = std::ranges::find(kTypes, weight_type, &GgmlType::weight_type);
  QUIRE_CHECK(type != std::end(kTypes)) << "no type of GGUF: " << kernels::Traits(weight_type).name;
  return *type;
}

std::string SupportedGgmlTypes() {
  std::string names;
  for (const GgmlType& type : kTypes) {
    if (!type.weight_type) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", base::ToAbsl(type.name));
  }
  return names;
}

}  // namespace quire::files
