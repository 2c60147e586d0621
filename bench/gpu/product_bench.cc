// The suite "linear": products with weights of every kind, and mixtures of experts.

#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "base/strings.h"
#include "bench/gpu/op_variants.h"
#include "bench/gpu/ops_bench.h"
#include "kernels/cuda/device/matrix_instruction.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "kernels/cuda/product/fp8_weight.h"
#include "kernels/cuda/product/moe.h"
#include "kernels/cuda/product/packed_choice.h"
#include "kernels/cuda/product/wgmma_grouped_gemm.h"

namespace quire::bench {

using kernels::Activation;
using kernels::DeviceBuffer;
using kernels::DType;
using kernels::LinearArgs;
using kernels::MoeArgs;
using kernels::TensorView;
using kernels::WeightType;
using kernels::cuda::CudaWeight;
using kernels::cuda::Device;
using kernels::cuda::GemmRows;
using kernels::cuda::GemmScales;
using kernels::cuda::MatrixInstruction;

namespace {

struct Product {
  const char* name;
  int64_t rows, cols;
  Activation activation;
  bool residual;
};

void AddLinear(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants,
               const Product& product) {
  const CudaWeight* const weight = arena.Weight(product.rows, product.cols);
  const bool epilogue = product.activation != Activation::kNone || product.residual;
  const int64_t outputs = IsGated(product.activation) ? product.rows / 2 : product.rows;
  std::vector<LinearArgs> steps;
  for (const int64_t tokens : shape.tokens) {
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, outputs});
    steps.push_back({.out = out,
                     .input = arena.Random(DType::kBF16, {tokens, product.cols}),
                     .weight = weight,
                     .residual = product.residual ? out : TensorView(),
                     .activation = product.activation});
  }
  const auto scratch = epilogue ? arena.Scratch(steps) : std::make_shared<DeviceBuffer>();
  for (const LinearArgs& args : steps) {
    const int64_t tokens = args.input.dim(0);
    double bytes =
        static_cast<double>(weight->bytes() + args.input.num_bytes() + args.out.num_bytes());
    // The partial sums in float32 are written and read again.
    if (epilogue) bytes += 8.0 * static_cast<double>(tokens * product.rows);
    if (product.residual) bytes += static_cast<double>(args.out.num_bytes());
    variants.Add(
        absl::StrCat("linear ", product.name, " M=", tokens, " N=", product.rows,
                     " K=", product.cols),
        {.bytes = bytes, .flops = 2.0 * static_cast<double>(tokens * product.rows * product.cols)},
        [=, &device] { return kernels::cuda::Linear(device, args, *scratch); });
  }
}

// Returns the products of steps of so many tokens, without an epilogue.
std::vector<LinearArgs> PlainSteps(Arena& arena, const CudaWeight* weight,
                                   const std::vector<int64_t>& steps) {
  std::vector<LinearArgs> products;
  for (const int64_t tokens : steps) {
    products.push_back({.out = arena.Zeroed(DType::kBF16, {tokens, weight->rows()}),
                        .input = arena.Random(DType::kBF16, {tokens, weight->cols()}),
                        .weight = weight});
  }
  return products;
}

// A step of few tokens reads packed weights as they are, once for every 64 tokens. A larger one
// expands them first.
template <WeightType kType>
void AddPackedLinear(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(kType);
  const int64_t rows = shape.hidden, cols = shape.intermediate;
  if (cols % traits.block_elements != 0) return;
  const CudaWeight* const weight = arena.PackedWeight(kType, rows, cols);
  const std::vector<LinearArgs> steps =
      PlainSteps(arena, weight, {1, 8, 16, 24, 32, 48, 64, 128, 256});
  const auto scratch = arena.Scratch(steps);
  for (const LinearArgs& args : steps) {
    const int64_t tokens = args.input.dim(0);
    const bool expanded =
        tokens > kernels::cuda::MostPackedTokens(kType, rows, cols, device.info().num_sms);
    const int64_t batches = expanded ? 1 : base::CeilDiv(tokens, kernels::cuda::kPackedBatch);
    double bytes = static_cast<double>(batches * weight->bytes() + args.input.num_bytes() +
                                       args.out.num_bytes());
    if (expanded) bytes += 2.0 * 2.0 * static_cast<double>(rows * cols);  // written, then read
    variants.Add(
        absl::StrCat("linear ", base::ToAbsl(traits.name), " M=", tokens, " N=", rows, " K=", cols),
        {.bytes = bytes, .flops = 2.0 * static_cast<double>(tokens * rows * cols)},
        [=, &device] { return kernels::cuda::Linear(device, args, *scratch); },
        expanded ? Expectation() : PackedExpectation(tokens));
  }
}

// Tokens and weights in e4m3: one kernel rounds the tokens, and cuBLASLt multiplies.
template <GemmScales kScales>
void AddFp8Linear(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const int64_t rows = shape.hidden, cols = shape.intermediate;
  constexpr bool kOfBlocks = kScales == GemmScales::kBlocks;
  constexpr int64_t kUnit =
      kOfBlocks ? kernels::cuda::kScaledGemmBlock : kernels::cuda::kScaledGemmUnit;
  if (device.info().compute_capability != 90 || rows % kUnit != 0 || cols % kUnit != 0) return;
  const CudaWeight* const weight = arena.Fp8Weight(kScales, rows, cols);
  const std::vector<LinearArgs> steps = PlainSteps(arena, weight, shape.tokens);
  const auto scratch = arena.Scratch(steps);
  for (const LinearArgs& args : steps) {
    const int64_t tokens = args.input.dim(0);
    // The tokens in e4m3 are written, then read.
    const double bytes =
        static_cast<double>(weight->bytes() + 2 * args.input.num_bytes() + args.out.num_bytes());
    variants.Add(
        absl::StrCat("linear e4m3 x e4m3, scales of ", kOfBlocks ? "blocks" : "rows", " M=", tokens,
                     " N=", rows, " K=", cols),
        // The ceiling is that of bf16, in whose time tensor cores multiply twice as many e4m3.
        {.bytes = bytes, .flops = static_cast<double>(tokens * rows * cols)},
        [=, &device] { return kernels::cuda::Linear(device, args, *scratch); },
        // 1,250 and 1,000 TFLOP/s of 1,560, and two launches.
        {.of_gemm = kOfBlocks ? 0.64 : 0.8, .launch_seconds = 6e-6});
  }
}

// Counts the experts that the tokens choose, each once. The choices of tokens are taken for
// independent. The packed experts of a large step are expanded: written and read in 16 bits.
void AddMixture(Device& device, const MixtureShape& mixture, const std::vector<int64_t>& steps,
                std::string_view weight_type, const CudaWeight* up, const CudaWeight* down,
                bool packed, Arena& arena, OpVariants& variants) {
  const int64_t hidden = mixture.hidden;
  const CudaWeight* const router = arena.Weight(mixture.num_experts, hidden);
  std::vector<MoeArgs> calls;
  for (const int64_t tokens : steps) {
    calls.push_back({.out = arena.Zeroed(DType::kBF16, {tokens, hidden}),
                     .input = arena.Random(DType::kBF16, {tokens, hidden}),
                     .router = router,
                     .up = up,
                     .down = down,
                     .num_experts_per_token = mixture.num_chosen});
  }
  const auto scratch = arena.Scratch(calls);
  for (const MoeArgs& args : calls) {
    const int64_t tokens = args.input.dim(0);
    const auto experts = static_cast<double>(mixture.num_experts);
    const auto chosen = static_cast<double>(mixture.num_chosen);
    const double share = 1.0 - std::pow(1.0 - chosen / experts, static_cast<double>(tokens));
    const auto weights =
        static_cast<double>(up->rows() * hidden + down->rows() * mixture.intermediate);
    const bool expanded = packed && tokens * mixture.num_chosen >= 128 * mixture.num_experts;
    const double bytes =
        static_cast<double>(up->bytes() + down->bytes()) + (expanded ? 2.0 * 2.0 * weights : 0.0);
    const int64_t rows_of_expert = tokens * mixture.num_chosen / mixture.num_experts;
    for (const auto instruction : {MatrixInstruction::kMma, MatrixInstruction::kWgmma}) {
      const bool wgmma = instruction == MatrixInstruction::kWgmma;
      if (wgmma && (!HasInstruction(device.info(), instruction) || (packed && !expanded) ||
                    rows_of_expert < kernels::cuda::kLeastWgmmaRows)) {
        continue;
      }
      variants.Add(
          absl::StrCat("moe ", mixture.name, " ", base::ToAbsl(weight_type), " M=", tokens,
                       wgmma ? " wgmma" : ""),
          {.bytes = bytes * share,
           .flops = 2.0 * static_cast<double>(tokens) * chosen * weights / experts},
          [=, &device] {
            return kernels::cuda::Moe(device, args, *scratch, GemmRows::kAny, instruction);
          },
          MixtureExpectation(expanded || !packed ? 1 : tokens, rows_of_expert, wgmma));
    }
  }
}

void AddMixtures(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const MixtureShape& mixture : shape.mixtures) {
    AddMixture(device, mixture, shape.mixture_tokens, "BF16",
               arena.Weight(mixture.num_experts * 2 * mixture.intermediate, mixture.hidden),
               arena.Weight(mixture.num_experts * mixture.hidden, mixture.intermediate),
               /*packed=*/false, arena, variants);
  }
}

template <WeightType kType>
void AddPackedMixtures(Device& device, const ModelShape& shape, Arena& arena,
                       OpVariants& variants) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(kType);
  for (const MixtureShape& mixture : shape.mixtures) {
    const int64_t hidden = mixture.hidden, inner = mixture.intermediate;
    if (hidden % traits.block_elements != 0 || inner % traits.block_elements != 0) continue;
    AddMixture(device, mixture, shape.mixture_tokens, traits.name,
               arena.PackedWeight(kType, mixture.num_experts * 2 * inner, hidden),
               arena.PackedWeight(kType, mixture.num_experts * hidden, inner), /*packed=*/true,
               arena, variants);
  }
}

}  // namespace

void RunLinear(const OpsRun& run) {
  RunEach(run, "linear",
          {[](Device& d, const ModelShape& s, Arena& a, OpVariants& v) {
             AddLinear(d, s, a, v, {"qkv", s.qkv(), s.hidden, Activation::kNone, false});
           },
           [](Device& d, const ModelShape& s, Arena& a, OpVariants& v) {
             AddLinear(d, s, a, v,
                       {"out", s.hidden, s.num_heads * s.head_dim, Activation::kNone, true});
           },
           [](Device& d, const ModelShape& s, Arena& a, OpVariants& v) {
             AddLinear(d, s, a, v,
                       {"gate_up", 2 * s.intermediate, s.hidden, Activation::kSiluMul, false});
           },
           [](Device& d, const ModelShape& s, Arena& a, OpVariants& v) {
             AddLinear(d, s, a, v, {"down", s.hidden, s.intermediate, Activation::kNone, true});
           },
           &AddPackedLinear<WeightType::kQ4_K>, &AddPackedLinear<WeightType::kQ6_K>,
           &AddPackedLinear<WeightType::kQ8_0>, &AddPackedLinear<WeightType::kQ4_0>,
           &AddPackedLinear<WeightType::kQ5_K>, &AddPackedLinear<WeightType::kF8E4M3Scaled>,
           &AddFp8Linear<GemmScales::kRows>, &AddFp8Linear<GemmScales::kBlocks>, &AddMixtures,
           &AddPackedMixtures<WeightType::kQ4_0>, &AddPackedMixtures<WeightType::kQ4_K>,
           &AddPackedMixtures<WeightType::kQ8_0>});
}

}  // namespace quire::bench
