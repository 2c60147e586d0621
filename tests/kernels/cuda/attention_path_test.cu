// Tests how CudaBackend runs the attention of a step: which kernel it chooses (for tensor cores or
// plain), and how it treats plans of steps in flight.

#include <map>
#include <memory>
#include <rapidcheck.h>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention/prefill_params.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/clear_padding.h"
#include "kernels/cuda/emulator/emulated_device.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/recording_device.h"

namespace quire::kernels::cuda {
namespace {

struct AttentionPath {
  DType query, cache;
  int32_t head_dim, block_size;
  bool tensor_cores;
  int32_t value_dim = head_dim;
};

TEST(AttentionPathTest, IsTensorCoresWhereThereIsAKernel) {
  for (const AttentionPath& path : {AttentionPath{DType::kBF16, DType::kBF16, 64, 16, true},
                                    AttentionPath{DType::kF16, DType::kF16, 80, 32, true},
                                    AttentionPath{DType::kBF16, DType::kBF16, 72, 16, false},
                                    AttentionPath{DType::kBF16, DType::kBF16, 64, 16, false, 128},
                                    AttentionPath{DType::kBF16, DType::kBF16, 64, 8, false},
                                    AttentionPath{DType::kBF16, DType::kF16, 64, 16, false},
                                    AttentionPath{DType::kF32, DType::kF32, 64, 16, false}}) {
    SCOPED_TRACE(path.head_dim);
    SCOPED_TRACE(Name(path.query));
    testing::DeviceLog log;
    auto owned = std::make_unique<testing::RecordingDevice>(log);
    Device& device = *owned;
    const auto backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = path.query});

    const testing::AttentionBatch batch({.sequences = {{45, 40}},
                                         .num_kv_heads = 2,
                                         .head_dim = path.head_dim,
                                         .other_value_dim = path.value_dim,
                                         .block_size = path.block_size,
                                         .dtype = path.query,
                                         .cache_dtype = path.cache});
    testing::AttentionOnDevice on_device(device, batch);
    on_device.args.plan = *backend->Plan(batch.PlanArgs());
    ASSERT_TRUE(backend->PagedAttention(on_device.args).ok());
    ASSERT_FALSE(log.shared_bytes.empty());
    // The size of the shared memory shows which kernel ran. The tensor core kernels keep three
    // stages of keys and values in shared memory. The plain kernel keeps one query per warp there.
    EXPECT_EQ(log.shared_bytes.front() > 4 * 256 * 4, path.tensor_cores);

    batch.Check(on_device.out.ToHost(), path.tensor_cores ? testing::AttentionWeights::kRounded
                                                          : testing::AttentionWeights::kFloat32);
  }
}

TEST(AttentionPathTest, ALargerPlanLeavesAlonePlansInFlight) {
  auto owned = std::make_unique<emulator::EmulatedDevice>();
  Device& device = *owned;
  const auto backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = DType::kBF16});
  const auto batch_of = [](std::vector<testing::AttentionSequence> sequences) {
    return testing::AttentionBatch({.sequences = std::move(sequences),
                                    .num_kv_heads = 2,
                                    .head_dim = 64,
                                    .block_size = 16,
                                    .dtype = DType::kBF16,
                                    .cache_dtype = DType::kBF16});
  };
  // Both plans cut their sequence into pieces. `large` has more rows, so its plan needs more memory
  // for partial results.
  const testing::AttentionBatch small = batch_of({{600, 1}}), large = batch_of({{600, 200}});
  testing::AttentionOnDevice first(device, small), second(device, large);
  first.args.plan = *backend->Plan(small.PlanArgs());
  ASSERT_TRUE(backend->PagedAttention(first.args).ok());
  second.args.plan = *backend->Plan(large.PlanArgs());
  ASSERT_TRUE(backend->PagedAttention(second.args).ok());
  EXPECT_TRUE(backend->Synchronize().ok()) << backend->Synchronize();
}

struct AttentionLaunches {
  int mma = 0, prefill = 0;
};

// Counts the launches of attention. PrefillAttnKernel is the only kernel with its block size here,
// and of those with another, AttnKernel is the only one with shared memory.
class LaunchCounter final : public emulator::EmulatedDevice {
 public:
  explicit LaunchCounter(AttentionLaunches& launches) : launches_(launches) {}
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    const LaunchConfig& config = launch.config;
    const bool prefill = config.block.x == kPrefillThreads;
    launches_.prefill += prefill ? 1 : 0;
    launches_.mma += !prefill && config.shared_bytes > 0 ? 1 : 0;
    return EmulatedDevice::LaunchKernel(launch);
  }

 private:
  AttentionLaunches& launches_;
};

TEST(AttentionPathTest, AMixedStepIsOneLaunchAndASecondForPromptsOnWgmma) {
  // A decode, two with drafts that have up to 32 and 64 rows, a prompt, and a chunk of a prompt.
  const testing::AttentionBatch mixed(
      {.sequences = {{45, 1}, {50, 2}, {39, 3}, {45, 7}, {60, 60}, {140, 70}},
       .num_heads = 8,
       .head_dim = 128});
  const testing::AttentionBatch decodes(
      {.sequences = {{45, 1}, {50, 1}}, .num_heads = 71, .head_dim = 128});
  const testing::AttentionBatch other_dim({.sequences = {{60, 60}}, .head_dim = 80});
  for (const MatrixInstruction chosen : {MatrixInstruction::kMma, MatrixInstruction::kWgmma}) {
    for (const auto& [batch, has_prompts] :
         {std::pair{&mixed, true}, {&decodes, false}, {&other_dim, false}}) {
      AttentionLaunches launches;
      auto owned = std::make_unique<LaunchCounter>(launches);
      Device& device = *owned;
      const auto backend = *CreateCudaBackend(
          std::move(owned), {.activation_dtype = DType::kBF16, .prefill_attention = chosen});
      testing::AttentionOnDevice on_device(device, *batch);
      on_device.args.plan = *backend->Plan(batch->PlanArgs());
      ASSERT_TRUE(backend->PagedAttention(on_device.args).ok());
      EXPECT_EQ(launches.mma, 1);
      EXPECT_EQ(launches.prefill, has_prompts && chosen == MatrixInstruction::kWgmma ? 1 : 0);
      batch->Check(on_device.out.ToHost(), testing::AttentionWeights::kRounded);
    }
  }
}

TEST(AttentionPathTest, WgmmaIsRefusedByNameOnAnotherChip) {
  const auto options = [](const CudaExperiments& asked) {
    return OptionsInUse({.cuda = asked}, DeviceInfo{});
  };
  EXPECT_EQ(options({}).prefill_attention, MatrixInstruction::kMma);
  EXPECT_EQ(options({}).expert_products, MatrixInstruction::kMma);
  EXPECT_EQ(options({.wgmma_attention = true}).prefill_attention, MatrixInstruction::kWgmma);
  EXPECT_EQ(options({.wgmma_attention = true}).expert_products, MatrixInstruction::kMma);
  EXPECT_EQ(options({.wgmma_experts = true}).expert_products, MatrixInstruction::kWgmma);
  EXPECT_EQ(options({.wgmma_experts = true}).prefill_attention, MatrixInstruction::kMma);
  for (const int chip : {80, 89, 100}) {
    const auto device = [&] {
      return std::make_unique<emulator::EmulatedDevice>(
          emulator::EmulatorOptions{.compute_capability = chip});
    };
    EXPECT_TRUE(CreateCudaBackend(device(), {}).ok());
    EXPECT_EQ(
        CreateCudaBackend(device(), {.prefill_attention = MatrixInstruction::kWgmma})
            .status()
            .message(),
        absl::StrCat("cuda_experiments: want compute capability 9.0 for wgmma_attention, got ",
                     chip / 10, ".", chip % 10, "; leave it out"));
    EXPECT_EQ(CreateCudaBackend(device(), {.expert_products = MatrixInstruction::kWgmma})
                  .status()
                  .message(),
              absl::StrCat("cuda_experiments: want compute capability 9.0 for wgmma_experts, got ",
                           chip / 10, ".", chip % 10, "; leave it out"));
  }
}

TEST(AttentionPathTest, SharedPrefixesHaveTheirOwnNameAndLimitsAndNoFixedSplit) {
  const auto backend_of = [](const CudaBackendOptions& options) {
    return CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(), options);
  };
  const AttentionPlanKey layer{.heads = {32, 8, 128, 128}};
  const auto plain = *backend_of({.activation_dtype = DType::kBF16});
  EXPECT_EQ(plain->info().numerics, "cuda-4");
  EXPECT_EQ(plain->LeastSavedKeys(DType::kBF16, layer), 0);
  const auto sharing =
      *backend_of({.activation_dtype = DType::kBF16, .shared_prefix_bytes = 10000});
  EXPECT_EQ(sharing->info().numerics, "cuda-4-prefix");
  EXPECT_EQ(sharing->LeastSavedKeys(DType::kBF16, layer), 3);  // of 4096 bytes; 16 share a unit
  EXPECT_EQ(sharing->LeastSavedKeys(DType::kF8E4M3, layer), 6);
  EXPECT_EQ(sharing->LeastSavedKeys(DType::kBF16, {.heads = {32, 1, 128, 128}}),
            40);  // two share a unit
  EXPECT_EQ(sharing->LeastSavedKeys(DType::kBF16, {.heads = {71, 1, 64, 64}}), 0);
  EXPECT_EQ(sharing->LeastSavedKeys(DType::kBF16, {.heads = {4, 2, 72, 72}}),
            0);  // the plain kernel
  EXPECT_EQ((*backend_of({.shared_prefix_bytes = 1}))->LeastSavedKeys(DType::kBF16, layer),
            0);  // float32
  EXPECT_EQ(backend_of({.deterministic = true, .shared_prefix_bytes = 1}).status().message(),
            "cuda_experiments: want none with deterministic, got shared_prefix");
}

TEST(AttentionPathTest, ARoundedBiasHasNoFastKernelAndSharesNoKeys) {
  const auto backend =
      *CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(),
                         {.activation_dtype = DType::kBF16, .shared_prefix_bytes = 1});
  AttentionPlanKey layer{.heads = {4, 2, 64, 64}};
  EXPECT_TRUE(backend->HasFastAttention(DType::kBF16, layer, 16));
  EXPECT_GT(backend->LeastSavedKeys(DType::kBF16, layer), 0);
  layer.alibi_is_rounded = true;
  EXPECT_FALSE(backend->HasFastAttention(DType::kBF16, layer, 16));
  EXPECT_EQ(backend->LeastSavedKeys(DType::kBF16, layer), 0);
}

TEST(AttentionPathTest, SkippedKeysHaveTheirOwnNameAndNoFixedSplit) {
  const auto backend_of = [](const CudaBackendOptions& options) {
    return CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(), options);
  };
  EXPECT_FALSE((*backend_of({}))->info().keeps_key_norms);
  const auto skipping = *backend_of({.skips_far_keys = true});
  EXPECT_EQ(skipping->info().numerics, "cuda-4-skip");
  EXPECT_TRUE(skipping->info().keeps_key_norms);
  EXPECT_EQ(backend_of({.deterministic = true, .skips_far_keys = true}).status().message(),
            "cuda_experiments: want none with deterministic, got alibi_skip");
}

TEST(AttentionPathTest, WgmmaIsRefusedByADeterministicBackend) {
  const auto backend =
      CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(),
                        {.deterministic = true, .prefill_attention = MatrixInstruction::kWgmma});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend.status().message(),
            "cuda_experiments: want none with deterministic, got wgmma_attention");
  EXPECT_EQ(CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(),
                              {.deterministic = true, .expert_products = MatrixInstruction::kWgmma})
                .status()
                .message(),
            "cuda_experiments: want none with deterministic, got wgmma_experts");
}

TEST(AttentionPathTest, ADeterministicBackendHasNumericsOfItsOwn) {
  const auto numerics = [](bool deterministic) {
    return (*CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(),
                               {.deterministic = deterministic}))
        ->info()
        .numerics;
  };
  EXPECT_EQ(numerics(false), "cuda-4");
  EXPECT_EQ(numerics(true), "cuda-4-deterministic");
}

// Steps are planned and enqueued before any of them runs. Their plans have the same heads, and the
// later ones need no more memory than the first.
class PlansInFlightTest : public ::testing::Test {
 protected:
  // Enqueues the attention of batch `i`.
  void Enqueue(size_t i) {
    steps_[i].args.plan = *backend_->Plan(batches_[i].PlanArgs());
    ASSERT_TRUE(backend_->PagedAttention(steps_[i].args).ok());
  }
  void Check(size_t i) {
    batches_[i].Check(steps_[i].out.ToHost(), testing::AttentionWeights::kRounded);
  }
  static testing::AttentionBatch BatchOf(int32_t context, int32_t query) {
    return testing::AttentionBatch({.sequences = {{context, query}}, .num_kv_heads = 2});
  }

  emulator::EmulatedDevice& device_ = *new emulator::EmulatedDevice;
  const std::unique_ptr<Backend> backend_ =
      *CreateCudaBackend(std::unique_ptr<Device>(&device_), {.activation_dtype = DType::kBF16});
  const testing::AttentionBatch batches_[3] = {BatchOf(600, 20), BatchOf(100, 30), BatchOf(80, 17)};
  testing::AttentionOnDevice steps_[3] = {
      {device_, batches_[0]}, {device_, batches_[1]}, {device_, batches_[2]}};
};

TEST_F(PlansInFlightTest, APlanLeavesAloneThePlanBeforeIt) {
  Enqueue(0);
  Enqueue(1);
  Check(0);
  Check(1);
  Enqueue(2);
  Check(2);
}

// Backend::Plan allows one step in flight. The emulator shows a caller that has two.
TEST_F(PlansInFlightTest, AThirdPlanOverwritesTheFirst) {
  for (const size_t i : {0, 1, 2}) Enqueue(i);
  EXPECT_EQ(backend_->Synchronize().message(),
            "the source of a copy was changed before the copy had run");
}

// Records launches instead of running them.
class LaunchLog final : public emulator::EmulatedDevice {
 public:
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    const LaunchConfig& config = launch.config;
    std::string text = absl::StrFormat("%p %d %d %d ", launch.kernel, config.grid.x, config.grid.y,
                                       config.shared_bytes);
    if (kClearsPadding) {  // otherwise two equal structs may differ in bytes
      text.append(reinterpret_cast<const char*>(launch.params.data()), launch.params.size());
    }
    launches.push_back(std::move(text));
    return absl::OkStatus();
  }

  std::vector<std::string> launches;
};

TEST(AttentionPathTest, EqualKeysMeanEqualLaunches) {
  int num_equal = 0;
  EXPECT_TRUE(rc::check([&] {
    auto owned = std::make_unique<LaunchLog>();
    LaunchLog& log = *owned;
    const auto backend = *CreateCudaBackend(
        std::move(owned),
        {.activation_dtype = DType::kBF16, .deterministic = *rc::gen::arbitrary<bool>()});
    const DeviceBuffer memory = *backend->Allocate(1 << 20);
    std::map<std::vector<int64_t>, std::vector<std::string>> launches_by_key;
    for (int step = 0; step < 20; ++step) {
      const int64_t num_seqs = *rc::gen::element(1, 2, 6);
      std::vector<int32_t> contexts;
      for (int64_t i = 0; i < num_seqs; ++i) {
        contexts.push_back(*rc::gen::resize(100, rc::gen::inRange(1, 3000)));
      }
      const std::vector<int32_t> queries(contexts.size(), 1);
      const auto view = [&](DType dtype, std::initializer_list<int64_t> shape) {
        return TensorView(memory.data(), dtype, shape);
      };
      const PagedAttentionArgs args{
          .out = view(DType::kBF16, {num_seqs, 4, 64}),
          .query = view(DType::kBF16, {num_seqs, 4, 64}),
          .kv_cache = view(DType::kBF16, {4, 2, 2, 16, 64}),
          .block_table = view(DType::kI32, {num_seqs, 192}),
          .context_lens = view(DType::kI32, {num_seqs}),
          .query_starts = view(DType::kI32, {num_seqs + 1}),
          .scale = 1.0f,
          .plan = *backend->Plan({.context_lens = contexts,
                                  .query_lens = queries,
                                  .heads = {4, 2, 64, 64},
                                  .fixed_launches = true,
                                  .device_context_lens = view(DType::kI32, {num_seqs})})};
      log.launches.clear();
      RC_ASSERT(backend->PagedAttention(args).ok());
      std::vector<int64_t> key = {num_seqs};
      backend->AppendLaunchKey(*args.plan, key);
      const auto [found, is_new] = launches_by_key.try_emplace(key, log.launches);
      RC_ASSERT(found->second == log.launches);
      num_equal += is_new ? 0 : 1;
      RC_ASSERT(backend->Synchronize().ok());
    }
  }));
  EXPECT_GT(num_equal, 100) << "few keys occurred twice";
}

}  // namespace
}  // namespace quire::kernels::cuda
