#pragma once

// Builds a model's step input by hand, without scheduler or block manager.

#include <cstdint>
#include <vector>

#include "engine/batch/model_input.h"

namespace quire::testing {

// Consecutive tokens of one sequence. `blocks` is the whole block table of the sequence.
struct StepChunk {
  const std::vector<int32_t>* tokens = nullptr;
  int64_t begin = 0;  // the first position of the chunk
  int64_t count = 0;
  std::vector<int32_t> blocks;
};

// Returns the input of a step that computes `chunks` and the logits of every token.
inline engine::ModelInput MakeStep(const std::vector<StepChunk>& chunks, int32_t block_size) {
  engine::ModelInput input;
  engine::GroupInput& group = input.groups.emplace_back();
  input.query_starts.push_back(0);
  for (const StepChunk& chunk : chunks) {
    group.max_blocks_per_seq =
        std::max<int64_t>(group.max_blocks_per_seq, static_cast<int64_t>(chunk.blocks.size()));
  }
  for (const StepChunk& chunk : chunks) {
    for (int64_t position = chunk.begin; position < chunk.begin + chunk.count; ++position) {
      input.logit_rows.push_back(static_cast<int32_t>(input.token_ids.size()));
      input.token_ids.push_back((*chunk.tokens)[position]);
      input.positions.push_back(static_cast<int32_t>(position));
      group.slot_mapping.push_back(static_cast<int64_t>(chunk.blocks[position / block_size]) *
                                       block_size +
                                   position % block_size);
    }
    input.query_starts.push_back(static_cast<int32_t>(input.token_ids.size()));
    input.query_lens.push_back(static_cast<int32_t>(chunk.count));
    input.context_lens.push_back(static_cast<int32_t>(chunk.begin + chunk.count));
    std::vector<int32_t> row = chunk.blocks;
    row.resize(group.max_blocks_per_seq, 0);
    group.block_table.insert(group.block_table.end(), row.begin(), row.end());
  }
  return input;
}

}  // namespace quire::testing
