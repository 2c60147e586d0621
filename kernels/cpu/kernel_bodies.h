// Defines every CPU kernel for one ISA. The translation unit of an ISA path defines the namespace
// and the vector width, includes this file once, and gets MakeKernels(). simd.h explains why
// everything is in an anonymous namespace.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/simd.h"

namespace quire::kernels::cpu::QUIRE_ISA_NAMESPACE {
namespace {

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/linear_body.h"
#include "kernels/cpu/moe_body.h"
#include "kernels/cpu/norm_body.h"
#include "kernels/cpu/qkv_post_body.h"
#include "kernels/cpu/quantize_body.h"
#include "kernels/cpu/shift_keys_body.h"
#ifdef QUIRE_AMX_TILES
#include "kernels/cpu/linear_amx_body.h"
#endif

template <class Format>
void QuantizedProduct(const LinearTile& tile) {
#ifdef QUIRE_AMX_TILES
  AmxLinear<Format>(tile);
#else
  QuantLinear<Format>(tile);
#endif
}

KernelTable MakeKernels(const char* name) {
  KernelTable table;
  table.name = name;
  table.quantize = Quantize;
  const auto set = [&table](WeightType type, void (*linear)(const LinearTile&)) {
    table.linear[static_cast<int>(type)] = linear;
  };
  set(WeightType::kF32, FloatLinear<FloatWeights<float>>);
  set(WeightType::kF16, FloatLinear<FloatWeights<Half>>);
  set(WeightType::kBF16, FloatLinear<FloatWeights<Brain>>);
  set(WeightType::kF8E4M3, FloatLinear<FloatWeights<E4M3>>);
  set(WeightType::kF8E4M3Scaled, FloatLinear<ScaledWeights>);
  set(WeightType::kQ4_0, QuantizedProduct<Q4_0Format>);
  set(WeightType::kQ4_1, QuantizedProduct<Q4_1Format>);
  set(WeightType::kQ5_0, QuantizedProduct<Q5_0Format>);
  set(WeightType::kQ5_1, QuantizedProduct<Q5_1Format>);
  set(WeightType::kQ8_0, QuantizedProduct<Q8_0Format>);
  set(WeightType::kQ4_K, QuantizedProduct<Q4_KFormat>);
  set(WeightType::kQ5_K, QuantizedProduct<Q5_KFormat>);
  set(WeightType::kQ6_K, QuantizedProduct<Q6_KFormat>);
  table.epilogue = Epilogue;
  table.norm = Norm;
  table.route = Route;
  table.combine = Combine;
  table.qkv_post = QkvPost;
  table.shift_keys = ShiftKeys;
  table.attention = Attention;
  table.attention_merge = MergeAttention;
  return table;
}

}  // namespace
}  // namespace quire::kernels::cpu::QUIRE_ISA_NAMESPACE
