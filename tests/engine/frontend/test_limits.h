#pragma once

// The limits of the frontends that tests make.

#include "engine/frontend/frontend.h"

namespace quire::engine {

inline const FrontendLimits kLimits = {.vocab_size = 300,
                                       .max_model_len = 64,
                                       .max_prompt_bytes = 100,
                                       .cache_tokens = 256,
                                       .block_size = 16,
                                       .max_num_seqs = 4};

}  // namespace quire::engine
