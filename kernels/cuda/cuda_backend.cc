#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device/counted_device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/cuda_weight_layout.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "kernels/cuda/product/fp8_support.h"
#include "kernels/cuda/product/moe.h"
#include "kernels/cuda/product/weight_upload.h"
#include "kernels/cuda/sample/device_sampler.h"
#include "kernels/ops/check.h"
#include "kernels/quant/dequantize.h"

namespace quire::kernels::cuda {
namespace {

std::string NumericsOf(const CudaBackendOptions& options) {
  return absl::StrCat("cuda-4", options.deterministic ? "-deterministic" : "",
                      options.prefill_attention == MatrixInstruction::kWgmma ? "-wgmma" : "",
                      options.expert_products == MatrixInstruction::kWgmma ? "-experts" : "",
                      options.shared_prefix_bytes > 0 ? "-prefix" : "",
                      options.fp8_products ? "-fp8" : "", options.skips_far_keys ? "-skip" : "");
}

struct AttentionCounts {
  int64_t on_tensor_cores = 0, plain = 0;  // as in DeviceCount
};

// A recording, and the attention that a replay of it runs.
class CountedRecording final : public Recording {
 public:
  CountedRecording(std::unique_ptr<Recording> recording, const AttentionCounts& attention)
      : recording_(std::move(recording)), attention_(attention) {}

  const Recording& recording() const { return *recording_; }
  const AttentionCounts& attention() const { return attention_; }

 private:
  const std::unique_ptr<Recording> recording_;
  const AttentionCounts attention_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<CountedDevice> device, const CudaBackendOptions& options,
              DeviceBuffer linear_scratch)
      : device_(std::move(device)),
        activation_dtype_(options.activation_dtype),
        pipeline_depth_(options.pipeline_depth),
        records_(options.records),
        fp8_products_(options.fp8_products),
        gemm_rows_(options.deterministic ? GemmRows::kFixed : GemmRows::kAny),
        expert_products_(options.expert_products),
        most_scratch_bytes_(options.most_scratch_bytes),
        linear_scratch_(std::move(linear_scratch)),
        upload_(*device_),
        attention_(*device_,
                   {.fixed_split = options.deterministic,
                    .shares_keys = options.shared_prefix_bytes > 0,
                    .skips_far_keys = options.skips_far_keys},
                   options.prefill_attention),
        shared_prefix_bytes_(options.shared_prefix_bytes),
        skips_far_keys_(options.skips_far_keys),
        numerics_(NumericsOf(options)) {}

  BackendInfo info() const override {
    return {.name = "cuda",
            .isa_path = device_->info().name,
            .numerics = numerics_,
            .num_threads = 1,
            .host_memory = false,
            .pipeline_depth = pipeline_depth_,
            .memory_bytes = device_->info().memory_bytes,
            .pci_bus_id = device_->info().pci_bus_id,
            .records = records_,
            .num_e4m3_products = num_e4m3_products_,
            .num_other_e4m3 = num_other_e4m3_,
            .num_refused_e4m3 = num_refused_e4m3_,
            .keeps_key_norms = skips_far_keys_,
            .lists_best = false};
  }
  DeviceCounts counts() const override;
  DType activation_dtype() const override { return activation_dtype_; }
  bool HasFastAttention(DType cache_dtype, const AttentionPlanKey& layer,
                        int64_t block_size) const override {
    return PagedAttentionOp::Supports(activation_dtype_, layer) &&
           PagedAttentionOp::SupportsCache(activation_dtype_, cache_dtype, layer, block_size);
  }
  int64_t LeastSavedKeys(DType cache_dtype, const AttentionPlanKey& layer) const override;
  int64_t available_bytes() const override { return device_->available_bytes(); }

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override {
    return device_->AllocateHost(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    return device_->CopyToDevice(destination, source, bytes);
  }
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    return device_->CopyToHost(destination, source, bytes);
  }

  absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareWeight(
      std::span<const WeightView> parts) override {
    return Prepare(parts, packs(), fp8_products_);
  }
  absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareMoeWeight(
      std::span<const WeightView> parts) override {
    return Prepare(parts, packs() && CanPackExperts(parts), false);
  }
  // In e4m3 a weight takes at most as much as packed, so the scales need not be read.
  int64_t PreparedBytes(const WeightView& part) const override {
    return LayOut({&part, 1}, activation_dtype_, packs()).bytes;
  }
  int64_t PreparedMoeBytes(const WeightView& part) const override {
    return LayOut({&part, 1}, activation_dtype_, packs() && CanPackExperts({&part, 1})).bytes;
  }
  absl::StatusOr<std::unique_ptr<PreparedSampler>> PrepareSampler(
      const SamplerSpec& spec) override {
    return DeviceSampler::Create(*device_, spec);
  }
  int64_t MostSampleChanges(int64_t max_rows, int64_t max_draws) const override {
    return DeviceSampler::MostChanges(max_rows, max_draws);
  }
  absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args) override;
  void AppendLaunchKey(const AttentionPlan& plan, std::vector<int64_t>& key) const override {
    attention_.AppendLaunchKey(plan, key);
  }

  absl::Status TakeTokens(const TakeTokensArgs& args) override {
    return cuda::TakeTokens(*device_, args);
  }
  absl::Status UpdateTable(const UpdateTableArgs& args) override {
    return cuda::UpdateTable(*device_, args);
  }
  absl::Status Embed(const EmbedArgs& args) override { return cuda::Embed(*device_, args); }
  absl::Status Norm(const NormArgs& args) override { return cuda::Norm(*device_, args); }
  absl::Status Linear(const LinearArgs& args) override {
    if (rehearses_) RETURN_IF_ERROR(EnlargeScratch(LinearScratchBytes(args, gemm_rows_)));
    return cuda::Linear(*device_, args, linear_scratch_, gemm_rows_);
  }
  absl::Status Moe(const MoeArgs& args) override {
    if (rehearses_) RETURN_IF_ERROR(EnlargeScratch(MoeScratchBytes(args, gemm_rows_)));
    return cuda::Moe(*device_, args, linear_scratch_, gemm_rows_, expert_products_);
  }
  absl::Status QkvPost(const QkvPostArgs& args) override { return cuda::QkvPost(*device_, args); }
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status GatherRows(const GatherRowsArgs& args) override {
    return cuda::GatherRows(*device_, args);
  }
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override {
    return cuda::CopyBlocks(*device_, args);
  }
  absl::Status ShiftKeys(const ShiftKeysArgs& args) override {
    return cuda::ShiftKeys(*device_, args);
  }
  absl::Status Sample(const SampleArgs& args) override {
    num_sampled_rows_ += std::ssize(args.rows);
    return DeviceSampler::Enqueue(args);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return device_->CreateEvent(); }
  absl::Status Mark(Event& event) override { return device_->Mark(event); }
  absl::Status Wait(const Event& event) override { return device_->Wait(event); }
  absl::StatusOr<absl::Duration> TimeBetween(const Event& begin, const Event& end) override {
    ASSIGN_OR_RETURN(const double seconds, device_->SecondsBetween(begin, end));
    return absl::Seconds(seconds);
  }
  absl::Status Rehearse(absl::FunctionRef<absl::Status()> enqueue) override {
    if (most_scratch_bytes_ == 0) return absl::OkStatus();
    rehearses_ = true;
    const absl::Status status = enqueue();
    rehearses_ = false;
    RETURN_IF_ERROR(status);
    return Synchronize();
  }
  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Replay(const Recording& recording) override;
  absl::Status Synchronize() override { return device_->Synchronize(); }

 private:
  // Makes the scratch memory as large as `bytes` or most_scratch_bytes_, whichever is less.
  absl::Status EnlargeScratch(int64_t bytes);
  bool packs() const { return SizeOf(activation_dtype_) == 2; }
  // `packs` and `keeps_e4m3` are those of LayOut (cuda_weight_layout.h).
  absl::StatusOr<std::unique_ptr<PreparedWeight>> Prepare(std::span<const WeightView> parts,
                                                          bool packs, bool keeps_e4m3);

  // These members are constant after construction. The device is declared first, so buffers are
  // freed before the device.
  const std::unique_ptr<CountedDevice> device_;
  const DType activation_dtype_;
  const int32_t pipeline_depth_;
  const bool records_;
  const bool fp8_products_;
  const GemmRows gemm_rows_;
  const MatrixInstruction expert_products_;
  const int64_t most_scratch_bytes_;

  // Only the step thread uses these members.
  DeviceBuffer linear_scratch_;
  bool rehearses_ = false;
  WeightUpload upload_;
  PagedAttentionOp attention_;
  const int64_t shared_prefix_bytes_;
  const bool skips_far_keys_;
  const std::string numerics_;
  // As in BackendInfo.
  int64_t num_e4m3_products_ = 0, num_other_e4m3_ = 0, num_refused_e4m3_ = 0;
  AttentionCounts num_attention_;
  int64_t num_sampled_rows_ = 0;
  // Plans whose dtype or heads have no tensor core kernel. The plain kernel does not use the items
  // of a plan, but its arguments are checked against the plan.
  std::map<AttentionPlanKey, CudaAttentionPlan> plans_;
};

DeviceCounts CudaBackend::counts() const {
  DeviceCounts counts = device_->counts();
  const auto set = [&](DeviceCount count, int64_t n) { counts[static_cast<size_t>(count)] = n; };
  set(DeviceCount::kTensorCoreAttention, num_attention_.on_tensor_cores);
  set(DeviceCount::kPlainAttention, num_attention_.plain);
  set(DeviceCount::kSampledRows, num_sampled_rows_);
  return counts;
}

absl::StatusOr<DeviceBuffer> CudaBackend::Allocate(int64_t bytes) {
  // An empty tensor needs an address too, so at least one byte is allocated.
  const int64_t held = std::max<int64_t>(bytes, 1);
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_->Allocate(held));
  RETURN_IF_ERROR(device_->Fill(buffer.data(), 0, held));
  return buffer;
}

absl::StatusOr<std::unique_ptr<PreparedWeight>> CudaBackend::Prepare(
    std::span<const WeightView> parts, bool packs, bool keeps_e4m3) {
  if (parts.empty()) return WantGot("parts", "one weight at least", "none");
  const int64_t cols = parts[0].cols;
  for (const WeightView& part : parts) {
    RETURN_IF_ERROR(ValidateWeight(part));
    if (part.cols != cols) {
      return WantGot("parts", absl::StrCat(cols, " cols"), absl::StrCat(part.cols));
    }
  }
  const CudaWeightLayout layout = LayOut(parts, activation_dtype_, packs, keeps_e4m3);
  ASSIGN_OR_RETURN(DeviceBuffer memory, device_->Allocate(layout.bytes));
  auto* const base = static_cast<char*>(memory.data());
  auto weight =
      std::make_unique<CudaWeight>(std::move(memory), activation_dtype_, cols, layout.parts);
  if (weight->has_scales()) {
    const absl::Status supported = CheckFp8Support(*device_, *weight, linear_scratch_);
    if (absl::IsUnimplemented(supported)) {
      num_refused_e4m3_ += std::ranges::count_if(
          layout.scales, [](GemmScales scales) { return scales != GemmScales::kNone; });
      weight.reset();
      return Prepare(parts, packs, /*keeps_e4m3=*/false);
    }
    RETURN_IF_ERROR(supported);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    auto* const to = base + layout.offsets[i];
    if (parts[i].type == WeightType::kF8E4M3Scaled) {
      ++(layout.scales[i] != GemmScales::kNone ? num_e4m3_products_ : num_other_e4m3_);
    }
    if (layout.scales[i] != GemmScales::kNone) {
      RETURN_IF_ERROR(upload_.WriteCodes(parts[i], to));
      RETURN_IF_ERROR(
          upload_.WriteScales(parts[i], layout.scales[i], base + layout.scales_offsets[i]));
      continue;
    }
    RETURN_IF_ERROR(layout.is_packed[i] ? upload_.WritePacked(parts[i], to)
                                        : upload_.Write(parts[i], activation_dtype_, to));
  }
  return weight;
}

int64_t CudaBackend::LeastSavedKeys(DType cache_dtype, const AttentionPlanKey& layer) const {
  if (shared_prefix_bytes_ == 0 || !PagedAttentionOp::SharesKeys(activation_dtype_, layer)) {
    return 0;
  }
  const AttentionHeads& heads = layer.heads;
  const int64_t key_bytes =
      int64_t{heads.num_kv_heads} * (heads.key_dim + heads.value_dim) * SizeOf(cache_dtype);
  // A unit of m members reads its keys once, so at most (m - 1) / m of them are saved.
  const int64_t members = SharedUnits::MostMembers(layer);
  return base::CeilDiv(shared_prefix_bytes_ * members, key_bytes * (members - 1));
}

absl::StatusOr<const AttentionPlan*> CudaBackend::Plan(const AttentionPlanArgs& args) {
  constexpr int64_t kAnyBlockSize = 16;
  const bool reads_cache = args.cache_dtype != DType::kF8E4M3 ||
                           PagedAttentionOp::SupportsCache(activation_dtype_, args.cache_dtype,
                                                           args.key(), kAnyBlockSize);
  if (reads_cache && PagedAttentionOp::Supports(activation_dtype_, args.key())) {
    return attention_.Plan(args);
  }
  CudaAttentionPlan& plan = plans_[args.key()];
  RETURN_IF_ERROR(plan.Build(args, {}));
  return &plan;
}

absl::Status CudaBackend::PagedAttention(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const DType dtype = args.query.dtype();
  if (PagedAttentionOp::Supports(dtype, args.key()) &&
      PagedAttentionOp::SupportsCache(dtype, args.kv_cache.dtype(), args.key(),
                                      args.kv_cache.block_size())) {
    ++num_attention_.on_tensor_cores;
    return attention_.Run(args);
  }
  RETURN_IF_ERROR(static_cast<const CudaAttentionPlan&>(*args.plan).CheckMatches(args));
  ++num_attention_.plain;
  return AttentionReference(*device_, args);
}

absl::Status CudaBackend::EnlargeScratch(int64_t bytes) {
  bytes = std::min(bytes, most_scratch_bytes_);
  if (bytes <= linear_scratch_.bytes()) return absl::OkStatus();
  RETURN_IF_ERROR(Synchronize());  // ops that use the memory may run
  linear_scratch_ = DeviceBuffer();
  ASSIGN_OR_RETURN(linear_scratch_, device_->Allocate(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Recording>> CudaBackend::Record(
    absl::FunctionRef<absl::Status()> enqueue) {
  const AttentionCounts before = std::exchange(num_attention_, {});
  absl::StatusOr<std::unique_ptr<Recording>> recording = device_->Record(enqueue);
  const AttentionCounts recorded = std::exchange(num_attention_, before);
  RETURN_IF_ERROR(recording.status());
  return std::make_unique<CountedRecording>(*std::move(recording), recorded);
}

absl::Status CudaBackend::Replay(const Recording& recording) {
  const auto& counted = static_cast<const CountedRecording&>(recording);
  num_attention_.on_tensor_cores += counted.attention().on_tensor_cores;
  num_attention_.plain += counted.attention().plain;
  return device_->Replay(counted.recording());
}

std::string ComputeCapability(const DeviceInfo& device) {
  return absl::StrCat(device.compute_capability / 10, ".", device.compute_capability % 10);
}

absl::Status CheckExperiments(const CudaBackendOptions& options, const DeviceInfo& device) {
  struct Experiment {
    std::string_view name;
    bool is_on = false;
    bool wants_hopper = false;  // cuBLASLt 13 documents the scales of fp8_products for it alone
  };
  const bool is_hopper = HasInstruction(device, MatrixInstruction::kWgmma);
  for (const Experiment& experiment :
       {Experiment{"wgmma_attention", options.prefill_attention == MatrixInstruction::kWgmma, true},
        {"wgmma_experts", options.expert_products == MatrixInstruction::kWgmma, true},
        {"shared_prefix", options.shared_prefix_bytes > 0},
        {"fp8_products", options.fp8_products, true},
        {"alibi_skip", options.skips_far_keys}}) {
    if (!experiment.is_on) continue;
    if (options.deterministic) {
      return WantGot("cuda_experiments", "none with deterministic", experiment.name);
    }
    if (experiment.wants_hopper && !is_hopper) {
      return WantGot("cuda_experiments",
                     absl::StrCat("compute capability 9.0 for ", base::ToAbsl(experiment.name)),
                     ComputeCapability(device) + "; leave it out");
    }
  }
  if (options.fp8_products && options.activation_dtype == DType::kF32) {
    return WantGot("cuda_experiments", "activations in f16 or bf16 for fp8_products", "f32");
  }
  return absl::OkStatus();
}

}  // namespace

CudaBackendOptions OptionsInUse(const BackendOptions& options, const DeviceInfo& device) {
  const auto instruction = [](bool is_wgmma) {
    return is_wgmma ? MatrixInstruction::kWgmma : MatrixInstruction::kMma;
  };
  return {.activation_dtype = options.activation_dtype,
          .most_scratch_bytes = MostScratchBytes(device),
          .deterministic = options.deterministic,
          .prefill_attention = instruction(options.cuda.wgmma_attention),
          .expert_products = instruction(options.cuda.wgmma_experts),
          .shared_prefix_bytes = options.cuda.shared_prefix ? kWorthwhileSharedBytes : 0,
          .fp8_products = options.cuda.fp8_products,
          .skips_far_keys = options.cuda.alibi_skip};
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::unique_ptr<Device> device,
                                                           const CudaBackendOptions& options) {
  const DType dtype = options.activation_dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    return WantGot("activation_dtype", "f32|f16|bf16", Name(dtype));
  }
  constexpr int kOldestChip = 80;
  if (device->info().compute_capability < kOldestChip) {
    return WantGot("device", "compute capability 8.0 or later", ComputeCapability(device->info()));
  }
  RETURN_IF_ERROR(CheckExperiments(options, device->info()));
  auto counted = std::make_unique<CountedDevice>(std::move(device));
  ASSIGN_OR_RETURN(DeviceBuffer scratch, counted->Allocate(options.linear_scratch_bytes));
  return std::make_unique<CudaBackend>(std::move(counted), options, std::move(scratch));
}

}  // namespace quire::kernels::cuda
