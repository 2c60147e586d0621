#pragma once

// The ops of a step as CUDA kernels, one pair of files for each op. An op validates its arguments,
// returns an error that names unsupported arguments, and enqueues its work on `device`. The headers
// in kernels/ops/ define what each op computes.
//
// The host does not check the values of index vectors, because the check would wait for the device.
// For a token id, row or position out of range, a kernel computes with NaN. For a slot out of
// range, it writes nothing. Attention does not check the block table.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "kernels/ops/argmax.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/qkv_post.h"
#include "kernels/ops/shift_keys.h"
#include "kernels/ops/take_tokens.h"
#include "kernels/ops/update_table.h"

namespace quire::kernels::cuda {

// `weight` of EmbedArgs is a CudaWeight.
absl::Status TakeTokens(Device& device, const TakeTokensArgs& args);
absl::Status Embed(Device& device, const EmbedArgs& args);
absl::Status GatherRows(Device& device, const GatherRowsArgs& args);
absl::Status CopyBlocks(Device& device, const CopyBlocksArgs& args);
absl::Status Norm(Device& device, const NormArgs& args);
absl::Status QkvPost(Device& device, const QkvPostArgs& args);
absl::Status ShiftKeys(Device& device, const ShiftKeysArgs& args);
absl::Status UpdateTable(Device& device, const UpdateTableArgs& args);
absl::Status Argmax(Device& device, const ArgmaxArgs& args);

// `scratch` is device memory for the float32 sums before the epilogue. It must have room for the
// sums of at least one token. The op processes as many tokens at a time as fit. `args.weight` is a
// CudaWeight with the dtype of the input. If it is packed, a quarter of `scratch` is for rows that
// are dequantised (weight_product.h), and must have room for one. With GemmRows::kFixed, `scratch`
// must have room for ProductScratch as well.
absl::Status Linear(Device& device, const LinearArgs& args, const DeviceBuffer& scratch,
                    GemmRows gemm_rows = GemmRows::kAny);
// Returns the bytes of scratch memory from which on Linear processes all tokens at a time.
int64_t LinearScratchBytes(const LinearArgs& args, GemmRows gemm_rows);

// Computes attention in plain CUDA, without tensor cores and without the plan's division into
// items, for any heads and block_size that kernels/ops/paged_attention.h allows. It is the
// reference for tests of the fast kernels on a GPU, and the fallback where these kernels do not
// run.
absl::Status AttentionReference(Device& device, const PagedAttentionArgs& args);

}  // namespace quire::kernels::cuda
