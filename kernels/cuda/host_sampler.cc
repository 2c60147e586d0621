#include "kernels/cuda/host_sampler.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels::cuda {

absl::StatusOr<std::unique_ptr<HostSampler>> HostSampler::Create(Device& device,
                                                                 const SamplerSpec& spec) {
  const int64_t row_bytes = int64_t{spec.vocab_size} * SizeOf(DType::kF32);
  ASSIGN_OR_RETURN(DeviceBuffer logits, device.AllocateHost(spec.max_rows * row_bytes));
  ASSIGN_OR_RETURN(DeviceBuffer drawn, device.AllocateHost(spec.max_draws * SizeOf(DType::kI32)));
  return std::unique_ptr<HostSampler>(
      new HostSampler(device, spec, std::move(logits), std::move(drawn)));
}

HostSampler::HostSampler(Device& device, const SamplerSpec& spec, DeviceBuffer logits,
                         DeviceBuffer drawn)
    : device_(device), sampler_(spec), logits_(std::move(logits)), drawn_(std::move(drawn)) {}

absl::Status HostSampler::Enqueue(const SampleArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  return static_cast<HostSampler*>(args.sampler)->EnqueueHere(args);
}

absl::Status HostSampler::EnqueueHere(const SampleArgs& args) {
  if (args.logits.num_bytes() > logits_.bytes()) {
    return WantGot("logits", absl::StrCat("at most ", logits_.bytes(), " bytes"),
                   args.logits.ToString());
  }
  if (args.drawn.num_bytes() > drawn_.bytes()) {
    return WantGot("drawn", absl::StrCat("at most ", drawn_.bytes(), " bytes"),
                   args.drawn.ToString());
  }
  const int64_t drawn_bytes = args.drawn.num_bytes();
  RETURN_IF_ERROR(device_.CopyToHost(logits_.data(), args.logits.raw(), args.logits.num_bytes()));
  RETURN_IF_ERROR(device_.CopyToHost(drawn_.data(), args.drawn.raw(), drawn_bytes));
  SampleArgs on_host = args;
  on_host.logits =
      TensorView(logits_.data(), DType::kF32, {args.logits.dim(0), args.logits.dim(1)});
  on_host.drawn = TensorView(drawn_.data(), DType::kI32, {args.drawn.dim(0)});
  const auto run = [this, on_host] { sampler_.Run(on_host, sampling::RunInOrder); };
  RETURN_IF_ERROR(
      device_.CallHost({.run = run, .output = drawn_.data(), .output_bytes = drawn_bytes}));
  return device_.CopyToDevice(args.drawn.raw(), drawn_.data(), drawn_bytes);
}

}  // namespace quire::kernels::cuda
