#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/cuda_weight_layout.h"
#include "kernels/cuda/product/expert_product.h"
#include "kernels/cuda/product/grouped_gemm_params.h"
#include "kernels/cuda/product/moe.h"
#include "kernels/cuda/product/moe_routing.cuh"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/cuda/product/weight_product.h"

namespace quire::kernels::cuda {
namespace {

// The arrays in scratch memory for one round. A round processes as many tokens as fit.
struct MoeScratch {
  GemmRows gemm_rows = GemmRows::kAny;  // of the router
  void* padding;                        // of FixedRowsGemm
  float* logits;                        // [tokens, experts]
  int32_t* experts;                     // [choices]
  float* weights;                       // [choices]
  int32_t* rows;                        // [choices]
  int32_t* choices;                     // [choices]
  int32_t* starts;                      // [experts + 1]
  void* inner;                          // [choices, intermediate]
  float* y;                             // [choices, hidden]
  ProductScratch experts_expanded;
};

// Sets the pointers of `scratch` to arrays for `tokens` tokens, one after another from `base`.
// Returns the size of all arrays in bytes. If `base` is null, the pointers are null too.
int64_t Divide(const MoeArgs& args, int64_t tokens, char* base, MoeScratch* scratch) {
  int64_t used = 0;
  const auto take = [&](int64_t elements, int64_t size) {
    char* const at = base == nullptr ? nullptr : base + used;
    used += base::RoundUp(elements * size, kScratchAlignment);
    return at;
  };
  const int64_t choices = tokens * args.num_experts_per_token;
  const auto ints = [&](int64_t n) { return reinterpret_cast<int32_t*>(take(n, 4)); };
  const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(take(n, 4)); };
  if (scratch->gemm_rows == GemmRows::kFixed) {
    scratch->padding = take(
        FixedRowsScratchBytes(args.input.dim(1), NumExperts(args), args.input.dtype()), /*size=*/1);
  }
  scratch->logits = floats(tokens * NumExperts(args));
  scratch->experts = ints(choices);
  scratch->weights = floats(choices);
  scratch->rows = ints(choices);
  scratch->choices = ints(choices);
  scratch->starts = ints(NumExperts(args) + 1);
  scratch->inner = take(choices * IntermediateSize(args), SizeOf(args.input.dtype()));
  scratch->y = floats(choices * args.input.dim(1));
  return used;
}

bool HasPackedExperts(const MoeArgs& args) {
  return static_cast<const CudaWeight*>(args.up)->is_packed() ||
         static_cast<const CudaWeight*>(args.down)->is_packed();
}

// Packed experts are expanded into what the arrays leave, a quarter of the scratch memory at least:
// of 256 MiB, 64 hold a quarter of the gate and up of an expert of 14336 rows of 4096.
int64_t ArrayBytes(const MoeArgs& args, int64_t scratch_bytes) {
  return HasPackedExperts(args) ? scratch_bytes / 4 * 3 / kScratchAlignment * kScratchAlignment
                                : scratch_bytes;
}

// Returns the most tokens that a round can process with any scratch memory. The grid of the
// products has up to one block in y for each choice, and CUDA allows 65535.
int64_t MostTokensAtOnce(const MoeArgs& args) {
  constexpr int64_t kMostBlocks = 65535;
  return std::min(args.input.dim(0), kMostBlocks / args.num_experts_per_token);
}

// Returns the most tokens of which the arrays fit into the scratch memory, at least one.
int64_t TokensAtOnce(const MoeArgs& args, GemmRows gemm_rows, int64_t scratch_bytes) {
  int64_t least = 1, most = MostTokensAtOnce(args);
  while (least < most) {
    const int64_t middle = (least + most + 1) / 2;
    MoeScratch ignored = {.gemm_rows = gemm_rows};
    if (Divide(args, middle, nullptr, &ignored) <= scratch_bytes) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

absl::Status Products(Device& device, const MoeArgs& args, const MoeScratch& scratch,
                      TensorView input, MatrixInstruction instruction) {
  const int64_t choices = input.dim(0) * args.num_experts_per_token;
  GroupedGemmParams params = {.out = scratch.inner,
                              .input = input.raw(),
                              .bias = args.up_bias.data<float>(),
                              .starts = scratch.starts,
                              .choices = scratch.choices,
                              .input_weights = args.weights_scale_input ? scratch.weights : nullptr,
                              .num_groups = static_cast<int32_t>(NumExperts(args)),
                              .rows_per_input = static_cast<int32_t>(args.num_experts_per_token),
                              .cols = IntermediateSize(args),
                              .depth = input.dim(1),
                              .activation = args.activation,
                              .activation_limit = args.activation_limit};
  const auto& up = static_cast<const CudaWeight&>(*args.up);
  RETURN_IF_ERROR(ExpertProduct(device, up, params, choices, /*gated=*/true,
                                scratch.experts_expanded, instruction));
  params.out = scratch.y;
  params.input = scratch.inner;
  params.bias = args.down_bias.data<float>();
  params.choices = nullptr;
  params.input_weights = nullptr;
  std::swap(params.cols, params.depth);
  const auto& down = static_cast<const CudaWeight&>(*args.down);
  return ExpertProduct(device, down, params, choices, /*gated=*/false, scratch.experts_expanded,
                       instruction);
}

absl::Status Combine(Device& device, const MoeArgs& args, const MoeScratch& scratch, TensorView out,
                     TensorView residual) {
  const int64_t hidden = out.dim(1);
  const MoeCombineParams params = {.out = out.raw(),
                                   .residual = residual.raw(),
                                   .y = scratch.y,
                                   .rows = scratch.rows,
                                   .weights = args.weights_scale_input ? nullptr : scratch.weights,
                                   .num_chosen = static_cast<int32_t>(args.num_experts_per_token),
                                   .hidden = hidden};
  return WithElementType(out.dtype(), [&](auto element) {
    using T = decltype(element);
    return WithVectorOf<T>(hidden, [&](auto count) -> absl::Status {
      constexpr int kCount = decltype(count)::value;
      return Launch(
          device,
          {.grid = {static_cast<unsigned>(out.dim(0))}, .block = {RowThreads(hidden, kCount)}},
          &MoeCombineKernel<T, kCount>, params);
    });
  });
}

// Returns the scratch memory of the router's product. Packed rows of the router are expanded into
// memory for the products of the experts, which come later.
ProductScratch ScratchOfRouter(const MoeArgs& args, int64_t tokens, const MoeScratch& scratch) {
  if (scratch.gemm_rows == GemmRows::kFixed) {
    return {.memory = scratch.padding,
            .bytes = FixedRowsScratchBytes(args.input.dim(1), NumExperts(args), args.input.dtype()),
            .rows = GemmRows::kFixed};
  }
  return {.memory = scratch.y,
          .bytes = tokens * args.num_experts_per_token * args.input.dim(1) * SizeOf(DType::kF32)};
}

absl::Status CheckWeights(const MoeArgs& args) {
  for (const auto& [what, weight] :
       {std::pair("router", args.router), std::pair("up", args.up), std::pair("down", args.down)}) {
    const auto& of_device = static_cast<const CudaWeight&>(*weight);
    const DType dtype = of_device.dtype();
    if (dtype != args.input.dtype()) {
      return WantGot(what, absl::StrCat(base::ToAbsl(Name(args.input.dtype())), ", as the input"),
                     Name(dtype));
    }
    if (!of_device.is_packed()) continue;
    RETURN_IF_ERROR(CheckAligned({{"input", &args.input}}));
    if (weight == args.router) continue;
    const bool aligned = weight == args.up ? IntermediateSize(args) % kGroupRows == 0
                                           : args.out.dim(1) % kExpertRows == 0;
    if (of_device.parts().size() > 1 || !aligned) {
      return WantGot(what, "a weight of Backend::PrepareMoeWeight", "another packed one");
    }
  }
  return WithElementType(args.out.dtype(), [&](auto element) {
    return WithVectorOf<decltype(element)>(args.out.dim(1), [&](auto count) {
      if (decltype(count)::value == 1) return absl::OkStatus();
      return CheckAligned({{"out", &args.out}, {"residual", &args.residual}});
    });
  });
}

}  // namespace

int64_t MoeScratchBytes(const MoeArgs& args, GemmRows gemm_rows) {
  MoeScratch ignored = {.gemm_rows = gemm_rows};
  const int64_t arrays = Divide(args, MostTokensAtOnce(args), nullptr, &ignored);
  return HasPackedExperts(args) ? base::CeilDiv(arrays, int64_t{3}) * 4 : arrays;
}

absl::Status Moe(Device& device, const MoeArgs& args, const DeviceBuffer& memory,
                 GemmRows gemm_rows, MatrixInstruction experts) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(CheckWeights(args));
  MoeScratch scratch = {.gemm_rows = gemm_rows};
  const int64_t least = Divide(args, 1, nullptr, &scratch);
  if (least > memory.bytes()) {
    return WantGot("up",
                   absl::StrCat("experts of which a token takes at most ", memory.bytes(),
                                " bytes between them"),
                   absl::StrCat(least));
  }
  const int64_t num_tokens = args.input.dim(0), hidden = args.input.dim(1);
  if (num_tokens == 0) return absl::OkStatus();
  const int64_t tokens_at_once = TokensAtOnce(args, gemm_rows, ArrayBytes(args, memory.bytes()));
  const auto num_experts = static_cast<int32_t>(NumExperts(args));
  const auto num_chosen = static_cast<int32_t>(args.num_experts_per_token);
  for (int64_t first = 0; first < num_tokens; first += tokens_at_once) {
    const int64_t tokens = std::min(tokens_at_once, num_tokens - first);
    auto* const base = static_cast<char*>(memory.data());
    const int64_t used = Divide(args, tokens, base, &scratch);
    scratch.experts_expanded = {
        .memory = base + used, .bytes = memory.bytes() - used, .rows = gemm_rows};
    const TensorView input = args.input.Rows(first, tokens);
    RETURN_IF_ERROR(WeightProduct(device, static_cast<const CudaWeight&>(*args.router),
                                  {.d = scratch.logits,
                                   .a = input.raw(),
                                   .m = tokens,
                                   .lda = hidden,
                                   .ldd = num_experts,
                                   .output_type = DType::kF32},
                                  ScratchOfRouter(args, tokens, scratch)));
    RETURN_IF_ERROR(Launch(device, {.grid = {static_cast<unsigned>(tokens)}, .block = {kWarpLanes}},
                           &MoeRouteKernel,
                           {.logits = scratch.logits,
                            .bias = args.router_bias.data<float>(),
                            .choice_bias = args.choice_bias.data<float>(),
                            .experts = scratch.experts,
                            .weights = scratch.weights,
                            .num_experts = num_experts,
                            .num_chosen = num_chosen,
                            .kind = args.weights}));
    RETURN_IF_ERROR(Launch(device,
                           {.grid = {static_cast<unsigned>(num_experts)},
                            .block = {kGroupThreads},
                            .shared_bytes = kGroupSharedBytes},
                           &MoeGroupKernel,
                           {.experts = scratch.experts,
                            .starts = scratch.starts,
                            .rows = scratch.rows,
                            .choices = scratch.choices,
                            .num_choices = static_cast<int32_t>(tokens) * num_chosen}));
    RETURN_IF_ERROR(Products(device, args, scratch, input, experts));
    RETURN_IF_ERROR(
        Combine(device, args, scratch, args.out.Rows(first, tokens),
                args.residual.empty() ? TensorView() : args.residual.Rows(first, tokens)));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
