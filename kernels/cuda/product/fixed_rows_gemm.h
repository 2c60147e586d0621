#pragma once

// Matrix products in which the bits of a row do not depend on the number of rows.
//
// cuBLASLt chooses an algorithm by the shape of a product and by the alignment of its operands, and
// algorithms add in different orders. So Device::Gemm gets the same shape in every call with a
// weight: kFixedRows rows, at addresses that are multiples of 256. A product of more rows is
// computed in slices. Rows that are too few or are not aligned are copied to scratch memory and
// back. By NVIDIA's documentation, "all cuBLAS API routines from a given toolkit version generate
// the same bit-wise results at every run when executed on GPUs with the same architecture and the
// same number of SMs". That a row has the same bits in each of the 128 places is not documented.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

// An H200 needs as long for the products of 128 rows as for reading the weight: 2 * 128 operations
// for two bytes, at 650 TFLOPS and 4.3 TB/s (both estimated). So fewer rows would save no time, and
// a slice of more rows would cost decodes more.
inline constexpr int64_t kFixedRows = 128;

// kAny: a product has the rows of its caller. kFixed: it goes to FixedRowsGemm.
enum class GemmRows { kAny, kFixed };

// Returns the bytes of scratch memory that FixedRowsGemm needs for rows of these strides, in
// elements, whatever the type of the output is.
int64_t FixedRowsScratchBytes(int64_t lda, int64_t ldd, DType type);

// Enqueues a product of args.m rows, of which `args.d` has room for `num_rows` alone. They are
// computed at `padded`, which has room for all in the strides of args.d, and copied from there.
// Nobody reads the others.
absl::Status PaddedGemm(Device& device, GemmArgs args, int64_t num_rows, void* padded);

// Enqueues the product, with the contract of Device::Gemm. `scratch` has the bytes of
// FixedRowsScratchBytes at a multiple of 256.
absl::Status FixedRowsGemm(Device& device, const GemmArgs& args, void* scratch);

}  // namespace quire::kernels::cuda
