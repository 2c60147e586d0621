#include "kernels/cuda/device/cublas_gemm.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/device/cuda_status.h"
#include "kernels/row_bucket.h"

namespace quire::kernels::cuda {

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // recommended by NVIDIA for Hopper

absl::Status ToStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cublas: ", what, ": ", cublasLtGetStatusString(status)));
}

cudaDataType_t TypeOf(DType type) {
  switch (type) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_32F;
  }
}

absl::Status SetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                          const auto& value) {
  return ToStatus(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)),
                  "describing");
}

// Gives the product the scales of `args`. Operand A of cuBLASLt is our b, and B is our a.
absl::Status SetScales(cublasLtMatmulDesc_t product, const GemmArgs& args) {
  if (args.scales == GemmScales::kNone) return absl::OkStatus();
  const bool of_blocks = args.scales == GemmScales::kBlocks;
  const int32_t of_a = of_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                 : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  const int32_t of_b = of_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                 : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  RETURN_IF_ERROR(SetAttribute(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_b));
  RETURN_IF_ERROR(SetAttribute(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_a));
  RETURN_IF_ERROR(SetAttribute(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_scales));
  return SetAttribute(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_scales);
}

// Returns the number of a property of an algorithm, or -1 if the algorithm does not have it.
int64_t ConfigOf(const cublasLtMatmulAlgo_t& algorithm,
                 cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = -1;
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : -1;
}

std::string Describe(const GemmShape& shape, const cublasLtMatmulHeuristicResult_t& result) {
  return absl::StrCat("cublas: m ", shape.m, " n ", shape.n, " k ", shape.k, " ",
                      base::ToAbsl(Name(shape.type)), " to ", base::ToAbsl(Name(shape.output_type)),
                      shape.accumulate ? ", added" : "", ": algorithm ",
                      ConfigOf(result.algo, CUBLASLT_ALGO_CONFIG_ID), ", depth cut in ",
                      ConfigOf(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), ", reduction scheme ",
                      ConfigOf(result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), ", workspace ",
                      result.workspaceSize, " bytes");
}

}  // namespace

// Our matrices are row-major, and cuBLASLt is column-major, so cuBLASLt sees each matrix
// transposed. It computes d^T = b . a^T. Its first operand is our b, which it must transpose, and
// its second operand is our a.
struct CublasGemm::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(product);
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

absl::StatusOr<std::unique_ptr<CublasGemm>> CublasGemm::Create(cudaStream_t stream,
                                                               const CublasGemmOptions& options) {
  std::unique_ptr<CublasGemm> gemm(new CublasGemm(stream, options));
  RETURN_IF_ERROR(ToStatus(cublasLtCreate(&gemm->handle_), "starting"));
  void* workspace = nullptr;
  RETURN_IF_ERROR(
      cuda::ToStatus(cudaMalloc(&workspace, kWorkspaceBytes), "allocating a workspace"));
  gemm->workspace_ = DeviceBuffer(workspace, kWorkspaceBytes, [](void* data) { cudaFree(data); });
  return gemm;
}

CublasGemm::CublasGemm(cudaStream_t stream, const CublasGemmOptions& options)
    : stream_(stream), options_(options) {}

CublasGemm::~CublasGemm() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<CublasGemm::Plan*> CublasGemm::FindPlan(const GemmShape& shape,
                                                       const GemmArgs& args) {
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();

  auto plan = std::make_unique<Plan>();
  const cublasOperation_t transposed = CUBLAS_OP_T;
  RETURN_IF_ERROR(ToStatus(cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                           "describing"));
  RETURN_IF_ERROR(SetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, transposed));
  RETURN_IF_ERROR(SetScales(plan->product, args));
  const auto k = static_cast<uint64_t>(shape.k), m = static_cast<uint64_t>(shape.m),
             n = static_cast<uint64_t>(shape.n);
  const cudaDataType_t type = TypeOf(shape.type);
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatrixLayoutCreate(&plan->b, type, k, n, shape.ldb), "describing b"));
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatrixLayoutCreate(&plan->a, type, k, m, shape.lda), "describing a"));
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatrixLayoutCreate(&plan->d, TypeOf(shape.output_type), n, m, shape.ldd),
               "describing d"));

  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(ToStatus(cublasLtMatmulPreferenceCreate(&preference), "choosing"));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // The other schemes round the parts of a sum to the type of d before they are added.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE |
                           (options_.cuts_depth ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : 0);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  // Operand A of cuBLASLt is our b, B is our a, and both C and D are our d.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.d_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d_alignment);
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan->product, plan->b, plan->a, plan->d, plan->d, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    return absl::UnimplementedError(absl::StrCat("cublas: no algorithm for m ", shape.m, ", n ",
                                                 shape.n, ", k ", shape.k, " in ",
                                                 base::ToAbsl(Name(shape.type))));
  }
  RETURN_IF_ERROR(ToStatus(status, "choosing an algorithm"));
  plan->algorithm = result.algo;
  if (options_.log != nullptr) options_.log(Describe(shape, result));
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

absl::Status CublasGemm::Multiply(const GemmArgs& args, const Plan& plan) {
  const auto m = static_cast<uint64_t>(args.m);
  for (const cublasLtMatrixLayout_t rows : {plan.a, plan.d}) {
    RETURN_IF_ERROR(
        ToStatus(cublasLtMatrixLayoutSetAttribute(rows, CUBLASLT_MATRIX_LAYOUT_COLS, &m, sizeof(m)),
                 "describing"));
  }
  RETURN_IF_ERROR(SetScales(plan.product, args));
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  return ToStatus(cublasLtMatmul(handle_, plan.product, &alpha, args.b, plan.b, args.a, plan.a,
                                 &beta, args.d, plan.d, args.d, plan.d, &plan.algorithm,
                                 workspace_.data(), static_cast<size_t>(kWorkspaceBytes), stream_),
                  "multiplying");
}

absl::Status CublasGemm::Run(const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return absl::OkStatus();
  GemmShape shape = ShapeOf(args);
  shape.m = RowBucket(args.m);
  ASSIGN_OR_RETURN(const Plan* plan, FindPlan(shape, args));
  absl::Status multiplied = Multiply(args, *plan);
  if (multiplied.ok() || shape.m == args.m) return multiplied;
  // The plan was made for the m of the bucket. cuBLASLt checks the algorithm when a product is
  // enqueued, and may refuse the algorithm for args.m. Then a plan for exactly args.m is used.
  shape.m = args.m;
  ASSIGN_OR_RETURN(plan, FindPlan(shape, args));
  return Multiply(args, *plan);
}

}  // namespace quire::kernels::cuda
