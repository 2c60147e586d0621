#pragma once

// The part of a decoder that one tensor-parallel rank computes (Megatron-LM, arXiv:1909.08053).
//
// A rank has a share of the heads of each layer and of the inner units of its feed-forward network.
// The outputs of attention and of the network are sums over the ranks. The biases of these outputs
// belong to rank 0. All else is on every rank: norms, embedding, head and residual.

#include <cstdint>

#include "absl/status/statusor.h"

#include "engine/model/decoder_tensors.h"
#include "engine/model/model_config.h"
#include "kernels/communicator.h"

namespace quire::engine {

// Returns the elements [begin, end) of `size` that belong to the rank, if ranks have equal shares.
// If there are fewer elements than ranks, several ranks have the same element.
RowRange ShareOf(const kernels::Rank& rank, int64_t size);

// Returns the config of the rank's part. Returns InvalidArgument if heads or inner units cannot be
// divided equally, or if a layer is not supported: a mixture, a norm over all heads of a token, or
// a pattern that differs between heads.
absl::StatusOr<ModelConfig> Shard(const ModelConfig& config, const kernels::Rank& rank);

// Leaves those rows and columns of `tensors`, the tensors of the whole model, that the rank needs.
// Shard must have accepted `config`.
void ShardTensors(const ModelConfig& config, const kernels::Rank& rank, DecoderTensors& tensors);

}  // namespace quire::engine
