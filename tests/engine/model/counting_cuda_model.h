#pragma once

// A model on a CUDA backend of its own, which counts the products that its device multiplies.

#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "tests/engine/model/model_runner.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

struct GemmCounts {
  int all = 0, in_e4m3 = 0;
};

class GemmCountingDevice final : public kernels::cuda::ForwardingDevice {
 public:
  GemmCountingDevice(std::unique_ptr<kernels::cuda::Device> device, GemmCounts& counts)
      : ForwardingDevice(std::move(device)), counts_(counts) {}
  absl::Status Gemm(const kernels::cuda::GemmArgs& args) override {
    ++counts_.all;
    if (args.type == kernels::DType::kF8E4M3) ++counts_.in_e4m3;
    return ForwardingDevice::Gemm(args);
  }

 private:
  GemmCounts& counts_;
};

struct CountingCudaModel {
  GemmCounts gemms;
  std::unique_ptr<kernels::Backend> backend;
  int64_t weight_bytes = 0;
  std::unique_ptr<ModelRunner> runner;

  // `create` makes the model on a backend for ModelRunner::kLimits. The scratch memory is smaller
  // than `options` says.
  template <typename Create>
  CountingCudaModel(kernels::cuda::CudaBackendOptions options, Create create) {
    options.linear_scratch_bytes = 1 << 20;
    backend = *kernels::cuda::CreateCudaBackend(
        std::make_unique<GemmCountingDevice>(MakeDevice(ThreadOrder::kRandom), gemms), options);
    auto model = create(*backend);
    QUIRE_CHECK(model.ok()) << model.status();
    weight_bytes = (*model)->weight_bytes();
    runner = std::make_unique<ModelRunner>(*std::move(model), *backend);
    gemms = {};  // without those that the backend only tried (fp8_support.h)
  }
  CountingCudaModel(const engine::ModelConfig& config, const files::OpenedModel& files,
                    const kernels::cuda::CudaBackendOptions& options)
      : CountingCudaModel(options, [&](kernels::Backend& of) {
          return engine::CreateModel(config, files, of, ModelRunner::kLimits);
        }) {}
};

}  // namespace quire::testing
