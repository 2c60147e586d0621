"""The bugs that mutate.py plants by name, and the mutants of its rules that are not bugs."""

HERE = "tests/kernels/cuda"
CUDA = "kernels/cuda"
ATTENTION = f"{CUDA}/paged_attention.cuh"
TILES = f"{CUDA}/attn_tiles.cuh"
PRODUCTS = f"{CUDA}/attn_products.cuh"
SOFTMAX = f"{CUDA}/attn_softmax.cuh"
ROWS = f"{CUDA}/attn_rows.cuh"
EXCHANGE = f"{CUDA}/attn_exchange.cuh"
MERGE = f"{CUDA}/attn_merge.cuh"
ATTENTION_HOST = f"{CUDA}/paged_attention.cu"
REFERENCE = f"{CUDA}/attention_reference.cuh"
PLAN = f"{CUDA}/attention_plan.cc"
DECODES = f"{CUDA}/plan_decodes.cuh"
SAMPLE = f"{CUDA}/sample.cuh"
SAMPLE_BLOCK = f"{CUDA}/sample_block.cuh"
SAMPLE_SELECT = f"{CUDA}/sample_select.cuh"
NORM = f"{CUDA}/norm.cuh"
QKV_POST = f"{CUDA}/qkv_post.cuh"
PREFILL = f"{HERE}/hopper_prefill.cuh"
ROUTING = f"{CUDA}/moe_routing.cuh"
GROUPED = f"{CUDA}/grouped_gemm.cuh"

# Each bug is (name, file, text to replace, replacement). If a rule of mutate.py makes the same mutant, the
# mutant has this name.
PLANTED = [
    ("keys released before wgmma has read them", PREFILL,
     "    WgmmaWait<0>();\n    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);",
     "    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);\n    WgmmaWait<0>();"),
    ("scores used before wgmma has been waited for", PREFILL,
     "WgmmaWait<0>();\n    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);",
     ";\n    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);"),
    ("no wait for the keys to come", PREFILL, "MbarrierWait(&shared.keys_full[stage], parity);", ";"),
    ("tiles fetched before their stage is empty", PREFILL, "MbarrierWait(empty, parity);", ";"),
    ("wrong first parity", PREFILL, "(i / kPrefillStages + 1) & 1", "(i / kPrefillStages) & 1"),
    ("half the bytes expected", PREFILL, "MbarrierArriveExpect(full, kTileBytes)",
     "MbarrierArriveExpect(full, kHalfTileBytes)"),
    ("one of two arrivals missing", PREFILL, "if (thread == 0) MbarrierArrive(&shared.keys_empty",
     "if (threadIdx.x == 0) MbarrierArrive(&shared.keys_empty"),
    ("leading and stride of V swapped", PREFILL, "kHalfTileBytes, 1024)", "1024, kHalfTileBytes)"),
    ("K advances by half a step", PREFILL, "k % 4 * 32;", "k % 4 * 16;"),
    ("no barrier after the tile of Q is written", PREFILL, "NamedBarrier(1 + warpgroup, 128);", ";"),
    ("causal mask off by one", PREFILL, "key <= position[h] ?", "key < position[h] ?"),
    ("rows past the last stored", PREFILL, "if (packed_row[h] >= tile.num_rows) continue;", ";"),
    ("no fence between writes of threads and wgmma's reads", PREFILL, "FenceAsyncProxy();", ";"),
    ("no wgmma.fence before the first product", PREFILL, "WgmmaFence();\n#pragma unroll\n    for (int k = 0; k < 8; ++k) {\n      const",
     ";\n#pragma unroll\n    for (int k = 0; k < 8; ++k) {\n      const"),
    ("mbarriers used before their init is seen", PREFILL, "__syncthreads();", ";"),
    ("swizzle of Q left out", PREFILL, "((chunk % 8) ^ (row & 7)) * 16", "(chunk % 8) * 16"),
    ("another head's slope", PREFILL, "packed_row[h] % kGroup] * kLog2E", "0] * kLog2E"),
    ("block table read past the sequence", PREFILL,
     "first_block + b < num_blocks ? blocks[first_block + b] : -1", "blocks[first_block + b]"),
    ("sums not corrected for a new maximum", PREFILL, "      sums[j] *= correction[h];\n", ""),

    ("a tile read before it has come", ATTENTION, "CpAsyncWait<kStages - 2>();", ";"),
    ("a barrier for half of the threads", ATTENTION, "CpAsyncWait<kStages - 2>();\n    __syncthreads();",
     "CpAsyncWait<kStages - 2>();\n    if (threadIdx.x < 64) __syncthreads();"),
    ("a shuffle for half of the lanes", SOFTMAX, "m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));",
     "if (threadIdx.x % 4 < 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));"),
    ("causal mask off by one", SOFTMAX, "offset <= last_seen[i / 2]", "offset < last_seen[i / 2]"),
    ("swizzle left out where K is read", PRODUCTS, "SwizzledChunk<Shape::kHeadDim>(row, k * 2 + at.lane / 8 % 2)",
     "(k * 2 + at.lane / 8 % 2)"),
    ("swizzle left out where V is read", PRODUCTS, "SwizzledChunk<Shape::kHeadDim>(row, c + at.lane / 16)",
     "(c + at.lane / 16)"),
    ("swizzle left out where tiles are written", TILES, "SwizzledChunk<kHeadDim>(row + j % 8, chunk) * 8",
     "chunk * 8"),
    ("swizzle left out on both sides", TILES, "return chunk ^ (row / (8 / kPlaces) % kPlaces);", "return chunk;"),
    ("the next stage's tile", ATTENTION, "k_tile = StageOfTiles<T, Shape>(stage);",
     "k_tile = StageOfTiles<T, Shape>((stage + 1) % kStages);"),
    ("a stage filled that is still read", ATTENTION, "loader.Load(tiles.FirstKey(i + kStages - 1), free_stage);",
     "loader.Load(tiles.FirstKey(i + kStages - 1), i == 1 ? stage : free_stage);"),
    ("tiles at the ends not masked", ATTENTION, "if (masked) MaskTile", "if (false) MaskTile"),
    ("hidden blocks not masked", ATTENTION,
     "p.pattern.SeesBlock(rows.position[h], tile_begin, rows.head[h]);", "true;"),
    ("the tiles of the first item", ATTENTION, "kListed ? item.first_tile + item.num_tiles - 1",
     "kListed ? item.num_tiles - 1"),
    ("hidden blocks seen", REFERENCE,
     "if (p.pattern.has_holes() && !p.pattern.SeesBlock(position, tile, head)) continue;", ";"),
    ("K taken for V", TILES, "from + value_offset + j * kHeadDim", "from + j * kHeadDim"),
    ("another sequence's block table", ATTENTION, "int64_t{item.seq} * p.max_blocks", "int64_t{0}"),
    ("another kv head's keys", ATTENTION, "p.kv + item.kv_head * p.head_stride", "p.kv"),
    ("block table read past the sequence", TILES, "std::min(key, key_end - 1) >>", "key >>"),
    ("keys past the end not zero-filled", TILES,
     "CpAsync<16>(to + Shape::kTileElements, from + value_offset + j * kHeadDim, valid)",
     "CpAsync<16>(to + Shape::kTileElements, from + value_offset + j * kHeadDim, true)"),
    ("32 bits for a place in the cache", TILES, "uint64_t{block[i]} * block_bytes", "uint32_t{block[i]} * block_bytes"),
    ("one block for every 32 keys", TILES, "block[i]} * block_bytes", "block[i / 2 * 2]} * block_bytes"),
    ("the slot taken for the key", TILES, "static_cast<uint32_t>(key) & ((1u << log2_block_size) - 1)",
     "static_cast<uint32_t>(key)"),
    ("the first head's slope", ROWS, "p.slopes[head[h]]", "p.slopes[0]"),
    ("slopes of the group, not of the head", ROWS, "p.slopes[head[h]]", "p.slopes[of.head - item.kv_head * p.group]"),
    ("one slope for both rows", SOFTMAX, "fmaf(slope[i / 2], static_cast", "fmaf(slope[0], static_cast"),
    ("slopes not in base 2", ROWS, "p.slopes[head[h]] * kLog2E", "p.slopes[head[h]]"),
    ("bias by the position of the key alone", ATTENTION,
     "distance[2] = {lane_key - rows.position[0], lane_key - rows.position[1]};", "distance[2] = {lane_key, lane_key};"),
    ("the same bias for a lane's two columns", SOFTMAX, "static_cast<float>(n * 8 + i % 2), first", "static_cast<float>(n * 8), first"),
    ("bias before the soft cap", ATTENTION, "if (capped) CapScores", "if (capped) ScaleAndBiasScores(1.0f, rows.slope, "
     "{tiles.FirstKey(i) + at.first_key() + at.column() - rows.position[0], "
     "tiles.FirstKey(i) + at.first_key() + at.column() - rows.position[1]}, scores); if (capped) CapScores"),
    ("scores scaled again after the soft cap", ATTENTION, "capped ? 1.0f : p.scale", "p.scale"),
    ("row maximum of two lanes in four", SOFTMAX, "      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));\n", ""),
    ("row sum of two lanes in four", SOFTMAX, "      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);\n", ""),
    ("sums not corrected for a new maximum", SOFTMAX, "      sum[h] *= rescale[h];\n", ""),
    ("output not corrected for a new maximum", SOFTMAX, "out[c][i] *= rescale[i / 2];", ";"),
    ("NaN where a row has seen no key", SOFTMAX, "maximum[h] == -INFINITY ? 0.0f : maximum[h];", "maximum[h];"),
    ("warps added without their weights", EXCHANGE, "total.x += weight[w] * x.x;", "total.x += x.x;"),
    ("rows of the exchange that overlap", EXCHANGE, "kStride = Shape::kHeadDim + 8;", "kStride = Shape::kHeadDim - 8;"),
    ("rows of the exchange in the same banks", EXCHANGE, "kStride = Shape::kHeadDim + 8;", "kStride = Shape::kHeadDim;"),
    ("a sink in each part", ROWS, "item.partial < 0 && p.sinks != nullptr", "p.sinks != nullptr"),
    ("a sink not in base 2", ROWS, "p.sinks[head] * kLog2E", "p.sinks[head]"),
    ("log-sum-exp in base e", ROWS, "softmax.maximum[h] + Log2(sum)", "softmax.maximum[h] + 0.6931472f * Log2(sum)"),
    ("log-sum-exp without the maximum", ROWS, "softmax.maximum[h] + Log2(sum)", "Log2(sum)"),

    ("the launch before not waited for", MERGE, "GridDependencyWait();", ";"),
    ("pieces read before the wait for the launch before", MERGE, "GridDependencyWait();",
     "struct AtItsEnd { __device__ ~AtItsEnd() { GridDependencyWait(); } } const wait;"),
    ("parts merged without their weights", MERGE, "o.x += weight * x.x;", "o.x += x.x * inverse;"),
    ("merge without the sink", MERGE, "p.sinks != nullptr ? Exp2(p.sinks[head] * kLog2E - maximum) : 0.0f", "0.0f"),
    ("merge of the first head's sink", MERGE, "p.sinks[head] * kLog2E - maximum", "p.sinks[0] * kLog2E - maximum"),
    ("merged rows of another head", MERGE, "(merge.first_row + row) % p.group", "row % p.group"),

    ("another kv head's keys", REFERENCE, "head / (p.num_heads / p.num_kv_heads)", "head % p.num_kv_heads"),
    ("values as far apart as keys", REFERENCE, "row_of(p.values, tile + j, p.value_dim)",
     "row_of(p.values, tile + j, p.key_dim)"),
    ("a sink without its weight", REFERENCE, "p.sinks == nullptr ? 0.0f : 1.0f", "0.0f"),
    ("sums not corrected for a new maximum", REFERENCE, "sum * kept + tile_sum", "sum + tile_sum"),

    ("a block begins an item late", PLAN, "part.items.size() + cuts.size()) - 1", "part.items.size() + cuts.size())"),
    ("a block's room not renewed", PLAN, "        room = range;\n", ""),
    ("pieces write to the same partial rows", PLAN, "first_partial + i * unit.num_rows", "first_partial"),
    ("the first piece alone merged", PLAN, ".num_items = num_items}", ".num_items = 1}"),
    ("keys from the last row's window on", PLAN, "FirstKey(first_position + first_row / group())",
     "FirstKey(first_position + last_row / group())"),
    ("a block's room counted in pieces", PLAN, "room -= take;", "--room;"),
    ("a block for each fixed piece", PLAN, "part.block_starts.size()) * range", "part.block_starts.size())"),

    ("warps before not summed", DECODES, "  for (int warp = 0; warp < thread / kWarpLanes; ++warp) sum += scratch[warp];\n", ""),
    ("tiles of one unit for those of a sequence", DECODES, "int64_t{count(seq)} * per_seq", "int64_t{count(seq)}"),
    ("no room for the first piece of a unit", DECODES, "offset > 0 && offset <= range ? 1 : 0", "0"),
    ("a block begins with the rest of a unit as well", DECODES, "(at.offset > 0 ? 1 : 0)", "0"),
    ("ranges shorter than the shortest", DECODES, "(total + p.grid_size - 1) / p.grid_size, shortest_range)",
     "(total + p.grid_size - 1) / p.grid_size, 1)"),
    ("keys before the window", DECODES, "std::max(tiles.key_begin, begin * p.tile_keys)", "begin * p.tile_keys"),
    ("every unit merged", DECODES, "  if (cuts.num_pieces > 1) {\n", "  if (cuts.num_pieces > 0) {\n"),
    ("pieces of a fixed split share rows", DECODES, "int64_t{pieces} * per_seq : 0", "per_seq : 0"),

    ("the higher id of equals", SAMPLE_BLOCK, "0xffffffffu - static_cast<uint32_t>(id));", "static_cast<uint32_t>(id));"),
    ("weights not rounded", SAMPLE_BLOCK, "sampling::RoundWeight(exponential)", "exponential"),
    ("minus zero below zero", SAMPLE_BLOCK, "logit + 0.0f : -INFINITY", "logit : -INFINITY"),
    ("the bins before the cut not counted", SAMPLE_SELECT, "  before += sum - own;\n", ""),
    ("every id of a bin selected", SAMPLE_SELECT, "    bin = memory.bin;\n", "    bin = memory.bin;\n    low = high;\n"),
    ("ties cut by their distance alone", SAMPLE_SELECT, "if (level > 1 && logit != fixed.logit) return false;", ""),
    ("the last token not penalised", SAMPLE, "Penalise(row, 1, edited[previous]);", ";"),
    ("the last token penalised twice", SAMPLE, "if (token.id == previous) *shared_flag = 1;", ";"),
    ("the last bias of an id alone", SAMPLE, "logit += biases[j].bias;", "logit = edited[id] + biases[j].bias;"),
    ("holes drawn", SAMPLE, "Ban(p.holes, p.num_holes, size, edited);", ";"),
    ("min_p of a logit that is cut", SAMPLE, "kept.lowest = max - row.min_p_depth;", "kept.lowest = draws.max - row.min_p_depth;"),
    ("scores of a logit that is cut", SAMPLE, "sampling::NoisyScore(logit, max,", "sampling::NoisyScore(logit, row.max,"),
    ("four ids with the noise of the first", SAMPLE, "bits[static_cast<size_t>(i)]", "bits[0]"),
    ("log-probabilities of the changed row", SAMPLE, "WriteLogprobs(p, i, raw,",
     "WriteLogprobs(p, i, {.logits = p.edited + int64_t{blockIdx.x} * p.num_drawable, .size = p.num_drawable, "
     ".max = result.max, .temperature = 1.0f},"),
    ("a failed draw leaves the token of before", SAMPLE, "p.drawn[p.rows[i].draw] = p.results[i].status == DeviceSampleResult::kOk ?",
     "if (p.results[i].status == DeviceSampleResult::kOk)\n    p.drawn[p.rows[i].draw] = p.results[i].status == DeviceSampleResult::kOk ?"),

    ("eps left out", NORM, "/ size + eps)", "/ size)"),
    ("squares not about the mean", NORM, "(x[j] - mean) * (x[j] - mean)", "x[j] * x[j]"),
    ("the mean not taken off", NORM, "(x[j] - scale.mean) * scale.inverse", "x[j] * scale.inverse"),
    ("the input normed, not its sum with the residual", NORM, "    input = residual;\n", ""),
    ("the bias left out", NORM, "* weight[j] + bias[j]", "* weight[j]"),
    ("halves of the head rotate, not of rope_dim", QKV_POST, "i + p.rope_half : 2 * i + 1",
     "i + pairs_per_head : 2 * i + 1"),
    ("rotated the other way", QKV_POST, "-(b * sin)", "b * sin"),
    ("every pair by the first angle", QKV_POST, "(position * p.rope_half + i) * 2", "position * p.rope_half * 2"),
    ("blocks of the cache taken for neighbours", QKV_POST, "slot / p.block_size * p.block_stride",
     "slot / p.block_size * 2 * p.num_kv_heads * p.block_size * p.head_dim"),
    ("the slot taken for its place in a block", QKV_POST, "slot % p.block_size;", "slot;"),
    ("the second half not biased", f"{CUDA}/linear_epilogue.cuh", "p.bias + part * p.cols + col", "p.bias + col"),
    ("a cap without its size", f"{CUDA}/linear_epilogue.cuh", "p.soft_cap * tanhf", "tanhf"),
    ("one is not added to up", f"{CUDA}/linear_epilogue.cuh", "AtLeast(-limit, up)) + 1.0f", "AtLeast(-limit, up))"),
    ("the first expert's biases", f"{CUDA}/grouped_gemm.cuh", "value += p.bias[bias_at]", "value += p.bias[col]"),
    ("up's bias is the gate's", f"{CUDA}/grouped_gemm.cuh", "up += p.bias[bias_at + p.cols]", "up += p.bias[bias_at]"),
    ("experts ranked without their biases", f"{CUDA}/moe_routing.cuh", "if (!normed) return logit_of(expert);",
     "if (!normed) return logits[expert];"),
    ("experts chosen without the bias of the choice", f"{CUDA}/moe_routing.cuh", "value + p.choice_bias[expert];", "value;"),
    ("the scale left out", f"{CUDA}/embed.cuh", "values[j] *= scale;", ";"),
    ("the last of equals", f"{CUDA}/argmax.cuh", "b.index < a.index", "b.index > a.index"),

    # Time: a bug that only work that runs late shows. One more is among those of the merge, and
    # tests/mutation/planted_bugs.py has others.
    ("a plan uploaded from where the plan before still is", ATTENTION_HOST,
     "uploaded.last_staging = 1 - uploaded.last_staging;", ";"),

    # Scale: bugs that only many experts, heads, blocks or elements show.
    ("at most 16 pieces merged", MERGE, "const AttentionMerge merge = p.merges[blockIdx.x];",
     "AttentionMerge merge = p.merges[blockIdx.x];\n  merge.num_items = std::min(merge.num_items, 16);"),
    ("blocks beyond 16 not launched", ATTENTION_HOST, "{.grid = {static_cast<unsigned>(part.num_blocks)},",
     "{.grid = {static_cast<unsigned>(std::min<int64_t>(part.num_blocks, 16))},"),
    ("V of 16 KV heads looked for too near", ATTENTION_HOST,
     "args.kv_cache.values.data<T>() - args.kv_cache.keys.data<T>(),",
     "args.kv_cache.values.data<T>() - args.kv_cache.keys.data<T>() - "
     "(args.kv_cache.num_kv_heads() >= 16 ? block_size * head_dim : 0),"),
    ("32 bits for a place in Q", ROWS, "place[i % 2] * (kDepthSteps * 16)",
     "static_cast<int32_t>(place[i % 2] * (kDepthSteps * 16))"),
    ("32 bits for a place in the output or the partial results", ROWS,
     "(item.partial < 0 ? out_row : partial_row) * Shape::kHeadDim",
     "static_cast<int32_t>((item.partial < 0 ? out_row : partial_row) * Shape::kHeadDim)"),
    ("32 bits for a place in the pieces", MERGE, "p.partial_out + from * p.head_dim + d",
     "p.partial_out + static_cast<int32_t>(from * p.head_dim) + d"),
    ("32 bits for a place in the merged output", MERGE, "p.out + (token * p.num_heads + head) * p.head_dim + d",
     "p.out + static_cast<int32_t>((token * p.num_heads + head) * p.head_dim) + d"),
    ("a thread counts the first of its choices", ROUTING, "i < end; ++i) {\n    const int32_t chosen",
     "i < std::min(begin + 1, end); ++i) {\n    const int32_t chosen"),
    ("expert ids past 127 wrap", ROUTING, "const int32_t chosen = p.experts[i];",
     "const int32_t chosen = static_cast<signed char>(p.experts[i]);"),
    ("a lane's tiles left out of those before a group", GROUPED, "before = __shfl_sync(kAll, after, 31);",
     "before = __shfl_sync(kAll, after, 30);"),
    ("32 bits for a place in the experts' weights", GROUPED,
     "int64_t{tile.group} * (kGated ? 2 : 1) * p.cols * p.depth",
     "static_cast<int32_t>(tile.group * (kGated ? 2 : 1) * p.cols * p.depth)"),
    ("32 bits for a place in the experts' weights, without tensor cores", GROUPED, "weight + weight_row * p.depth",
     "weight + static_cast<int32_t>(weight_row * p.depth)"),
]

# Survivors that are not bugs, or that no test can reach. Each entry is (texts that the file and name of the
# mutant must all contain, reason).
EQUIVALENT = [
    (("FenceMbarrierInit",), "the emulator's mbarriers need no fence between their init and TMA; ptxas and a GPU "
                             "are the judges"),
    (("hopper_prefill", "std::min", "const int last_token ="), "tiles that no row of the block sees, masked"),
    (("hopper_prefill", "const bool valid = packed_row[h]"), "rows that are not stored"),
    (("attention_plan", "becomes '>='", "args.query_lens[seq] * group > std::numeric_limits"),
     "refuses 2^31 - 65 rows, one fewer than it may: a gigabyte of plan, which no test builds"),
    (("plan_decodes", "becomes '>'", "block * range >= total"), "the place after the last tile follows the last item"),
    (("plan_decodes", "std::min is its first", "first_cut + (piece - 1) * step, count"),
     "no piece reads past the last key"),
    (("attention_reference", "becomes '>'", "item >= p.num_tokens * p.num_heads"),
     "the token past the last belongs to no sequence, and returns below"),
    (("attention_reference", "becomes '>'", "token < start || token >= query_end"),
     "where the last sequence ends, so do the tokens"),
    (("paged_attention", "tile_begin < common_begin || tile_begin + kKeys > common_end"), "a mask where none is needed"),
    (("attn_tiles", "kRowsPerLookup = std::max("), "more lookups, or keys copied twice"),
    (("attn_rows", "p.partial_lse[partial_row] = sum > 0.0f ?"), "the maximum is -INFINITY already"),
    (("paged_attention", "Shape::kWarpsForKeys > 1"), "a warp that has its rows for itself, exchanging with itself"),
    (("qkv_post", "'x > p.clip' becomes"), "a number that equals the limit becomes the limit"),
    (("qkv_post", "'x < -p.clip' becomes"), "a number that equals the limit becomes the limit"),
    (("linear_epilogue", "'b < a' becomes"), "a number that equals the limit becomes the limit"),
    (("linear_epilogue", "'b > a' becomes"), "a number that equals the limit becomes the limit"),
    (("argmax", "becomes '<='", "b.index < a.index"), "a candidate and itself"),
    (("rows", "struct alignas"), "a stricter alignment of vectors that have it"),
]
