#include "bench/gpu/ops_bench.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/gpu/stream.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/device_sampler.h"
#include "kernels/cuda/fp8_weight.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packed_choice.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/weight_product.h"

namespace quire::bench {

using kernels::Activation;
using kernels::BlockCopy;
using kernels::DeviceBuffer;
using kernels::DType;
using kernels::SampleRow;
using kernels::TensorView;
using kernels::WeightType;
using kernels::cuda::CudaWeight;
using kernels::cuda::Device;
using kernels::cuda::DeviceSampler;
using kernels::cuda::GemmScales;

namespace {

struct MixtureShape {
  const char* name;
  int64_t num_experts, num_chosen, hidden, intermediate;
};

struct ModelShape {
  int64_t hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab;
  std::vector<int64_t> tokens;       // tokens in a step
  std::vector<int64_t> logits_rows;  // rows of logits in a step
  // The most blocks that one call of CopyBlocks copies here, and the number of elements that a
  // block has in all layers together.
  int64_t copied_blocks, block_elements;
  std::vector<MixtureShape> mixtures;
  std::vector<int64_t> mixture_tokens;  // tokens in a step of a mixture
  static constexpr int64_t kBlockSize = 16;

  int64_t qkv() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

ModelShape ShapeFor(Size size) {
  if (size == Size::kTiny)
    return {64, 2, 1, 32, 96, 100, {1, 20}, {1, 3}, 2, 1024, {{"4/2", 4, 2, 64, 96}}, {1, 20}};
  // A block of 16 tokens has 1 Mi elements in all 32 layers together.
  return {4096,
          32,
          8,
          128,
          14336,
          128256,
          {1, 64, 256, 8192},
          {1, 64, 256},
          64,
          1 << 20,
          {{"mixtral 8/2", 8, 2, 4096, 14336}, {"qwen3 128/8", 128, 8, 2048, 768}},
          {1, 8, 64, 2048}};
}

// Owns the device memory for the variants of one op, including their inputs.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}

  // Returns a tensor of random numbers. If the allocation fails, status() returns the error.
  TensorView Random(DType dtype, std::initializer_list<int64_t> shape, float amplitude = 1.0f) {
    const TensorView view = Zeroed(dtype, shape);
    if (status_.ok() && view.num_elements() > 0) {
      status_ = FillRandom(device_, view.raw(), dtype, view.num_elements(), amplitude, ++seed_);
    }
    return view;
  }
  TensorView Zeroed(DType dtype, std::initializer_list<int64_t> shape) {
    const int64_t bytes = TensorView(nullptr, dtype, shape).num_bytes();
    absl::StatusOr<DeviceBuffer> buffer = device_.Allocate(bytes);
    if (!buffer.ok()) {
      status_ = buffer.status();
      return TensorView(nullptr, dtype, shape);
    }
    void* const data = buffer->data();
    buffers_.push_back(*std::move(buffer));
    if (status_.ok()) status_ = device_.Fill(data, 0, bytes);
    return TensorView(data, dtype, shape);
  }
  // Returns a tensor of the numbers 0, step, 2 step, ...
  template <typename T>
  TensorView Counting(DType dtype, int64_t count, T step) {
    std::vector<T> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i) * step;
    const TensorView view = Zeroed(dtype, {count});
    if (status_.ok()) status_ = device_.CopyToDevice(view.raw(), values.data(), view.num_bytes());
    if (status_.ok()) status_ = device_.Synchronize();
    return view;
  }
  const CudaWeight* Weight(int64_t rows, int64_t cols) {
    const TensorView view = Random(DType::kBF16, {rows, cols}, 0.05f);
    weights_.push_back(std::make_unique<CudaWeight>(
        DeviceBuffer(view.raw(), view.num_bytes(), [](void*) {}), DType::kBF16, rows, cols));
    return weights_.back().get();
  }

  // Codes and scales are random: as f16 numbers, so that the scales are finite.
  const CudaWeight* PackedWeight(WeightType type, int64_t rows, int64_t cols) {
    const int64_t bytes =
        kernels::cuda::NumGroups(rows) * kernels::cuda::PackedGroupBytes(type, cols);
    const TensorView view = Random(DType::kF16, {bytes / 2}, 0.05f);
    weights_.push_back(std::make_unique<CudaWeight>(
        DeviceBuffer(view.raw(), view.num_bytes(), [](void*) {}), DType::kBF16, cols,
        std::vector<kernels::cuda::CudaWeightPart>{{.num_rows = rows, .packed = type}}));
    return weights_.back().get();
  }

  // Codes and scales are random.
  const CudaWeight* Fp8Weight(GemmScales scales, int64_t rows, int64_t cols) {
    const int64_t scale_bytes =
        rows / kernels::cuda::RowsOfScales(scales) * kernels::cuda::ScaleRowBytes(scales, cols);
    const TensorView view = Zeroed(DType::kF8E4M3, {rows * cols + scale_bytes});
    if (status_.ok()) {
      status_ = FillRandom(device_, view.raw(), DType::kF8E4M3, rows * cols, 1.0f, ++seed_);
    }
    if (status_.ok()) {
      status_ = FillRandom(device_, static_cast<char*>(view.raw()) + rows * cols, DType::kF32,
                           scale_bytes / 4, 0.05f, ++seed_);
    }
    weights_.push_back(std::make_unique<CudaWeight>(
        DeviceBuffer(view.raw(), view.num_bytes(), [](void*) {}), DType::kBF16, cols,
        std::vector<kernels::cuda::CudaWeightPart>{
            {.num_rows = rows, .scales = scales, .scales_offset = rows * cols}}));
    return weights_.back().get();
  }

  const absl::Status& status() const { return status_; }

 private:
  Device& device_;
  absl::Status status_;
  uint32_t seed_ = 100;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::unique_ptr<CudaWeight>> weights_;
};

// Collects variants of one op, with the arena's status and the prediction in their rows.
class OpVariants {
 public:
  OpVariants(const Arena& arena, const Ceilings& ceilings, std::string suite,
             const std::string& filter)
      : arena_(arena), ceilings_(ceilings), suite_(std::move(suite)), filter_(filter) {}

  // Leaves out a case whose name does not contain the filter.
  void Add(std::string name, Work work, std::function<absl::Status()> enqueue,
           const Expectation& expectation = {}) {
    if (!absl::StrContains(name, filter_)) return;
    variants_.push_back({{.suite = suite_,
                          .name = std::move(name),
                          .status = arena_.status(),
                          .work = work,
                          .floor_seconds = FloorSeconds(work, ceilings_),
                          .predicted_seconds = PredictedSeconds(work, ceilings_, expectation)},
                         std::move(enqueue)});
  }
  std::vector<Variant> Take() { return std::move(variants_); }

 private:
  const Arena& arena_;
  const Ceilings& ceilings_;
  const std::string suite_;
  const std::string& filter_;
  std::vector<Variant> variants_;
};

using AddVariants = void (*)(Device&, const ModelShape&, Arena&, OpVariants&);

void AddNorm(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const TensorView weight = arena.Random(DType::kF32, {shape.hidden});
  for (const int64_t tokens : shape.tokens) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, shape.hidden});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, shape.hidden});
    variants.Add(absl::StrCat("norm ", tokens, "x", shape.hidden),
                 {.bytes = static_cast<double>(in.num_bytes() + out.num_bytes())}, [=, &device] {
                   return kernels::cuda::Norm(device, {.out = out, .input = in, .weight = weight});
                 });
  }
}

void AddQkvPost(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t tokens : shape.tokens) {
    const int64_t num_blocks = (tokens + ModelShape::kBlockSize - 1) / ModelShape::kBlockSize;
    const TensorView qkv = arena.Random(DType::kBF16, {tokens, shape.qkv()});
    const TensorView query = arena.Zeroed(DType::kBF16, {tokens, shape.num_heads, shape.head_dim});
    const TensorView cache = arena.Zeroed(
        DType::kBF16, {num_blocks, 2, shape.num_kv_heads, ModelShape::kBlockSize, shape.head_dim});
    const TensorView positions = arena.Counting<int32_t>(DType::kI32, tokens, 1);
    const TensorView slots = arena.Counting<int64_t>(DType::kI64, tokens, 1);
    const TensorView table = arena.Random(DType::kF32, {tokens, shape.head_dim / 2, 2});
    variants.Add(
        absl::StrCat("qkv_post ", tokens, " x ", shape.num_heads, "/", shape.num_kv_heads),
        {.bytes = static_cast<double>(2 * qkv.num_bytes() + table.num_bytes())}, [=, &device] {
          return kernels::cuda::QkvPost(device, {.query = query,
                                                 .kv_cache = cache,
                                                 .qkv = qkv,
                                                 .positions = positions,
                                                 .slot_mapping = slots,
                                                 .rope_table = table,
                                                 .rope_layout = kernels::RopeLayout::kHalfSplit});
        });
  }
}

void AddEmbed(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const CudaWeight* const weight = arena.Weight(shape.vocab, shape.hidden);
  for (const int64_t tokens : shape.tokens) {
    const auto step = static_cast<int32_t>(shape.vocab / tokens);
    const TensorView ids = arena.Counting<int32_t>(DType::kI32, tokens, step);
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, shape.hidden});
    variants.Add(absl::StrCat("embed ", tokens, "x", shape.hidden),
                 {.bytes = 2.0 * static_cast<double>(out.num_bytes())}, [=, &device] {
                   return kernels::cuda::Embed(device,
                                               {.out = out, .token_ids = ids, .weight = weight});
                 });
  }
}

void AddGatherRows(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t rows : shape.logits_rows) {
    const TensorView in = arena.Random(DType::kBF16, {4 * rows, shape.hidden});
    const TensorView index = arena.Counting<int32_t>(DType::kI32, rows, 4);
    const TensorView out = arena.Zeroed(DType::kBF16, {rows, shape.hidden});
    variants.Add(absl::StrCat("gather_rows ", rows, "x", shape.hidden),
                 {.bytes = 2.0 * static_cast<double>(out.num_bytes())}, [=, &device] {
                   return kernels::cuda::GatherRows(device,
                                                    {.out = out, .input = in, .rows = index});
                 });
  }
}

void AddArgmax(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t rows : shape.logits_rows) {
    const TensorView values = arena.Random(DType::kF32, {rows, shape.vocab});
    const TensorView out = arena.Zeroed(DType::kI32, {rows});
    variants.Add(absl::StrCat("argmax ", rows, "x", shape.vocab),
                 {.bytes = static_cast<double>(values.num_bytes())}, [=, &device] {
                   return kernels::cuda::Argmax(device, {.out = out, .values = values});
                 });
  }
}

void AddCopyBlocks(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const TensorView blocks =
      arena.Random(DType::kBF16, {2 * shape.copied_blocks, shape.block_elements});
  for (const int64_t count : {int64_t{1}, shape.copied_blocks}) {
    std::vector<BlockCopy> copies;
    for (int32_t i = 0; i < count; ++i) {
      copies.push_back({.source = 2 * i, .destination = 2 * i + 1});
    }
    const double bytes = 2.0 * 2.0 * static_cast<double>(count * shape.block_elements);
    variants.Add(absl::StrCat("copy_blocks ", count, "x", shape.block_elements), {.bytes = bytes},
                 [=, &device] {
                   return kernels::cuda::CopyBlocks(device, {.blocks = blocks, .copies = copies});
                 });
  }
}

// Predicted times, in microseconds (docs/evidence/gpu-predictions.md).
struct SampleKind {
  const char* name;
  kernels::DrawParams params;
  double microseconds;  // of as many rows as there are multiprocessors, or fewer
};

void AddSample(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t num_rows : shape.logits_rows) {
    const TensorView logits = arena.Random(DType::kF32, {num_rows, shape.vocab}, 8.0f);
    const TensorView drawn = arena.Zeroed(DType::kI32, {num_rows});
    for (const SampleKind& kind :
         {SampleKind{"greedy", {.temperature = 0.0f}, 8}, SampleKind{"plain", {}, 35},
          SampleKind{"top_k 50", {.top_k = 50}, 60}, SampleKind{"top_p 0.95", {.top_p = 0.95f}, 65},
          SampleKind{"top_p 0.95, min_p 0.05", {.top_p = 0.95f, .min_p = 0.05f}, 65}}) {
      std::vector<SampleRow> rows(static_cast<size_t>(num_rows));
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = {.row = static_cast<int64_t>(i),
                   .draw = static_cast<int32_t>(i),
                   .params = kind.params,
                   .seed = i};
      }
      absl::StatusOr<std::unique_ptr<DeviceSampler>> created =
          DeviceSampler::Create(device, {.vocab_size = static_cast<int32_t>(shape.vocab),
                                         .max_rows = num_rows,
                                         .max_draws = num_rows});
      const std::shared_ptr<DeviceSampler> sampler =
          created.ok() ? std::shared_ptr<DeviceSampler>(*std::move(created)) : nullptr;
      // The first call, which is not recorded, sends the rows. In the others they are the same.
      const auto sample = [=, &device, status = created.status()]() -> absl::Status {
        RETURN_IF_ERROR(status);
        ASSIGN_OR_RETURN(const kernels::TableUpdate update, sampler->Prepare(rows));
        DeviceBuffer sent;
        if (!update.changes.empty()) {
          const auto bytes = static_cast<int64_t>(update.changes.size_bytes());
          ASSIGN_OR_RETURN(sent, device.Allocate(bytes));
          RETURN_IF_ERROR(device.CopyToDevice(sent.data(), update.changes.data(), bytes));
          RETURN_IF_ERROR(kernels::cuda::UpdateTable(
              device,
              {.table = update.table,
               .changes = TensorView(sent.data(), DType::kI32, {std::ssize(update.changes), 2})}));
          RETURN_IF_ERROR(device.Synchronize());
        }
        RETURN_IF_ERROR(DeviceSampler::Enqueue(
            {.logits = logits, .rows = rows, .drawn = drawn, .sampler = sampler.get()}));
        std::vector<absl::StatusOr<kernels::SampledRow>> results;
        sampler->Take(results);  // so that the next call may be enqueued
        return absl::OkStatus();
      };
      const int64_t waves = base::CeilDiv(num_rows, int64_t{device.info().num_sms});
      variants.Add(absl::StrCat("sample ", num_rows, "x", shape.vocab, " ", kind.name),
                   {.bytes = static_cast<double>(logits.num_bytes())}, sample,
                   {.launch_seconds = static_cast<double>(waves) * kind.microseconds * 1e-6});
    }
  }
}

// The kernel that makes the plan of a decode step.
void AddPlan(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t num_seqs : shape.logits_rows) {
    const std::vector<int32_t> ones(static_cast<size_t>(num_seqs), 1);
    const TensorView lengths = arena.Counting<int32_t>(DType::kI32, num_seqs, 64);
    const auto op = std::make_shared<kernels::cuda::PagedAttentionOp>(device);
    const auto plan = [=]() -> absl::Status {
      return op
          ->Plan({.context_lens = ones,
                  .query_lens = ones,
                  .heads = {static_cast<int32_t>(shape.num_heads),
                            static_cast<int32_t>(shape.num_kv_heads),
                            static_cast<int32_t>(shape.head_dim),
                            static_cast<int32_t>(shape.head_dim)},
                  .cache_dtype = DType::kBF16,
                  .fixed_launches = true,
                  .device_context_lens = lengths})
          .status();
    };
    variants.Add(absl::StrCat("plan of ", num_seqs, " decodes"),
                 {.bytes = static_cast<double>(lengths.num_bytes())}, plan,
                 {.launch_seconds = num_seqs <= 64 ? 6e-6 : 9e-6});
  }
}

void RunEach(const OpsRun& run, const std::string& suite, std::initializer_list<AddVariants> ops) {
  const ModelShape shape = ShapeFor(run.size);
  for (const AddVariants add : ops) {
    if (const absl::Status status = run.may_go_on(); !status.ok()) {
      return run.emit({.suite = suite, .name = suite, .status = status});
    }
    Arena arena(run.device);
    OpVariants variants(arena, run.ceilings, suite, run.filter);
    add(run.device, shape, arena, variants);
    for (const Row& row : MeasureInTurn(run.device, run.stopwatch, variants.Take())) run.emit(row);
  }
}

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
  const auto scratch = std::make_shared<DeviceBuffer>();
  if (epilogue) {
    const TensorView memory =
        arena.Zeroed(DType::kF32, {kernels::cuda::CudaBackendOptions().linear_scratch_bytes / 4});
    *scratch = DeviceBuffer(memory.raw(), memory.num_bytes(), [](void*) {});
  }
  for (const int64_t tokens : shape.tokens) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, product.cols});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, outputs});
    double bytes = static_cast<double>(weight->bytes() + in.num_bytes() + out.num_bytes());
    // The partial sums in float32 are written and read again.
    if (scratch->bytes() > 0) bytes += 8.0 * static_cast<double>(tokens * product.rows);
    if (product.residual) bytes += static_cast<double>(out.num_bytes());
    variants.Add(
        absl::StrCat("linear ", product.name, " M=", tokens, " N=", product.rows,
                     " K=", product.cols),
        {.bytes = bytes, .flops = 2.0 * static_cast<double>(tokens * product.rows * product.cols)},
        [=, &device] {
          return kernels::cuda::Linear(device,
                                       {.out = out,
                                        .input = in,
                                        .weight = weight,
                                        .residual = product.residual ? out : TensorView(),
                                        .activation = product.activation},
                                       *scratch);
        });
  }
}

// A step of few tokens reads packed weights as they are, once for every 64 tokens. A larger one
// expands them first.
template <WeightType kType>
void AddPackedLinear(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(kType);
  const int64_t rows = shape.hidden, cols = shape.intermediate;
  if (cols % traits.block_elements != 0) return;
  const CudaWeight* const weight = arena.PackedWeight(kType, rows, cols);
  const TensorView memory =
      arena.Zeroed(DType::kF32, {kernels::cuda::CudaBackendOptions().linear_scratch_bytes / 4});
  const auto scratch =
      std::make_shared<DeviceBuffer>(memory.raw(), memory.num_bytes(), [](void*) {});
  for (const int64_t tokens : {1, 8, 16, 24, 32, 48, 64, 128, 256}) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, cols});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, rows});
    const bool expanded =
        tokens > kernels::cuda::MostPackedTokens(kType, rows, cols, device.info().num_sms);
    const int64_t batches = expanded ? 1 : base::CeilDiv(tokens, kernels::cuda::kPackedBatch);
    double bytes =
        static_cast<double>(batches * weight->bytes() + in.num_bytes() + out.num_bytes());
    if (expanded) bytes += 2.0 * 2.0 * static_cast<double>(rows * cols);  // written, then read
    variants.Add(
        absl::StrCat("linear ", base::ToAbsl(traits.name), " M=", tokens, " N=", rows, " K=", cols),
        {.bytes = bytes, .flops = 2.0 * static_cast<double>(tokens * rows * cols)},
        [=, &device] {
          return kernels::cuda::Linear(device, {.out = out, .input = in, .weight = weight},
                                       *scratch);
        },
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
  const TensorView memory =
      arena.Zeroed(DType::kF32, {kernels::cuda::CudaBackendOptions().linear_scratch_bytes / 4});
  const auto scratch =
      std::make_shared<DeviceBuffer>(memory.raw(), memory.num_bytes(), [](void*) {});
  for (const int64_t tokens : shape.tokens) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, cols});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, rows});
    // The tokens in e4m3 are written, then read.
    const double bytes =
        static_cast<double>(weight->bytes() + 2 * in.num_bytes() + out.num_bytes());
    variants.Add(
        absl::StrCat("linear e4m3 x e4m3, scales of ", kOfBlocks ? "blocks" : "rows", " M=", tokens,
                     " N=", rows, " K=", cols),
        // The ceiling is that of bf16, in whose time tensor cores multiply twice as many e4m3.
        {.bytes = bytes, .flops = static_cast<double>(tokens * rows * cols)},
        [=, &device] {
          return kernels::cuda::Linear(device, {.out = out, .input = in, .weight = weight},
                                       *scratch);
        },
        // 1,250 and 1,000 TFLOP/s of 1,560, and two launches.
        {.of_gemm = kOfBlocks ? 0.64 : 0.8, .launch_seconds = 6e-6});
  }
}

// Counts the experts that the tokens choose, each once. The choices of tokens are taken for
// independent. The experts of a large step are expanded: written and read in 16 bits.
template <WeightType kType>
void AddPackedMixture(Device& device, const MixtureShape& mixture,
                      const std::vector<int64_t>& steps, Arena& arena, OpVariants& variants) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(kType);
  const int64_t hidden = mixture.hidden, inner = mixture.intermediate;
  if (hidden % traits.block_elements != 0 || inner % traits.block_elements != 0) return;
  const CudaWeight* const router = arena.Weight(mixture.num_experts, hidden);
  const CudaWeight* const up = arena.PackedWeight(kType, mixture.num_experts * 2 * inner, hidden);
  const CudaWeight* const down = arena.PackedWeight(kType, mixture.num_experts * hidden, inner);
  const TensorView memory =
      arena.Zeroed(DType::kF32, {kernels::cuda::CudaBackendOptions().linear_scratch_bytes / 4});
  const auto scratch =
      std::make_shared<DeviceBuffer>(memory.raw(), memory.num_bytes(), [](void*) {});
  for (const int64_t tokens : steps) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, hidden});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, hidden});
    const auto experts = static_cast<double>(mixture.num_experts);
    const auto chosen = static_cast<double>(mixture.num_chosen);
    const double share = 1.0 - std::pow(1.0 - chosen / experts, static_cast<double>(tokens));
    const auto weights = static_cast<double>(up->rows() * hidden + down->rows() * inner);
    const bool expanded = tokens * mixture.num_chosen >= 128 * mixture.num_experts;
    const double bytes =
        static_cast<double>(up->bytes() + down->bytes()) + (expanded ? 2.0 * 2.0 * weights : 0.0);
    variants.Add(
        absl::StrCat("moe ", mixture.name, " ", base::ToAbsl(traits.name), " M=", tokens),
        {.bytes = bytes * share,
         .flops = 2.0 * static_cast<double>(tokens) * chosen * weights / experts},
        [=, &device] {
          return kernels::cuda::Moe(device,
                                    {.out = out,
                                     .input = in,
                                     .router = router,
                                     .up = up,
                                     .down = down,
                                     .num_experts_per_token = mixture.num_chosen},
                                    *scratch);
        },
        PackedMixtureExpectation(expanded ? 1 : tokens));
  }
}

template <WeightType kType>
void AddPackedMixtures(Device& device, const ModelShape& shape, Arena& arena,
                       OpVariants& variants) {
  for (const MixtureShape& mixture : shape.mixtures) {
    AddPackedMixture<kType>(device, mixture, shape.mixture_tokens, arena, variants);
  }
}

}  // namespace

void RunOps(const OpsRun& run) {
  RunEach(run, "ops",
          {&AddNorm, &AddQkvPost, &AddEmbed, &AddGatherRows, &AddArgmax, &AddCopyBlocks, &AddSample,
           &AddPlan});
}

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
           &AddFp8Linear<GemmScales::kRows>, &AddFp8Linear<GemmScales::kBlocks>,
           &AddPackedMixtures<WeightType::kQ4_K>, &AddPackedMixtures<WeightType::kQ8_0>});
}

}  // namespace quire::bench
