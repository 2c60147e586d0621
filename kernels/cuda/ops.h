#pragma once

// The ops of a step as CUDA kernels, one pair of files each. Each validates, rejects and names
// unsupported arguments, and enqueues on `device`; its contract is the op's (kernels/ops/).
//
// Index vectors are not checked on the host, which would wait for the device. For an index out of
// range, a kernel reads NaN and writes nothing.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device.h"
#include "kernels/ops/argmax.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/qkv_post.h"
#include "kernels/ops/shift_keys.h"

namespace quire::kernels::cuda {

// `weight` is a CudaWeight.
absl::Status Embed(Device& device, const EmbedArgs& args);
absl::Status GatherRows(Device& device, const GatherRowsArgs& args);
absl::Status CopyBlocks(Device& device, const CopyBlocksArgs& args);
absl::Status Norm(Device& device, const NormArgs& args);
absl::Status QkvPost(Device& device, const QkvPostArgs& args);
absl::Status ShiftKeys(Device& device, const ShiftKeysArgs& args);
absl::Status Argmax(Device& device, const ArgmaxArgs& args);

// Sums before an epilogue are stored in `scratch`, device memory for at least one row of float32;
// as many tokens as fit are processed at once. `weight` is a CudaWeight of the input's dtype.
absl::Status Linear(Device& device, const LinearArgs& args, const DeviceBuffer& scratch);

// Attention in plain CUDA: any head_dim and block_size of the contract, no tensor cores, no plan.
// The oracle of the fast kernels on a GPU, and the fallback where they do not run.
absl::Status AttentionReference(Device& device, const PagedAttentionArgs& args);

}  // namespace quire::kernels::cuda
