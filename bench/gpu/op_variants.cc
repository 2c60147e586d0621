#include "bench/gpu/op_variants.h"

#include <algorithm>

#include "base/math.h"
#include "bench/gpu/stream.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/fp8_weight.h"
#include "kernels/cuda/product/moe.h"
#include "kernels/cuda/product/packed_weight.h"

namespace quire::bench {

using kernels::DeviceBuffer;
using kernels::DType;
using kernels::LinearArgs;
using kernels::MoeArgs;
using kernels::TensorView;
using kernels::WeightType;
using kernels::cuda::CudaWeight;
using kernels::cuda::GemmRows;
using kernels::cuda::GemmScales;

namespace {

// Returns the memory of a tensor that the arena owns.
DeviceBuffer Borrowed(const TensorView& view) {
  return DeviceBuffer(view.raw(), view.num_bytes(), [](void*) {});
}

}  // namespace

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
          {1, 16, 64, 256, 8192},
          {1, 64, 256},
          64,
          1 << 20,
          {{"mixtral 8/2", 8, 2, 4096, 14336}, {"qwen3 128/8", 128, 8, 2048, 768}},
          {1, 8, 64, 2048, 8192}};
}

TensorView Arena::Random(DType dtype, std::initializer_list<int64_t> shape, float amplitude) {
  const TensorView view = Zeroed(dtype, shape);
  if (status_.ok() && view.num_elements() > 0) {
    status_ = FillRandom(device_, view.raw(), dtype, view.num_elements(), amplitude, ++seed_);
  }
  return view;
}

TensorView Arena::Zeroed(DType dtype, std::initializer_list<int64_t> shape) {
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

const CudaWeight* Arena::Weight(int64_t rows, int64_t cols) {
  const TensorView view = Random(DType::kBF16, {rows, cols}, 0.05f);
  weights_.push_back(std::make_unique<CudaWeight>(Borrowed(view), DType::kBF16, rows, cols));
  return weights_.back().get();
}

const CudaWeight* Arena::PackedWeight(WeightType type, int64_t rows, int64_t cols) {
  const int64_t bytes =
      kernels::cuda::NumGroups(rows) * kernels::cuda::PackedGroupBytes(type, cols);
  const TensorView view = Random(DType::kF16, {bytes / 2}, 0.05f);
  weights_.push_back(std::make_unique<CudaWeight>(
      Borrowed(view), DType::kBF16, cols,
      std::vector<kernels::cuda::CudaWeightPart>{{.num_rows = rows, .packed = type}}));
  return weights_.back().get();
}

const CudaWeight* Arena::Fp8Weight(GemmScales scales, int64_t rows, int64_t cols) {
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
      Borrowed(view), DType::kBF16, cols,
      std::vector<kernels::cuda::CudaWeightPart>{
          {.num_rows = rows, .scales = scales, .scales_offset = rows * cols}}));
  return weights_.back().get();
}

std::shared_ptr<DeviceBuffer> Arena::Scratch(const std::vector<LinearArgs>& steps) {
  int64_t bytes = 0;
  for (const LinearArgs& args : steps) {
    bytes = std::max(bytes, kernels::cuda::LinearScratchBytes(args, GemmRows::kAny));
  }
  return ScratchOf(bytes);
}

std::shared_ptr<DeviceBuffer> Arena::Scratch(const std::vector<MoeArgs>& steps) {
  int64_t bytes = 0;
  for (const MoeArgs& args : steps) {
    bytes = std::max(bytes, kernels::cuda::MoeScratchBytes(args, GemmRows::kAny));
  }
  return ScratchOf(bytes);
}

std::shared_ptr<DeviceBuffer> Arena::ScratchOf(int64_t bytes) {
  bytes = std::max(kernels::cuda::CudaBackendOptions().linear_scratch_bytes,
                   std::min(kernels::cuda::MostScratchBytes(device_.info()), bytes));
  const TensorView memory = Zeroed(DType::kF32, {base::CeilDiv(bytes, int64_t{4})});
  return std::make_shared<DeviceBuffer>(Borrowed(memory));
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

}  // namespace quire::bench
