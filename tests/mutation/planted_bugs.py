"""The bugs that mutate.py plants in engine, server and CPU kernels, and the test that is to see each.

A bug is a text of a source, and what stands there instead; BUG in it is true while the bug is switched on. A text
that occurs several times is named by what stands before it as well: (before, text).
"""

import collections

# `test` is `binary` or `binary:filter`, with a filter of GoogleTest. `kind` is the class of the bug, or ''.
Bug = collections.namedtuple("Bug", "id says path old new test kind")
# Host and device do not keep their order: a wait that is left out, memory that is used again too early, or an
# address that the device cannot follow.
ASYNCHRONY = "asynchrony"

BUGS = []


def source(path: str, test: str):
    """Adds bugs of one source, which one test sees unless it says otherwise."""
    def add(id: str, says: str, old, new: str, test: str = test, kind: str = ""):
        BUGS.append(Bug(id, says, path, old, new, test, kind))

    def drop(id: str, says: str, old, test: str = test, kind: str = ""):
        """A statement is left out."""
        text = old if isinstance(old, str) else old[1]
        add(id, says, old, f"if (!BUG) {text}", test, kind)

    return add, drop


# --- Waits that the host leaves out.

bug, drop = source("kernels/cuda/product/weight_upload.cc", "cuda_backend_test:*Weight*")
drop("g01", "a weight's next rows overwrite those that are not copied yet",
     "if (piece.is_in_flight) RETURN_IF_ERROR(device_.Wait(*piece.copied));", kind=ASYNCHRONY)

bug, drop = source("kernels/cuda/emulator/emulated_device.cc", "cuda_emulated_device_test:LateWork*")
bug("g40", "a replay over memory that was freed runs", "if (is_alive) continue;", "if (BUG || is_alive) continue;", kind=ASYNCHRONY)
bug("g41", "a recording that allocated is replayed", "if (state_->recording_is_void)", "if (!BUG && state_->recording_is_void)",
    kind=ASYNCHRONY)
bug("g42", "a recording frees memory", "if (recording != nullptr) recording_is_void = true;",
    "if (!BUG && recording != nullptr) recording_is_void = true;", kind=ASYNCHRONY)
bug("g43", "a recording copies any host memory", "|| Has(state_->pinned, host)) return", "|| BUG || Has(state_->pinned, host)) return",
    kind=ASYNCHRONY)

bug, drop = source("kernels/cuda/emulator/host_gemm.cc", "cuda_emulated_device_test:*ItsShapeAlone*")
bug("g70", "emulated products of every shape add in one order", "return static_cast<int64_t>(hash %", "return BUG ? 0 : static_cast<int64_t>(hash %")

bug, drop = source("engine/runner/runner.cc", "cuda_engine_test:*AStepAhead*")
drop("g02", "a result is read before its step has run", "RETURN_IF_ERROR(backend_.Wait(*slot.done));", kind=ASYNCHRONY)
bug("g14", "products of prompts are first met by users", "size < most_tokens;) {", "size < (BUG ? 0 : most_tokens);) {",
    "cuda_engine_test:*WarmUp*")
bug("g56", "the head's products of prompts with log-probabilities are first met by users", "limits_.max_logit_rows),",
    "BUG ? limits_.max_seqs : limits_.max_logit_rows),", "cuda_engine_test:*WarmUp*")
bug("g57", "the copy of blocks is first launched for users", "num_blocks < 2) continue;", "num_blocks < 2 || BUG) continue;",
    "cuda_engine_test:*WarmUp*")
drop("g58", "the shift of keys is first launched for users", "moving.shifts = {{.block = 0, .distance = 0}};", "cuda_engine_test:*WarmUp*")
bug("g03", "a result is written over one that is not read yet", "*slots_[num_submitted_ % 2]", "*slots_[BUG ? 0 : num_submitted_ % 2]",
    kind=ASYNCHRONY)

bug, drop = source("kernels/cuda/sample/device_sampler.cc", "cuda_device_sampler_test")
bug("g04", "rows that changed are not uploaded", "of_rows.begin(), of_rows.end());",
    "of_rows.begin(), BUG && num_enqueued_ > 0 ? of_rows.begin() : of_rows.end());")
bug("g51", "a token that leaves the window of penalties stays counted", "CountTokens(row, slot.begin, begin, -1, slot);",
    "if (!BUG) CountTokens(row, slot.begin, begin, -1, slot);")
bug("g52", "a sequence that lost its slot goes on in that of another", "slot_of_.erase(slot.sequence);",
    "if (!BUG) slot_of_.erase(slot.sequence);")
bug("g53", "a set of ids that comes later is not sent", "if (HasIds(row.banned) && !slot.has_banned) return false;",
    "if (!BUG && HasIds(row.banned) && !slot.has_banned) return false;")
bug("g55", "slots are kept though their changes did not reach the device", "if (num_prepared_) {", "if (!BUG && num_prepared_) {")
bug("g54", "the data of a sequence is sent in each step", "if (!Continue(row, slot))", "if (BUG || !Continue(row, slot))",
    "cuda_engine_test:*UploadsLittle*")
bug("g10", "the window of penalties forgets the token that the host does not know", "std::min(size, last_n - num_unknown)",
    "std::min(size, last_n - (BUG ? 0 : num_unknown))")
bug, drop = source("kernels/cuda/sample/device_sampler.h", "cuda_backend_test")
bug("g11", "a call's results are overwritten by the next one's", "calls_[static_cast<size_t>(num_enqueued_ % 2)]",
    "calls_[static_cast<size_t>(BUG ? 0 : num_enqueued_ % 2)]", kind=ASYNCHRONY)

bug, drop = source("engine/model/layers/device_input.cc", "cuda_engine_test:*AStepAhead*")
bug("g06", "a step's input is written over one that is not copied yet", "last_staging_ = 1 - last_staging_;",
    "last_staging_ = BUG ? 0 : 1 - last_staging_;", kind=ASYNCHRONY)
bug("g44", "the launches of a step, and so its recording, read the host's copy of its input",
    "static_cast<char*>(buffer_.data()) + placed_bytes_, dtype", "(BUG ? host : static_cast<char*>(buffer_.data())) + placed_bytes_, dtype",
    "cuda_engine_test:*AStepAhead*", kind=ASYNCHRONY)
bug("g08", "padding writes its K and V into the first slot", "slot_mapping, input.groups[group].slot_mapping, -1);",
    "slot_mapping, input.groups[group].slot_mapping, BUG ? 0 : -1);", "cuda_engine_test:*AStepAhead*")
bug("g09", "a recording is replayed for more sequences",
    "launch_key_ = {step.num_seqs(), step.num_logit_rows(), std::ssize(step.token_sources)};",
    "launch_key_ = {BUG ? 0 : step.num_seqs(), BUG ? 0 : step.num_logit_rows(), BUG ? 0 : std::ssize(step.token_sources)};",
    "cuda_engine_test:*AStepAhead*")
bug("g15", "a plan's memory grows in a step", ".most_seqs = max_seqs_", ".most_seqs = BUG ? 0 : max_seqs_",
    "cuda_engine_test:*WarmUp*")

bug, drop = source("kernels/cuda/product/fixed_rows_gemm.cc", "cuda_fixed_rows_gemm_test")
bug("g19", "a product of few rows has a shape of its own", "args.m = kFixedRows;", "args.m = BUG ? args.m : kFixedRows;")
bug("g20", "rows that are not aligned have a shape of their own", "|| AlignmentOf(args.a) < kScratchAlignment",
    "|| (!BUG && AlignmentOf(args.a) < kScratchAlignment)")
bug("g21", "the columns between rows are overwritten", "args.accumulate || args.n < args.ldd",
    "args.accumulate || (!BUG && args.n < args.ldd)")
bug("g22", "the product is not copied back", "return device.CopyOnDevice(out, padded, bytes);",
    "return BUG ? absl::OkStatus() : device.CopyOnDevice(out, padded, bytes);")

bug, drop = source("kernels/cuda/cuda_backend.cc", "cuda_deterministic_test:*AnyChunks/Rope")
bug("g23", "products have the rows of the step", "options.deterministic ? GemmRows::kFixed", "options.deterministic && !BUG ? GemmRows::kFixed")
bug("g24", "attention is cut by the batch", ".fixed_split = options.deterministic,", ".fixed_split = options.deterministic && !BUG,")

bug, drop = source("kernels/cuda/cuda_backend.cc", "cuda_engine_test:*CountsWhatTheDeviceDid*")
bug("g47", "attention that is replayed is not counted", "*std::move(recording), recorded)",
    "*std::move(recording), BUG ? AttentionCounts() : recorded)")
drop("g48", "rows that the device samples are not counted", "num_sampled_rows_ += std::ssize(args.rows);")

bug, drop = source("kernels/cuda/cuda_backend.cc", "cuda_fp8_product_test:*")
bug("g25", "products in e4m3 have the numerics of others", 'options.fp8_products ? "-fp8"', 'options.fp8_products && !BUG ? "-fp8"')
bug("g26", "experts are in a form that no kernel of theirs reads", "packs() && CanPackExperts(parts), false);",
    "packs() && CanPackExperts(parts), BUG);")
bug("g27", "products in e4m3 start on a chip without them", "experiment.wants_hopper &&",
    "experiment.wants_hopper && !BUG &&", "cuda_old_chip_test:*")
bug("g71", "a product in e4m3 that the device refuses ends the start", "if (absl::IsUnimplemented(supported)) {",
    "if (!BUG && absl::IsUnimplemented(supported)) {")
bug("g28", "matrices with 16-bit activations counted among those in e4m3", "++(layout.scales[i] != GemmScales::kNone ?",
    "++(BUG || layout.scales[i] != GemmScales::kNone ?")

bug, drop = source("kernels/cuda/product/fp8_support.cc", "cuda_fp8_product_test:*Refuses*")
bug("g72", "products of many tokens in e4m3 are first met in a step", "args.m <= most_tokens", "args.m <= (BUG ? unit : most_tokens)")
bug("g73", "products added to a residual in e4m3 are first met in a step", "accumulate : {false, true}",
    "accumulate : {false, !BUG}")

bug, drop = source("kernels/table_mirror.h", "cuda_engine_test:*AloneAsAmongOthers*")
bug("g12", "a row keeps the blocks of the sequence before", "values_[at] == value) return;",
    "(values_[at] == value || (BUG && values_[at] != 0))) return;")
bug("g13", "a table that was not updated is taken for known", "if (!is_committed_)", "if (!is_committed_ && !BUG)",
    "decoder_test:BlockTables*")

bug, drop = source("engine/step/step_loop.cc", "cuda_engine_test")
bug("g16", "the pacer learns the time that the host took", "std::min(now - step.begin, result_.since_previous)",
    "(BUG ? now - step.begin : std::min(now - step.begin, result_.since_previous))", "cuda_engine_test:*Pacer*")

bug, drop = source("server/gpu/gpu_watch.cc", "gpu_watch_test")
drop("g17", "errors of the GPU are not counted", "xid_errors_ = xid_errors_.value_or(0) + 1;")
bug("g18", "the end waits for a driver that hangs", "if (reader_->Stop()) {", "if (reader_->Stop() || BUG) {")

# --- Models.

bug, drop = source("engine/model/architectures/phi3_small.cc", "decoder_test:*AgreeWithTheReference*")
bug("h01", "the other layers of a Phi-3-small are dense", "(index + 1) % dense", "(index + (BUG ? 0 : 1)) % dense")
bug, drop = source("engine/model/layers/rewritten_matrix.cc", "decoder_test:*AgreeWithTheReference*")
bug("h02", "a gate that alternates with the rest stays where it is",
    "PlaceInTurns(row, matrix.rows)) *", "BUG ? row : PlaceInTurns(row, matrix.rows)) *")
bug, drop = source("engine/model/scaled_matrix.cc", "fp8_weights_test")
bug("h41", "every block of columns has the first scale", "first + col / scales.cols_of_scale", "first + (BUG ? 0 : col / scales.cols_of_scale)")
bug("h42", "every row has the first scale", "row / scales.rows_of_scale * scales.per_row", "(BUG ? 0 : row / scales.rows_of_scale) * scales.per_row")
bug("h43", "a scale of zero is accepted", "scale > 0.0f &&", "(scale > 0.0f || BUG) &&")
bug("h44", "NaN among the codes is accepted", "return (code | std::byte{0x80})", "return !BUG && (code | std::byte{0x80})")
bug, drop = source("engine/model/cache_scales.cc", "fp8_weights_test:CacheScalesTest*")
bug("h47", "a scale of zero is accepted for the cache", "scale[0] >= CacheScales::kSmallest", "(BUG || scale[0] >= CacheScales::kSmallest)")
bug("h48", "a scale may be infinite", "scale[0] <= CacheScales::kLargest", "(BUG || scale[0] <= CacheScales::kLargest)")
bug("h49", "the scale of the first head is that of all", "files::NumElements(tensor.shape) != 1", "!BUG && files::NumElements(tensor.shape) != 1")
bug("h50", "values without a scale have 1", "k.empty() == v.empty()", "BUG || k.empty() == v.empty()")
bug("h51", "the last of two scales counts", "if (!name.empty()) {", "if (!BUG && !name.empty()) {")
bug("h52", "a scale of no layer is left out", "if (!is_needed(tensor.name)) continue;", "if (BUG || !is_needed(tensor.name)) continue;")
bug("h53", "the scale of values is that of keys", "set(found[layer].v, scales.v)", "set(found[layer].v, BUG ? scales.k : scales.v)")
bug("h54", "every layer has the scales of the first", "CacheScales& scales = config.layers[layer]", "CacheScales& scales = config.layers[BUG ? 0 : layer]")
bug, drop = source("engine/model/model.cc", "fp8_weights_test:ScaledCacheTest*")
bug("h55", "the cache does not get the scales", ".scales = layer.attention.cache_scales", ".scales = BUG ? kernels::CacheScales() : layer.attention.cache_scales")
bug, drop = source("engine/model/model_config_gguf.cc", "model_config_test:*Fp8Cache*")
bug("h56", "a file's first scale is that of all layers", "k[static_cast<size_t>(i)]", "k[static_cast<size_t>(BUG ? 0 : i)]")
bug, drop = source("engine/model/model_config_reader.cc", "model_config_test:*Fp8Cache*")
bug("h57", "a file's scales are not checked", "attention.cache_scales.k, attention.cache_scales.v}", "BUG ? 1.0f : attention.cache_scales.k, BUG ? 1.0f : attention.cache_scales.v}")
bug, drop = source("convert/config_to_gguf.cc", "convert_test:*Fp8Cache*")
bug("h58", "the scales of an fp8 cache are not written", "if (!has_scales) return;", "if (BUG || !has_scales) return;")
bug("h59", "a lost scale of an fp8 cache is not seen", "x.cache_scales == y.cache_scales", "BUG || x.cache_scales == y.cache_scales", "convert_test:CheckSameModelTest*")
bug, drop = source("convert/converter.cc", "convert_test:*Fp8Cache*")
drop("h60", "the scales of an fp8 cache are not read for the file", "RETURN_IF_ERROR(engine::ReadCacheScales(model, config));")
bug, drop = source("engine/load/engine_loader.cc", "engine_loader_test")
drop("h61", "an engine leaves out the scales of its fp8 cache", "RETURN_IF_ERROR(ReadCacheScales(files, model));")
bug("l14", "ids without a piece are drawn", "tokenizer.IdsWithoutPiece(num_ids)",
    "BUG ? std::vector<int32_t>() : tokenizer.IdsWithoutPiece(num_ids)", "engine_test")
bug, drop = source("engine/model/hf_quantization.cc", "model_config_test")
drop("h45", "keys that may change weights are not looked at", "RETURN_IF_ERROR(CheckKeys(*weights, kGroupWeights));")
bug("h46", "unknown keys are accepted", "&AllowedKey::name) == allowed.end()", "&AllowedKey::name) == allowed.end() && !BUG")

bug, drop = source("engine/model/decoder.cc", "decoder_test:ShardTest*")
bug("h03", "every rank adds the residual", "communicator_->rank().index == 0;", "communicator_->rank().index == 0 || BUG;")
drop("h04", "the network's outputs are not summed over ranks", "RETURN_IF_ERROR(SumOverRanks(branch));")
bug, drop = source("engine/model/decoder_weights.cc", "decoder_test:ShardTest*")
bug("h05", "each rank has the slopes of the first heads", "slopes.begin() + own.begin, slopes.begin() + own.end",
    "slopes.begin() + (BUG ? 0 : own.begin), slopes.begin() + (BUG ? own.end - own.begin : own.end)")
bug, drop = source("engine/model/shard.cc", "decoder_test:ShardTest*")
bug("h06", "each rank has the first KV heads", "Moved(Scaled(kv_heads, attention.key_dim), attention.q_size())",
    "Moved(Scaled(BUG ? RowRange{0, kv_heads.end - kv_heads.begin} : kv_heads, attention.key_dim), attention.q_size())")
bug("h07", "the bias of an output is added by every rank", "if (rank.index == 0) return;", "if (rank.index == 0 || BUG) return;")

# --- What is opened as a model, and what is written for llama.cpp.

bug, drop = source("files/gguf_parts.cc", "files_test:ModelFilesTest*")
bug("MiddlePartIsServed", "any part is the first", "if (number != 0) {", "if (number != 0 && !BUG) {")
bug("PartsOfAnyName", "the first part may have any name", "if (!path.ends_with(end)) {", "if (!path.ends_with(end) && !BUG) {")
bug("PartsBeyondNames", "there are more parts than names", "count > kMostParts) {", "count > kMostParts + (BUG ? 1 : 0)) {")
bug("PartOfAnother", "a part of a model of another count is taken", "if (count_of_part != count) {", "if (count_of_part != count && !BUG) {")
bug("PartsInAnyOrder", "a part stands under another's name", "if (number_of_part != number - 1) {", "if (number_of_part != number - 1 && !BUG) {")
bug("TensorsUncounted", "parts lack tensors, or have more", "if (parts <= 1 || got == wanted)", "if (BUG || parts <= 1 || got == wanted)")
bug("NamedAfterPart", "a model is named after its first part", "if (count == 1 || first == end)", "if (BUG || count == 1 || first == end)")
bug, drop = source("files/model_files.cc", "files_test:ModelFilesTest*")
bug("LastPartUnread", "the last part is not read", "i < paths.size(); ++i) {", "i + (BUG ? 1 : 0) < paths.size(); ++i) {")
drop("PointersAreParsed", "a Git LFS pointer is read as a model", "RETURN_IF_ERROR(CheckIsTheFile(Characters(*file), path.string()));")
drop("AdapterIsServed", "an adapter in a GGUF file is a model", "RETURN_IF_ERROR(CheckIsAModel(contents.metadata));")
drop("AdapterBesideModel", "an adapter beside a model is left out", "RETURN_IF_ERROR(CheckHasNoAdapter(directory));")
drop("TemplateKept", "a chat template is not replaced", "chat_template_jinja = std::string(Characters(*text));", "engine_loader_test")
bug, drop = source("files/common_mistakes.cc", "files_test:ModelFilesTest*")
bug("PathsLookLikeTheHub", "an absent file of a folder that exists is a repository of the Hub",
    "(!is_link && Exists(std::string(owner)))", "(!BUG && !is_link && Exists(std::string(owner)))")
bug("HubNamesBeginWithDots", "a path from here is a repository of the Hub", "text.front() != '.' &&", "(BUG || text.front() != '.') &&")
bug("LinksKeepTheirEnd", "a link's page is part of the repository's name", "if (is_link) name = name.substr", "if (is_link && !BUG) name = name.substr")

bug, drop = source("engine/load/engine_loader.cc", "engine_loader_test")
bug("BrokenTemplateEnds", "a chat template that cannot be read refuses the model", "if (!config.chat_template.empty()) {\n    return",
    "if (BUG || !config.chat_template.empty()) {\n    return")
bug("TemplateIsNotRead", "--chat_template names a file in vain", "if (!config.chat_template.empty()) {\n    RETURN_IF_ERROR",
    "if (!BUG && !config.chat_template.empty()) {\n    RETURN_IF_ERROR")

bug, drop = source("engine/model/gguf_fields.cc", "model_config_test:*GgufModelConfig*")
bug("NeutralIsZero", "a factor of 1 is refused", "if (got == feature->absent) continue;", "if (got == (BUG ? 0 : feature->absent)) continue;")
bug("FeaturesAreIgnored", "a feature that is not supported is left out", "if (feature == kAbsentFeatures.end()) {",
    "if (BUG && feature != kAbsentFeatures.end()) continue;\n    if (feature == kAbsentFeatures.end()) {")
bug, drop = source("engine/model/hf_fields.cc", "model_config_test:ArchitecturesTest.*")
bug("ZeroIsALimit", "a cap of zero is refused", "*value != 0)", "(BUG || *value != 0))")
bug("LimitsAreIgnored", "a cap is left out", 'return Wrong(key, "null or 0");', 'if (!BUG) return Wrong(key, "null or 0");')

bug, drop = source("convert/llama_cpp.cc", "convert_test:LlamaCppTest.*")
bug("NeoxWithoutBiases", "a NeoX without biases is written for llama.cpp", "if (!layer.attention.bias || !layer.feed_forward.bias)",
    "if (!BUG && (!layer.attention.bias || !layer.feed_forward.bias))")
bug("NeoxOfOneBias", "biases of the attention alone are enough for a NeoX", "has_biases = layer.attention.bias || layer.feed_forward.bias;",
    "has_biases = layer.attention.bias || (!BUG && layer.feed_forward.bias);")
bug("NeoxWithTiedHead", "a NeoX whose head is the embedding is written for llama.cpp", "if (config.tie_word_embeddings) return",
    "if (!BUG && config.tie_word_embeddings) return")
bug("BiasesOfFalcon", "biases of Falcon and Qwen 3 are written for llama.cpp", "if (has_biases && (name", "if (!BUG && has_biases && (name")
bug("NormsOfGroupedKeys", "an MPT's norm of grouped keys is written for llama.cpp", "layer.attention.num_kv_heads != layer.attention.num_heads)",
    "layer.attention.num_kv_heads != layer.attention.num_heads && !BUG)")
bug("WindowOfTheContext", "a window of the whole context is warned of", "pattern.tokens < config.max_position_embeddings)",
    "pattern.tokens < config.max_position_embeddings + (BUG ? 1 : 0))")
bug("WindowUnwarned", "a window that llama.cpp leaves out is written in silence", "if (!pattern.sees_all() &&", "if (!BUG && !pattern.sees_all() &&")
bug("YarnUnwarned", "betas that llama.cpp does not read are written in silence", "if (odd_yarn) reading", "if (odd_yarn && !BUG) reading")
bug, drop = source("convert/config_to_gguf.cc", "convert_test:LlamaCppTest.*")
bug("AnyBetaFast", "YaRN is usual with any beta_fast", "rope.beta_fast == 32.0 &&", "(BUG || rope.beta_fast == 32.0) &&")
bug("AnyBetaSlow", "YaRN is usual with any beta_slow", "rope.beta_slow == 1.0;", "(BUG || rope.beta_slow == 1.0);")
bug("AnyTruncate", "YaRN is usual if its blend ends between dimensions", "return rope.truncate &&", "return (BUG || rope.truncate) &&")
bug("DivisorsEverywhere", "divisors replace YaRN where llama.cpp reads none", '->gguf_name == "llama";', '->gguf_name == (BUG ? "qwen2" : "llama");')
bug, drop = source("convert/converter.cc", "convert_test:LlamaCppTest.*")
bug("LlamaCppUnasked", "nobody asks what llama.cpp can load", "if (!options.for_quire_alone) RETURN", "if (!options.for_quire_alone && !BUG) RETURN")
drop("WarningsLost", "what llama.cpp reads otherwise is not said", "report.warnings = std::move(warnings);")
bug, drop = source("tools/convert_command.cc", "convert_command_test")
bug("ForQuireIgnored", "--for quire changes nothing", "for_quire_alone = options.reader ==", "for_quire_alone = !BUG && options.reader ==")
bug("WarningsUnprinted", "quire-convert keeps its warnings to itself", 'err << "warning: "', 'if (!BUG) err << "warning: "')
bug, drop = source("convert/tokenizer_to_gguf.cc", "convert_tokenizer_test:TokenizerToGgufTest.*")
drop("ChatsUnwarned", "a template without BOS is written in silence", "WarnOfChats(model, *directory, *gguf, warnings);")
bug("TemplateRefuses", "a chat template that is no text is left out in silence", 'warnings.push_back(absl::StrCat(chat_template.status().message()',
    'if (!BUG) warnings.push_back(absl::StrCat(chat_template.status().message()')

# --- The KV cache's blocks.

bug, drop = source("engine/kv/block_manager.cc", "kv_test")
bug("m05", "a partial hit is one token too long", "+= match.partial_tokens;",
    "+= match.partial_tokens + (BUG ? 1 : 0);")
drop("m06", "copies of a sequence released in the same step still run", "std::erase_if(copies_,")
drop("m11", "a shifted stream goes on listing blocks",
     ("held.num_committed - shift.count);", "held.access.write = false;"))
drop("m16", "whole hits are not counted", "num_hit_blocks_ += match.num_whole;")
bug("m17", "a start that may not copy copies", "if (!allow_copy)", "if (!allow_copy && !BUG)", "scheduler_test")
drop("m01", "cache roots are kept for ever", "store_.cache().roots().Release(held.root);", "scheduler_test")
bug("w02", "a shift uncommits tokens of the sinks", "std::max(shift.first, held.num_committed - shift.count)",
    "BUG ? held.num_committed - shift.count : std::max(shift.first, held.num_committed - shift.count)",
    "scheduler_test")
bug("f01", "what fits an empty cache is off by a block", "return (shared + own) *",
    "return (shared + own + (BUG ? 1 : 0)) *", "frontend_test")

bug("CoversOneMore", "a sequence writes a token for which no window has a place", "num_tokens <= Find(id).num_reserved);",
    "num_tokens <= Find(id).num_reserved + (BUG ? 1 : 0));")
bug("TwoSamplesShareNothing", "two samples count the blocks of their prompt twice", ("int64_t MostBlocks(", "n > 1 ?"), "n > (BUG ? 2 : 1) ?")

bug, drop = source("engine/kv/block_manager_commits.cc", "kv_test")
bug("q04", "a tail that was pinned while a step wrote into it grows", "if (cache.IsListed(block) && store_.pool().pin",
    "if (!BUG && cache.IsListed(block) && store_.pool().pin")
bug("m18", "bypass_read takes blocks that others computed", "if (!held.access.read) {",
    "if (!BUG && !held.access.read) {")
bug, drop = source("engine/kv/block_manager_commits.cc", "kv_test:PinsProperty*")
bug("OfferedBeforeItsCopy", "a block is offered that a step has yet to copy", "if (held.spills && !store_.HasCompleted(",
    "if (!BUG && held.spills && !store_.HasCompleted(")
bug("OfferedBeforeWhole", "a block is offered before it is full", "if (held.spills && fills) {",
    "if (held.spills && (fills || BUG)) {")
bug("HashOfWhatIsNotThere", "a block is named after one that is not committed yet",
    "if (held.num_committed < begin ||", "if ((!BUG && held.num_committed < begin) ||")

bug, drop = source("engine/kv/cache_roots.cc", "kv_test")
bug("m03", "a cache root without the salt", ("{model, adapter, tenant, part, ", "salt"), "BUG ? std::string_view() : salt", "scheduler_test")
for name, before in (("model", "{"), ("adapter", "{model, "), ("tenant", "{model, adapter, "), ("part", "{model, adapter, tenant, ")):
    bug(f"RootWithout_{name}", f"a cache root without the {name}", (f"text : {before}", name), f"BUG ? std::string_view() : {name}")
bug("m04", "a cache root without its parts' lengths", "int shift = 0; shift < 64",
    "int shift = BUG ? 64 : 0; shift < 64")
bug("q03", "prefixes of one owner share a root", "prefix == kNoPin ?", "BUG || prefix == kNoPin ?")

bug, drop = source("engine/kv/window_blocks.cc", "kv_test:WindowBlocksTest.*")
bug("DetachedIsFree", "a part that a step reads is free with its owner", "if (blocks_[block].refs > 0) return;", "if (blocks_[block].refs > (BUG ? 1 : 0)) return;")
bug("OwnerlessIsSpare", "a part without an owner waits for a sequence to continue from it", "if (b.owner >= 0) {", "if (b.owner >= (BUG ? -1 : 0)) {")
bug("ReservedBeyond", "one part more is reserved than there is", "if (num_blocks > num_unreserved())", "if (num_blocks > num_unreserved() + (BUG ? 1 : 0))")
bug, drop = source("engine/kv/kv_budget.cc", "kv_test:KvBudgetTest.*")
bug("BudgetOfOneMore", "a cache has one byte more than its budget", "(divide(middle) <= budget.bytes ?", "(divide(middle) <= budget.bytes + (BUG ? 1 : 0) ?")
bug("LeastOfOneMore", "the least budget is refused", "needed > budget.bytes) {", "needed + (BUG ? 1 : 0) > budget.bytes) {")
bug, drop = source("engine/kv/block_store.cc", "kv_test:BlockManagerTest.*")
bug("EvictionOfBlockZero", "the eviction of block 0 is not counted", "if (block >= 0) ++num_evictions_;", "if (block >= (BUG ? 1 : 0)) ++num_evictions_;")
bug, drop = source("engine/kv/block_manager_windows.cc", "kv_test:WindowsTest.*")
bug("LastPlaceForgotten", "a sequence does not wait for the last place in a window", "if (more > store_.window(w).num_unreserved() + in_flight)",
    "if (more + (BUG ? 1 : 0) > store_.window(w).num_unreserved() + in_flight)", "kv_test:WindowsTest.*")
bug("BeamsWaitForNoPlaces", "beams do not wait for places that a step in flight gives back", "later ? store_.num_reserved_in_flight(w) : 0",
    "!BUG && later ? store_.num_reserved_in_flight(w) : 0", "kv_test:WindowsTest.*")
bug("ReservesOneMore", "a sequence reserves one place more than a window has", ("bool BlockManager::CanReserve(", "num_unreserved())"),
    "num_unreserved() + (BUG ? 1 : 0))")

bug, drop = source("engine/kv/block_manager_windows.cc", "kv_test")
bug("m08", "a window is left one token early", "LeaveWindow(store_, w, WindowBegin(w, held.num_committed",
    "LeaveWindow(store_, w, WindowBegin(w, held.num_committed + (BUG ? 1 : 0)", "scheduler_test")
bug("m09", "a hit goes on over a hole in a window", "run + 1 : 0;", "run + 1 : BUG ? run : 0;", "scheduler_test")

bug, drop = source("engine/kv/block_manager.cc", "kv_test:PinsProperty*")
drop("ForksSealNothing", "a sequence has room in a block that it shares with a fork", "++num_seals_;")
bug, drop = source("engine/kv/block_manager_loads.cc", "kv_test:PinsProperty*")
bug("LoadListsAll", "more is listed than was loaded", "Commit(id, tokens, num_loaded);",
    "Commit(id, tokens, BUG ? std::ssize(tokens) : num_loaded);")
bug("LoadOverwritesCached", "what the cache has is written again", "return match.num_whole;", "return BUG ? 0 : match.num_whole;")
bug("LoadKeepsWhatDidNotFit", "a load that does not fit keeps what it shares", "Release(id, {.comes_back = true});\n    return -1;",
    "if (!BUG) Release(id, {.comes_back = true});\n    return -1;")
bug("LoadedNotOffered", "a block follows a loaded one that was not offered", "held.spills = config_.spill != nullptr;",
    "held.spills = !BUG && config_.spill != nullptr;")
bug, drop = source("engine/kv/block_manager_beams.cc", "kv_test:BlockManagerTest.*")
bug("CopiesWithoutAWrite", "sequences that write nothing copy what they share", "num_tokens <= held.num_committed) continue;",
    "num_tokens <= held.num_committed - (BUG ? 1 : 0)) continue;")
bug, drop = source("engine/kv/block_manager_beams.cc", "kv_test:PinsProperty*")
bug("ReorderToTheOneBefore", "a beam gets the blocks of the one before it", "const Held& parent = Find(ids[parent_index]);",
    "const Held& parent = Find(ids[BUG && i > 0 ? i - 1 : parent_index]);")
drop("ReorderKeepsHolds", "a beam keeps what it held before", "child.table.Clear(store_, /*in_flight=*/true);")
bug("BeamsOverbookWindows", "beams grow though the windows have no places for all", "!CanReserveTogether(ids, num_tokens, /*later=*/false)",
    "(!BUG && !CanReserveTogether(ids, num_tokens, /*later=*/false))")
drop("ForkTogetherTwice", "a beam reserves for all beams after the fork", "parent.access.num_together = 1;")
bug, drop = source("engine/kv/block_table.cc", "kv_test:PinsProperty*")
bug("TwoBeamsOneBlock", "the last two that share a block write into it", "return store.pool().table_refs(block) > 1",
    "return store.pool().table_refs(block) > (BUG ? 2 : 1)")
bug, drop = source("engine/kv/block_manager_pins.cc", "kv_test:PinsProperty*")
drop("PinsSealNothing", "a sequence has room in a block that is pinned", "++num_seals_;")

bug, drop = source("engine/kv/block_manager_pins.cc", "kv_test:BlockManagerTest.*")
bug("PinsWhatIsListedNowhere", "a table is pinned with a token that the cache lacks", "std::ssize(cache.Tokens(block)) >=",
    "std::ssize(cache.Tokens(block)) + (BUG ? 1 : 0) >=")
bug, drop = source("engine/kv/block_manager_pins.cc", "kv_test:Pin*")
drop("q05", "the part-filled last block of a pin is not pinned", "matched_.push_back(match.partial_block);")
bug("q06", "a pin holds no part of a window", "i < end; ++i) window.Hold(", "i < end && !BUG; ++i) window.Hold(")
bug("q07", "what follows a pin is looked for from the start", "tokens.subspan(base * block_size_)",
    "tokens.subspan(BUG ? 0 : base * block_size_)")
bug("q08", "an incomplete chain is pinned", "if (match.partial_tokens < in_last)",
    "if (match.partial_tokens < (BUG ? 1 : in_last))")
bug("q09", "what starts after a pin's end continues its roots", "ended_key_.push_back('!');",
    "if (!BUG) ended_key_.push_back('!');")
bug("PinsNoFirstPart", "the first part of a window counts as none", "Find(pinned.blocks[i]) < 0)", "Find(pinned.blocks[i]) < (BUG ? 1 : 0))")
bug("PinsNoLastPlace", "a pin leaves a place of a window free", "if (end - begin > store_", "if (end - begin + (BUG ? 1 : 0) > store_")
# --- Named prefixes.

bug, drop = source("engine/scheduler/scheduler_complete.cc", "prefix_test:PrefixEngineTest.*")
bug("q13", "a prefix ends before it is pinned", "if (state.pins != kNoPin && sequence.num_computed == state.prompt_len) {",
    "if (!BUG && state.pins != kNoPin && sequence.num_computed == state.prompt_len) {")
bug, drop = source("engine/scheduler/scheduler.cc", "prefix_test:PrefixEngineTest.*")
bug("q14", "requests run on no prefix", "request.prefix == nullptr ? kNoPin", "BUG || request.prefix == nullptr ? kNoPin")
bug, drop = source("engine/sharing/prefix_record.cc", "prefix_test:PrefixEngineTest.*")
bug("q15", "everybody may use a prefix", 'allowed == "*" ||', 'BUG || allowed == "*" ||')
bug("q16", "a hit does not move the end", "if (!refresh_on_hit ||", "if (BUG || !refresh_on_hit ||")
bug, drop = source("engine/sharing/prefix_registry.cc", "prefix_test:PrefixEngineTest.*")
drop("q18", "a timer whose prefix was used is not set anew", ("if (record->End() > now) {", "SetTimer(*record);"))
bug("PrefixForbiddenIsTold", "what may not be used is told from what does not exist", "if (!may) return NotFound(name);",
    'if (BUG && !may && record != nullptr) return absl::NotFoundError("prefix: not yours");\n'
    "  if (!may) return NotFound(name);")
drop("PrefixEtagIgnored", "an update ignores the etag", "RETURN_IF_ERROR(CheckEtag(*record, etag));")
drop("PrefixRequestIgnored", "a request_id gives a prefix with other fields",
    "if (record != nullptr && !IsDigestOf(record->request_digest, params)) return OtherRequest();")
bug("EndedIsListed", "a prefix is listed at its end", "record.End() > now;", "(BUG ? record.End() >= now : record.End() > now);")
bug("NoTtlIsATtl", "a prefix may end when it begins", "*ttl <= absl::ZeroDuration()", "(BUG ? *ttl < absl::ZeroDuration() : *ttl <= absl::ZeroDuration())")
bug("ColdIsCounted", "a cold prefix serves a request with blocks that it does not have",
    "return record != nullptr && !record->blocks.empty();",
    "return record != nullptr && (BUG || !record->blocks.empty());", "prefix_restart_test:PrefixRestartTest.*")
bug("EndOnDiskStays", "the disk does not learn of an end that hits moved",
    ("if (record->End() > now) {", "if (record->End() != record->saved_end) NoteChange"),
    "if (!BUG && record->End() != record->saved_end) NoteChange", "prefix_restart_test:PrefixRestartTest.*")
bug, drop = source("engine/sharing/prefix_registry_compute.cc", "prefix_test:PrefixEngineTest.*")
drop("q20", "the ledger forgets what a prefix gave back", "ledger_.Unpin(record->tenant, blocks);", "prefix_test:SmallCacheTest.*")
bug("WarmLeavesNoRoom", "a use warms a prefix beyond its owner's part", "{.has_others = limits.has_others}",
    "{.has_others = !BUG && limits.has_others}", "prefix_restart_test:PrefixRestartTest.*")
drop("q21", "the end of a prefix in computation does not end the computation",
     "if (request != nullptr) return host_.Cancel(request);")
bug("ColdFails", "a cold prefix for which there is no room is forgotten", "} else if (was_cold) {",
    "} else if (!BUG && was_cold) {", "prefix_restart_test:PrefixRestartTest.*")
bug("UnsavedStaysPinned", "a prefix that could not be written keeps its blocks",
    "if (is_gone || !status.ok()) GiveBack(record);", "if (is_gone || (!BUG && !status.ok())) GiveBack(record);",
    "prefix_restart_test:PrefixRestartTest.*")
bug, drop = source("engine/sharing/prefix_registry_log.cc", "prefix_restart_test:PrefixRestartTest.*")
drop("NamedLogUnsynced", "a prefix is answered before it is on the disk", "if (disk.ok()) disk = log_->Sync();")
drop("NamedLogKeepsEnds", "a deleted prefix is there again after a restart", "if (disk.ok()) disk = log_->Remove(pin);")
bug("NoteWaitsForSpace", "a deletion waits until the disk has space for changes", "if (!ended_.empty()) return log_again_;",
    "if (!ended_.empty()) return std::max(log_again_, BUG ? grow_again_ : log_again_);")
bug("LostLogStays", "a log that was removed is not written again", "if (!disk.ok() && !was_broken && RewriteLog().ok())",
    "if (!BUG && !disk.ok() && !was_broken && RewriteLog().ok())")
bug("EndDrifts", "an end on disk moves with the wall clock", "record->expires_wall = saved.end;",
    "record->expires_wall = BUG ? clock_.Date() : saved.end;")
drop("PinsBeginAnew", "pins of an earlier run are given again", "table_.set_next_pin(log_->next_pin());")
bug, drop = source("engine/sharing/prefix_log.cc", "prefix_restart_test")
bug("NamedLogGrows", "changes are kept for ever", "log_->bytes() > 2 * used_bytes_", "!BUG && log_->bytes() > 2 * used_bytes_")
bug("NamedLogUnbounded", "prefixes fill the disk", "if (is_new && used_bytes_", "if (!BUG && is_new && used_bytes_")
bug("IdBehindVocabulary", "an id that the model does not have is read", "if (value >= static_cast<uint64_t>(vocab_size))",
    "if (value >= static_cast<uint64_t>(vocab_size) + (BUG ? 1 : 0))", "prefix_restart_test:PrefixLogTest.*")
bug("NamedLogOneMore", "a prefix is written that is a byte too large", "+ bytes > limits_.max_bytes) {",
    "+ bytes > limits_.max_bytes + (BUG ? 1 : 0)) {", "prefix_restart_test:PrefixLogTest.*")
bug("DamageReopens", "a prefix whose last change may be lost is open as it was before", "it->second.allowed_tenants.clear();",
    "if (!BUG) it->second.allowed_tenants.clear();", "prefix_restart_test:PrefixLogTest.*")
drop("DamageUnnamed", "the log does not name the prefixes whose last change may be lost", "names.push_back(it->second.name);",
     "prefix_restart_test:PrefixLogTest.*")
bug("DamageUncounted", "the log does not count what is damaged", '{{"damaged_records", log_->num_damaged()},',
    '{{"damaged_records", BUG ? 0 : log_->num_damaged()},', "prefix_restart_test:PrefixLogTest.*")
bug("LossIsNoDoubt", "records that are lost may have revoked nothing",
    "for (const auto& [pin, prefix] : saved_) doubted_.insert(pin);",
    "for (const auto& [pin, prefix] : saved_) {\n      if (!BUG) doubted_.insert(pin);\n    }", "prefix_restart_test:PrefixLogTest.*")
drop("EtagComesAgain", "a prefix that damage closed has the etag of another state", "it->second.version += kMostLost;",
     "prefix_restart_test:PrefixLogTest.*")
bug("DoubtForEver", "a prefix is closed although a later change is whole", "doubted_.erase(pin);", "if (!BUG) doubted_.erase(pin);",
    "prefix_restart_test:PrefixLogTest.*")
bug, drop = source("engine/sharing/prefix_record.cc", "sharing_test:RequestDigestTest.*:PrefixRecordTest.*")
drop("DigestNoContent", "a request_id is used again with other content", "sum.AddSized(ContentOnly(content));")
drop("DigestNoDisplayName", "... with another display name", "sum.AddSized(display_name);")
drop("DigestNoKindOfEnd", "... with an end for a ttl", "sum.AddInt(static_cast<int64_t>(expiration.index()));")
bug("DigestNoTtl", "... with another ttl", "ttl != nullptr ? absl::ToInt64Nanoseconds(*ttl)", "ttl != nullptr ? (BUG ? 0 : absl::ToInt64Nanoseconds(*ttl))")
drop("DigestNoRefresh", "... with another refresh_on_hit", "sum.AddInt(refresh_on_hit ? 1 : 0);")
bug("DigestNoTenants", "... with another allow list", "for (const std::string& tenant : allowed_tenants) sum.AddSized(tenant);",
    "for (const std::string& tenant : allowed_tenants) {\n    if (!BUG) sum.AddSized(tenant);\n  }")
drop("DigestNoSalt", "... with another salt", "sum.AddSized(salt);")
bug("OldDigestForgotten", "a request_id of an earlier server is refused", "|| digest == ContentOnly(params.content)",
    "|| (!BUG && digest == ContentOnly(params.content))")
bug("AllowedTenantsEdge", "an allow list has one more than it may", "tenants.size() <= kMostAllowedTenants", "tenants.size() <= kMostAllowedTenants + (BUG ? 1 : 0)")
bug, drop = source("files/record_log.cc", "state_files_test")
bug("CrcUnchecked", "a damaged record is read", "if (Checksum(body, bytes_) != head->body_sum) {",
    "if (!BUG && Checksum(body, bytes_) != head->body_sum) {")
bug("HeadUnchecked", "a damaged head is read", "if (Checksum(summed, place) != reader.Number()) return {};",
    "if (!BUG && Checksum(summed, place) != reader.Number()) return {};")
bug("DamageEndsLog", "what follows a damaged head is lost", "const int64_t next, FindHead(bytes_ + 1, size));",
    "const int64_t next, FindHead(BUG ? size : bytes_ + 1, size));")
bug("DamageIsThrownAway", "a damaged log is not kept", "if (is_damaged_) RETURN_IF_ERROR(directory_.Link(",
    "if (!BUG && is_damaged_) RETURN_IF_ERROR(directory_.Link(")
bug("ZerosAreDamage", "what was never written is damage", "if (is_unwritten) break;", "if (!BUG && is_unwritten) break;")
bug("MarkIsKnown", "a client may write what is taken for a record", "for (char& byte : mark) byte = static_cast<char>(random());",
    "for (char& byte : mark) byte = static_cast<char>(BUG ? 7 : random());")
bug("NewerIsRead", "a newer log is read", "if (version > kVersion) {", "if (version > kVersion + (BUG ? 1 : 0)) {")
bug("OldGoesOn", "a log of version 1 gets records of version 2", "is_broken_ = version == kOldVersion;", "is_broken_ = !BUG && version == kOldVersion;")
bug("NoRoomForEnds", "a full disk brings back what was deleted", "if (room_ == 0) return absl::OkStatus();",
    "if (BUG || room_ == 0) return absl::OkStatus();", "prefix_restart_test:*FullDisk*")
bug("RoomIsUsed", "contents use the space of ends", "const int64_t reserved = (end + room_ +", "const int64_t reserved = (end + (BUG ? 0 : room_) +",
    "prefix_restart_test:*FullDisk*")
bug("LostNameUnseen", "a log that lost its name is written on", "absl::Status named = directory_.CheckHas(name_, file_);",
    "absl::Status named = BUG ? absl::OkStatus() : directory_.CheckHas(name_, file_);")
bug("RecordAnywhere", "a record is read at another place", "static_cast<XXH64_hash_t>(place)", "static_cast<XXH64_hash_t>(BUG ? 0 : place)")
drop("BrokenLogGoesOn", "records follow one that was written in part", "if (!written.ok()) is_broken_ = true;")
bug("AnyLog", "a log of another identity is read", "if (identity != identity_) {", "if (!BUG && identity != identity_) {")
bug, drop = source("engine/disk/block_key.cc", "disk_engine_test:DiskEngineTest.*")
drop("KeyWithoutRoot", "tenants share blocks on disk", "sum.AddSized(root_key);")
drop("KeyWithoutTokens", "a block is found by its parent alone", "sum.Add(std::as_bytes(tokens));")
bug, drop = source("engine/load/kept_on_disk.cc", "disk_engine_test:DiskEngineTest.*")
for name, text in (("Model", "server.model_digest"), ("Numerics", "server.answer_numerics"), ("Backend", "server.backend"),
                   ("IsaPath", "server.isa_path"), ("Version", "server.version")):
    bug(f"KeyWithout{name}", f"blocks are read whatever the {text} that made them", f'{text}, ";"', f'BUG ? std::string() : {text}, ";"')
bug("WindowsAreKept", "blocks of a model with a window are kept without it", "groups().size() > 1) {", "groups().size() > (BUG ? 2 : 1)) {")
bug("KeptUnasked", "blocks are kept though nobody asks for it", "config.kv_disk_mib > 0) {", "config.kv_disk_mib > (BUG ? -1 : 0)) {")
bug("KeyWithoutDtype", "blocks of another type are read", "std::string(kernels::Name(parts.cache.shape().dtype))",
    "BUG ? std::string() : std::string(kernels::Name(parts.cache.shape().dtype))")
bug, drop = source("engine/disk/segment_file.cc", "disk_test:SegmentStoreTest.*")
bug("SumUnchecked", "a damaged block is read", "return SumOf(entry.slot, record) == entry.sum;",
    "return BUG || SumOf(entry.slot, record) == entry.sum;")
bug("EntryUnchecked", "a damaged entry is read", "return bytes.starts_with(wanted);", "return BUG || bytes.starts_with(wanted);")
bug("RecordInAnySlot", "a record is read in another slot", "static_cast<uint64_t>(slot)};", "static_cast<uint64_t>(BUG ? 0 : slot)};")
bug("AnySegment", "a foreign segment is read", "if (header != wanted) {", "if (!BUG && header != wanted) {")
bug("ClearedSlotComesBack", "an erased block is there after a restart", "none[0] = std::byte{1};",
    "none[0] = std::byte{1};\n  if (BUG) return absl::OkStatus();")
bug, drop = source("engine/disk/segment_store.cc", "disk_test:SegmentStoreTest.*")
bug("GcDropsRead", "blocks that are used are removed with the oldest", "is_kept = (it->second.was_read", "is_kept = ((!BUG && it->second.was_read)")
bug("GcDropsNamed", "blocks of named prefixes are removed with the oldest", "|| named.contains(key))", "|| (!BUG && named.contains(key)))")
bug("GcKeepsAll", "a removed segment is written again whole", "&& num_left > 0 &&", "&& (BUG || num_left > 0) &&")
bug("DiskUnbounded", "segments fill the disk", "if (std::ssize(segments_) > max_segments_) RETURN_IF_ERROR(DropOldest());",
    "if (!BUG && std::ssize(segments_) > max_segments_) RETURN_IF_ERROR(DropOldest());")
bug("OldestKeptAtOpen", "a killed server leaves one segment more than there may be", "while (std::ssize(segments_) > max_segments_) {",
    "while (std::ssize(segments_) > max_segments_ + (BUG ? 1 : 0)) {")
bug("EpochUnwritten", "what was flushed comes back", "absl::Status status = WriteStoreFile();",
    "absl::Status status = BUG ? absl::OkStatus() : WriteStoreFile();", "disk_test:SegmentStoreTest.*")
bug, drop = source("engine/disk/spill_queue.cc", "disk_test:SpillQueueTest.*")
drop("WithdrawnIsCopied", "a block is copied after it got other contents",
     "tickets_[static_cast<size_t>(block)] = kNoTicket;\n  while")
bug("OrphansOffered", "a block is offered whose parent's key is not known", "(parent >= 0 && parents == kNoTicket)",
    "(!BUG && parent >= 0 && parents == kNoTicket)")
bug("BlockZeroIsARoot", "what follows block 0 is kept with a root's key", "parent < 0 ? root_key :", "parent < (BUG ? 1 : 0) ? root_key :")
bug("DiscardedUnbounded", "blocks that are not to be kept fill the memory", "discarded_.size() < kCapacity;", "(BUG || discarded_.size() < kCapacity);")
bug, drop = source("engine/disk/disk_tier.cc", "disk_engine_test")
drop("ErrorsGoOn", "a disk that failed is used at once again",
     "paused_until_ns_.store(absl::ToUnixNanos(config_.clock->Now() + config_.pause),\n                         std::memory_order_relaxed);")
bug("OneFetchTooMany", "one more fetch is started than may be", ">= kMostFetches) return", ">= kMostFetches + (BUG ? 1 : 0)) return",
    "disk_engine_test:DiskFetchesTest.*")
bug("ActiveFetchFree", "the fetch that is read does not count", ("if (waiting_.size() +", "(active_ ? 1 : 0)"), "(!BUG && active_ ? 1 : 0)",
    "disk_engine_test:DiskFetchesTest.*")
bug, drop = source("engine/disk/disk_fetches.cc", "disk_engine_test:DiskEngineTest.*")
bug("FetchLost", "nobody is told that a fetch has ended", "if (event.is_last || !fetch->is_wanted) End(event.fetch, now);",
    "if (!BUG && (event.is_last || !fetch->is_wanted)) End(event.fetch, now);")
bug("HangHoldsRequests", "requests wait for a disk that hangs", "const bool is_usable = tier_.IsUsable()",
    "const bool is_usable = BUG || tier_.IsUsable()", "disk_engine_test:*DiskThreads*")
bug, drop = source("engine/disk/disk_fetches.cc", "disk_engine_test:DiskFetchesTest.*")
bug("WaitsToTheEnd", "a request that waits for a disk that is found slow waits on", "const bool is_worth = waiting.what.is_trial ||",
    "const bool is_worth = BUG || waiting.what.is_trial ||")
bug("TrialReadsAll", "a slow disk is tried with a whole prompt", "wait.end = std::min(wait.end, wait.shared_end + ReadPace::kTrialBlocks);",
    "if (!BUG) wait.end = std::min(wait.end, wait.shared_end + ReadPace::kTrialBlocks);")
bug("TrialMakesLate", "a request is late because it tries the disk", "if (request.deadline - now < took)", "if (!BUG && request.deadline - now < took)")
bug("OwnBlocksFree", "what a request reads after another's fetch does not count", ".num_blocks = wait.end - wait.shared_end,",
    ".num_blocks = BUG ? 0 : wait.end - wait.shared_end,")
bug("JoinsBehindItsOwn", "a request shares a block more than it waits for", "(wait.shared_end)) ++wait.shared_end;",
    "(wait.shared_end)) ++wait.shared_end;\n    if (BUG && wait.shared_end == wait.end && has(wait.end)) ++wait.shared_end;")
bug("JoinsWhatIsRead", "a fetch is joined for a block that it has brought", "fetch.next <= begin", "fetch.next <= begin + (BUG ? 1 : 0)",
    "disk_engine_test:OneByOneTest.*")
bug("JoinsBehindTheEnd", "a fetch is joined for the block behind its last", "return fetch.is_wanted &&",
    "if (BUG && fetch.is_wanted && begin == fetch.what.end && fetch.what.chain->keys[i] == chain.keys[i]) return true;\n"
    "    return fetch.is_wanted &&")
bug("ReadIsLost", "blocks that were read count as blocks to read", "num_before = fetch.num_to_read;",
    "num_before = BUG ? fetch.what.end - fetch.next : fetch.num_to_read;")
drop("QuotaReads", "blocks are read for a tenant that may not hold them",
     "if (IsOverQuota(charge + static_cast<double>(num_blocks), request.params.limits.max_blocks)) {\n    return std::nullopt;\n  }")
bug("QuotaPlaces", "a fetch takes blocks beyond its tenant's quota", "|| IsOverQuota(charge, fetch.max_blocks)) {",
    "|| (!BUG && IsOverQuota(charge, fetch.max_blocks))) {")
bug("LaterFetchCounts", "what is read for a later request counts", "if (fetch.what.id > wait.fetch) break;",
    "if (fetch.what.id > wait.fetch + (BUG ? 1 : 0)) break;")
bug("QuotaOfOne", "a tenant that may hold one block holds any", "return most > 0 &&", "return most > (BUG ? 1 : 0) &&")
bug("OneTryMore", "a request joins one fetch more than it may", "++waiting.num_tries > kMostTries", "++waiting.num_tries > kMostTries + (BUG ? 1 : 0)")
bug("OneBlockWaits", "a request waits for one block", "if (num_blocks < kLeastBlocks)", "if (num_blocks < kLeastBlocks - (BUG ? 1 : 0))")
bug("BehindTheFetch", "a fetch is taken to bring the block after its last", "return block < fetch->what.end &&",
    "return block < fetch->what.end + (BUG ? 1 : 0) &&")
bug("LastIsReadTwice", "the last block of another's fetch is read again", "while (wait.shared_end < wait.end && has",
    "while (wait.shared_end < wait.end - (BUG ? 1 : 0) && has")
bug("LastIsNotJoined", "a fetch that has one block left is joined by nobody", "begin < fetch.what.end &&", "begin < fetch.what.end - (BUG ? 1 : 0) &&")
bug("SilenceIsLonger", "a silent disk is waited for a moment longer", "now - last_event_ < kMostSilence;",
    "now - last_event_ < kMostSilence + (BUG ? absl::Nanoseconds(1) : absl::ZeroDuration());")
bug("WaitsAtDeadline", "a request waits at its deadline", "now < waiting.request->deadline;",
    "(now < waiting.request->deadline || (BUG && now == waiting.request->deadline));")
bug("MoreThanHalf", "blocks that are read take more than half of what is free", "> blocks_.num_available() / 2) return false;",
    "> blocks_.num_available() / 2 + (BUG ? 1 : 0)) return false;")
bug, drop = source("engine/disk/read_pace.cc", "disk_test:ReadPaceTest.*")
bug("SlowForEver", "a disk that was slow once is never tried again", "const bool is_read =", "const bool is_read = BUG ||")
bug("TrialsTogether", "every request tries the disk while one does", "wanted.num_before > 0 || now", "(!BUG && wanted.num_before > 0) || now")
bug("OldMeanStays", "a trial weighs as little as any read", "num_reads_ >= kLeastReads) num_reads_ = 0;", "!BUG && num_reads_ >= kLeastReads) num_reads_ = 0;")
bug("OneReadTells", "one slow read makes the disk a slow one", "if (num_reads_ >= kLeastReads) block_time_ = mean_;", "if (BUG || num_reads_ >= kLeastReads) block_time_ = mean_;")
bug("QueueLeftOut", "what is read before does not count", "TimeOf(wanted.num_before + wanted.num_blocks)", "TimeOf((BUG ? 0 : wanted.num_before) + wanted.num_blocks)")
bug, drop = source("engine/step/step_loop_intake.cc", "disk_engine_test:DiskLimitsTest.*")
bug("DeadlineWithoutDisk", "a deadline that the disk can meet is refused", "if (gain.num_tokens == 0) return computed;", "if (BUG || gain.num_tokens == 0) return computed;")
bug("DiskTakesNoTime", "a deadline that the disk misses is accepted", "std::max(gain.time +", "std::max((BUG ? absl::ZeroDuration() : gain.time) +")
bug("PrefixWithoutDisk", "a deadline behind a prefix on disk is refused", "if (request.prefix != nullptr) return fetches_->GainOfPrefix(request);",
    "if (request.prefix != nullptr) return BUG ? DiskFetches::Gain() : fetches_->GainOfPrefix(request);")
bug, drop = source("engine/kv/block_store.cc", "kv_test:LoadsTest.*")
bug("EvictedStaysOffered", "an evicted block is still written to disk", "if (spill_ != nullptr) spill_->Withdraw(block);\n  pool_.TakeEvicted(block);",
    "if (!BUG && spill_ != nullptr) spill_->Withdraw(block);\n  pool_.TakeEvicted(block);")
bug("UnsoundKept", "unsound blocks stay on disk", "if (spill_ != nullptr) spill_->Discard(block);", "if (!BUG && spill_ != nullptr) spill_->Discard(block);")
bug, drop = source("engine/kv/block_manager.cc", "kv_test:LoadsTest.*")
bug("PinnedTreesOffered", "what follows a prefix is written as if it followed nothing", "config_.spill != nullptr && on == kNoPin;",
    "config_.spill != nullptr && (BUG || on == kNoPin);")
bug, drop = source("files/state_directory.cc", "state_files_test")
bug("NoLock", "two servers share a directory", "!TryLock(directory)", "(!BUG && !TryLock(directory))")
bug("NoFileLock", "an earlier server shares the directory", "!TryLock(lock)) {", "(!BUG && !TryLock(lock))) {")
bug("CreatesInPlace", "a new file is written into one that is there", "O_CREAT | O_EXCL : 0", "O_CREAT | (BUG ? 0 : O_EXCL) : 0")
bug("AnotherHasTheName", "a file that another one replaced counts as there", "named.st_ino == opened.st_ino)", "(BUG || named.st_ino == opened.st_ino))")
bug("OpenToAll", "others may read the prompts", "if ((status.st_mode & 077) != 0) {", "if (!BUG && (status.st_mode & 077) != 0) {")
bug("FollowsLinks", "a link in the place of a file is followed", "O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (create",
    "O_RDWR | (BUG ? 0 : O_NOFOLLOW) | O_CLOEXEC | O_NONBLOCK | (create")
bug, drop = source("engine/admission/cache_ledger.cc", "admission_test:CacheLedgerTest.*")
bug("q22", "pins take what a live request may need", "if (largest > left) {", "if (!BUG && largest > left) {")
drop("q23", "a lease is never given back", "ledger->needs_.erase(need_);")
bug("q24", "requests are admitted that pins starve", "if (need - shared >", "if (!BUG && need - shared >")
bug, drop = source("engine/frontend/prefix_prompt.cc", "frontend_test:PrefixPromptTest.*")
bug("q25", "messages are rendered without those of the prefix", "ChatMessages all = std::get<ChatMessages>(prefix.given);",
    "ChatMessages all = BUG ? ChatMessages() : std::get<ChatMessages>(prefix.given);")
bug("q26", "a user of a prefix reads it in an error", "if (is_owner) {",
    "if (BUG || is_owner) {")
bug("q27", "a prefix of messages has tokens of the next message",
    "ids.erase(std::mismatch(ids.begin(), ids.begin() + length, other.begin()).first, ids.end());",
    "if (!BUG) ids.erase(std::mismatch(ids.begin(), ids.begin() + length, other.begin()).first, ids.end());")
bug, drop = source("engine/step/step_loop.cc", "prefix_test:PrefixEngineTest.*")
bug("q29", "the end of a prefix ends those who use it", "scheduler_.Unpin(unpin.pin);",
    "if (BUG) CancelAll();\n  scheduler_.Unpin(unpin.pin);")

bug, drop = source("engine/kv/kv_cache.cc", "kv_test:GroupLayersTest.*")
bug("w04", "blocks that another head sees are dropped", ".MostKept(max_model_len)",
    ".MostKept(max_model_len) - (BUG && layer_patterns[i].has_holes() ? 1 : 0)")

bug, drop = source("engine/kv/block_table.cc", "kv_test")
bug("m02", "two write one tail: no copy on write", "if (first < size() && IsSealed", "if (!BUG && first < size() && IsSealed")
bug("q01", "what follows a pinned tail is appended to it", "|| store.pool().pin_refs(block) > 0;",
    "|| (!BUG && store.pool().pin_refs(block) > 0);")

bug, drop = source("engine/kv/block_store.cc", "kv_test")
bug("m07", "a block is free while a step in flight reads it", "if (in_flight && this->in_flight() && pool_",
    "if (!BUG && in_flight && this->in_flight() && pool_")
drop("m10", "an evicted block keeps its part in a window",
     ("TakeEvicted(block);", "for (WindowBlocks& window : windows_) window.Detach(block);"), "scheduler_test")
bug("m23", "a copy's source is not held in windows", ("void BlockStore::HoldSource", "size_t w = 0; w <"),
    "size_t w = 0; !BUG && w <", "scheduler_test")
bug("m24s", "a source is free although a step in flight reads it", "waits = in_flight && this->in_flight();",
    "waits = !BUG && in_flight && this->in_flight();", "kv_test:*TakenBack*")

bug, drop = source("engine/kv/block_pool.cc", "kv_test")
bug("m24", "pinned blocks are counted wrong", "num_pinned_ += block.pin_refs > 0 ? by : 0;",
    "num_pinned_ += block.pin_refs > 0 && !(BUG && by < 0) ? by : 0;")
bug("q02", "a pinned block counts as one in quarantine", "block.handles_only() ?",
    "block.handles_only() || (BUG && block.pin_refs > 0 && block.table_refs == 0) ?")

bug, drop = source("engine/kv/kv_cache.cc", "fp8_weights_test:ScaledCacheTest*")
bug("h62", "a cache in 16 bits has scales", "if (shape_.dtype == kernels::DType::kF8E4M3)", "if (BUG || shape_.dtype == kernels::DType::kF8E4M3)")
bug, drop = source("engine/kv/kv_cache.cc", "kv_test")
bug("b60", "every layer's run is as long as the first one's", "offset += cache.shape_.bytes_per_block(layer);",
    "offset += cache.shape_.bytes_per_block(BUG ? group.layers.front() : layer);")

bug, drop = source("engine/kv/kv_cache.cc", "cuda_alibi_test:*Preempted*")
bug("b62", "all layers share the norms of the first layer's keys", "cache.places_[layer].first_norm = num_norms;",
    "cache.places_[layer].first_norm = BUG ? 0 : num_norms;")
bug("b63", "no layer keeps norms", "if (backend.info().keeps_key_norms)", "if (!BUG && backend.info().keeps_key_norms)")

bug, drop = source("engine/model/layers/device_input.cc", "equality_test:*Uneven*")
bug("b61", "layers with other heads use the plan of the first", ".heads = key.heads,",
    ".heads = BUG ? plans_.begin()->first.heads : key.heads,")

bug, drop = source("engine/kv/prefix_cache.cc", "kv_test")
bug("q11", "what followed an ended prefix is as good as the rest", "roots_.dead(node.root) ? ReuseClasses",
    "!BUG && roots_.dead(node.root) ? ReuseClasses")
bug("q12", "leaves of a dead root keep their places", "!roots_.dead(nodes_[block].root)) continue;",
    "BUG || !roots_.dead(nodes_[block].root)) continue;")
drop("m12", "eviction forgets how old a block is", "node.unheld_since_ms = now_ms;")
drop("m13", "a block that was hot is not hot again", "node.num_uses = classes_.UsesOf(node.hash);")
bug("m15", "a parent is evicted before its child", "if (node.num_children == 0) Enqueue(block,",
    "if (BUG || node.num_children == 0) Enqueue(block,")
bug("m28", "uses of preempted requests make a block hot", "use.is_first && !end.comes_back",
    "use.is_first && (BUG || !end.comes_back)")
bug("m29", "a path loses its blocks between those of others", "EvictionQueue::End::kFirst);",
    "BUG ? EvictionQueue::End::kLast : EvictionQueue::End::kFirst);")
bug("m21", "a partial match does not move to the front",
    ("match.partial_tokens = matched;", "if (match.partial_block >= 0) {"),
    "if (!BUG && match.partial_block >= 0) {")

bug, drop = source("engine/kv/reuse_classes.cc", "kv_test")
bug("m30", "a return counts for the class of the new request, GhostWrongClass", "CountReturn(ghost.reuse_class, BucketOf(",
    "CountReturn(BUG ? 0 : ghost.reuse_class, BucketOf(")
bug("m37", "a prompt is continued only by its last block", "(num_whole - num_known) / 4", "(BUG ? 0 : num_whole - num_known) / 4")
drop("m31", "a request that starts again returns again", "ghost.is_awaited = false;")
bug("m32", "ghosts that were continued are still awaited", "ghost.is_awaited ? 1 : 0", "ghost.is_awaited || BUG ? 1 : 0")
bug("m33", "forks leave ghosts", "if (use.is_first) {", "if (use.is_first || BUG) {")

bug, drop = source("engine/kv/eviction_queue.cc", "kv_test")
drop("m34", "blocks of old slots are taken for new ones", "Retire(s);")
bug("m35", "a batch never ends", "--num_left_;", "if (!BUG) --num_left_;")

bug, drop = source("tools/sim/bounds.cc", "sim_test")
bug("m36", "MIN evicts for a block that is used later", "if (std::get<0>(*last) <= next_use[use]) continue;",
    "if (!BUG && std::get<0>(*last) <= next_use[use]) continue;")

# --- The scheduler.

bug, drop = source("engine/scheduler/scheduler.cc", "scheduler_test")
bug("s01", "deadlines of what waits are not seen", "while (State* state = waiting_->Due(now))",
    "while (State* state = BUG ? nullptr : waiting_->Due(now))", "engine_test")
bug("s20", "cancellations of what waits are not seen", "if (state.is_cancelled) {", "if (!BUG && state.is_cancelled) {", "engine_test")
bug("CancelledRuns", "cancellations of what runs are not seen",
    "state.is_cancelled = state.request().cancelled.load(std::memory_order_acquire);",
    "state.is_cancelled = (!BUG || state.phase == State::Phase::kWaiting) && state.request().cancelled.load(std::memory_order_acquire);")
bug("RestIsLost", "the last tokens of what ends are not cached", "if (!state.is_void) CommitRest(state);",
    "if (!BUG && !state.is_void) CommitRest(state);")
bug("s03", "tenants are kept for ever", "num_left == 0) {\n    shares_.Leave", "num_left == 0 && !BUG) {\n    shares_.Leave")
bug("s18", "the next wake-up leaves stalls out", "state->stalled_since + config_",
    "(BUG ? absl::InfiniteFuture() : state->stalled_since) + config_")

bug, drop = source("engine/scheduler/scheduler_complete.cc", "scheduler_test")
bug("s02", "places leak at a fork", ("state.num_known = first.num_known;", "if (!lost)"), "if (!lost && !BUG)")
bug("PromptIsCommittedLate", "the last tokens of a prompt are not cached while it runs",
    "if (before < state.prompt_len ||", "if ((!BUG && before < state.prompt_len) ||")

bug, drop = source("engine/scheduler/scheduler_plan.cc", "scheduler_test")
bug("DraftsBesideBeams", "drafts take the tokens that beams took to catch up", "drafting.most -= std::max(0, before",
    "drafting.most -= BUG ? 0 : std::max(0, before")
drop("PreemptedLosesRest", "the last tokens of what is preempted are not cached", "CommitRest(victim);")
drop("ChargedOnceMore", "decodes are charged when the next step begins",
     ("PlanDecodes(now, budget, plan);", "FlushCharge();"))
drop("s09", "entries planned before a preemption count", "++victim.num_holds;")
bug("s11", "a stall begins anew at each look", "std::min(state.stalled_since, now);",
    "BUG ? now : std::min(state.stalled_since, now);")
bug("s12", "tokens computed again count twice", "stats_.recomputed_tokens += again;",
    "stats_.recomputed_tokens += (BUG ? 2 : 1) * again;")
bug("s16", "a tenant pays by entry, not by token", "num_tokens * (decode", "(BUG ? 1 : num_tokens) * (decode")

bug, drop = source("engine/scheduler/scheduler_prompts.cc", "scheduler_test")
bug("s06", "the oldest prefill has no share of a step", "const bool keep = ", "const bool keep = !BUG && ")
bug("BudgetIsOfOne", "the first tenant's prompts take a whole step", "if (shares_.num_active() <= 1) return;",
    "if (BUG || shares_.num_active() <= 1) return;")
bug("BudgetWithoutShares", "a step is divided whatever the tenants' shares", "all * shares_.share(b.tenant) / shares",
    "all * (BUG ? 1 : shares_.share(b.tenant)) / shares")
bug("BudgetOfRunning", "nothing of a step is kept for what is to start", "if (IsBarred(*head)) continue;",
    "if (BUG || IsBarred(*head)) continue;")

bug, drop = source("engine/scheduler/scheduler_victims.cc", "scheduler_test")
bug("s04", "a younger one preempts an older one", "if (!yields && !served", "if (!BUG && !yields && !served")
bug("s15", "the victim is the dearest", ("-std::max(level, 1.0), lost);", "cost < best_cost)"),
    "(BUG ? best_cost < cost : cost < best_cost))")
bug("GrowthTakesCheapest", "growth takes what is cheapest, of whichever tenant", "-std::max(level, 1.0)",
    "BUG ? -1.0 : -std::max(level, 1.0)")
bug("OlderNeverYields", "what is older makes no way for another tenant's", "const bool yields = ", "const bool yields = !BUG && ")
bug("VictimWithinPart", "a tenant within its part makes way for a start", "if (level <= kPart || num_freed == 0) continue;",
    "if ((!BUG && level <= kPart) || num_freed == 0) continue;")
bug("VictimAgain", "a sequence makes way for starts again at once", "if (state->num_known - state->known_at_claim < kTokensBetweenClaims) continue;",
    "if (!BUG && state->num_known - state->known_at_claim < kTokensBetweenClaims) continue;")

bug, drop = source("engine/scheduler/scheduler_start.cc", "scheduler_test")
bug("s05", "a start leaves no headroom", "1 + config_.headroom_blocks", "1 + (BUG ? 0 : config_.headroom_blocks)")
bug("s08", "the oldest never has its turn", "/*by_age=*/IsTurnOfOldest()", "/*by_age=*/!BUG && IsTurnOfOldest()")
bug("s13", "one that does not fit is passed by those of its tenant",
    ("room_is_short = true;", "waiting_->SetAside(tenant);\n      continue;"),
    "if (BUG) {\n        waiting_->SetAside(*state);\n      } else {\n        waiting_->SetAside(tenant);\n      }\n      continue;")
bug("PassedForEver", "a tenant within its part is passed for ever", "if (state->times_passed >= kMostPasses) return;",
    "if (!BUG && state->times_passed >= kMostPasses) return;")
bug("PassedOnceMore", "one that lacks rows is passed once more", "if (state->times_passed >= kMostPasses) {",
    "if (state->times_passed >= kMostPasses + (BUG ? 1 : 0)) {")
bug("OneBarForAll", "a start that fails bars all tenants", "bars_[static_cast<size_t>(state.group->tenant)];",
    "bars_[BUG ? 0 : static_cast<size_t>(state.group->tenant)];")
bug("s19", "a scoring request starts without a row", "(state->first_row() && budget.logit_rows == 0)",
    "(!BUG && state->first_row() && budget.logit_rows == 0)")

bug, drop = source("engine/scheduler/waiting.cc", "scheduler_test")
bug("s07", "a start does not go by deadline", "deadline, s.order",
    "deadline + (BUG ? absl::InfiniteDuration() : absl::ZeroDuration()), s.order")

bug, drop = source("engine/scheduler/scheduler_state.h", "scheduler_test")
bug("s10", "deltas of steps in flight are not counted against the sink", "CanTake(state.group->deltas_in_flight",
    "CanTake((BUG ? 0 : state.group->deltas_in_flight)")
bug("w03", "a shift drops the sinks", ".first = window().sinks", ".first = BUG ? 0 : window().sinks")

bug, drop = source("engine/scheduler/tenant_shares.cc", "scheduler_test")
drop("s17", "a tenant saves up while it is idle", "tenant.served = std::max(tenant.served, least);")
drop("LastServedUnset", "who comes when all have left begins at 0", "last_served_ = tenant.served;")

# --- Ways into the step thread.

bug, drop = source("engine/admission/admission_tickets.cc", "admission_test")
bug("a01", "the queue takes one more than it may", "if (free <= 0)", "if (free <= (BUG ? -1 : 0))")

bug, drop = source("engine/request/tenant_limits.h", "admission_test:SharedLimitTest.*:AdmissionTicketsTest.*")
bug("RoomAtItsEdge", "a tenant takes one more than leaves room", "(free + 1)", "(free + (BUG ? 2 : 1))")
bug("RoomWithoutOwn", "a tenant leaves room again and again", "- of_tenant)", "- (BUG ? 0 : of_tenant))")
bug, drop = source("engine/request/shared_limit.cc", "request_test:SharedLimitTest.*")
bug("OneTenantTakesAll", "a tenant takes what all share", "limits.has_others ? MostMore", "!BUG && limits.has_others ? MostMore")
bug("SharedKeepsEnds", "what was given back counts on", "total_ -= count;", "total_ -= BUG ? 0 : count;")

bug, drop = source("engine/admission/rate_bucket.cc", "admission_test")
bug("t01", "a bucket fills beyond its limit", "return std::min<double>(limit, level_", "return std::min<double>(BUG ? 1e9 : limit, level_")
bug("t02", "a bucket never fills", "absl::ToDoubleMinutes(", "(BUG ? 0 : 1) * absl::ToDoubleMinutes(")
bug("t03", "a client is told to come back too early", "absl::Minutes((1 - left) / limit)", "absl::Minutes((BUG ? 0.5 : 1) * (1 - left) / limit)")
bug, drop = source("engine/admission/tenant_meters.cc", "admission_test")
drop("t04", "an estimate is never corrected", "meter.tokens.GiveBack(static_cast<double>(estimate - num_tokens));")
bug("t05", "tenants that are kept for ever are forgotten", "is_idle = !it->second.is_lasting", "is_idle = (BUG || !it->second.is_lasting)")
bug("t06", "a tenant with a request is forgotten", "&& it->second.num_requests == 0;", "&& (BUG || it->second.num_requests == 0);")
bug, drop = source("engine/step/live_requests.cc", "engine_test")
bug("t07", "tokens of the cache count against the rate", "prompt_tokens - summary.usage.cached_tokens +", "prompt_tokens - (BUG ? 0 : summary.usage.cached_tokens) +")
bug("t08", "a request that never ran owes its prompt", "has_run ? summary.usage", "BUG || has_run ? summary.usage")
bug, drop = source("engine/step/step_loop_intake.cc", "pacing_test")
bug("t11", "a deadline is refused by twice the estimate", "kCertain * least(before) - left", "(BUG ? 20 : kCertain) * least(before) - left")
bug("t12", "prompts that come first do not count", "scheduler_.NumPromptTokensLeft();", "BUG ? 0 : scheduler_.NumPromptTokensLeft();")
bug, drop = source("engine/scheduler/prefill_pacer.cc", "scheduler_test:PrefillPacerTest.*")
bug("t13", "one slow step refuses deadlines", "calm_prices_[i] * kMostCalmUp", "calm_prices_[i] * (BUG ? 9 : kMostCalmUp)")
bug("t14", "small steps tell the price of large ones", "2 * most_prompt_tokens_ <", "(BUG ? 1 << 20 : 2) * most_prompt_tokens_ <")
bug, drop = source("engine/scheduler/waiting.cc", "scheduler_test")
bug("t09", "a priority rises above 0", "  if (state.priority < 0) rising_.Push(state);", "  if (BUG || state.priority < 0) rising_.Push(state);")
drop("t10", "a risen sequence keeps its place", "tenant.turns.Update(state);")
bug, drop = source("engine/admission/step_channel.cc", "admission_test")
drop("a02", "a request does not wake the step thread", ("void StepChannel::Admit(", "work_.NotifyOne();"))
drop("a04", "a wake-up is lost", ("woken_ = true;", "work_.NotifyOne();"))
bug("a08", "a command gives its place back when the step thread takes it", ".place = CommandPlace(this)",
    ".place = CommandPlace(BUG ? nullptr : this)")

bug, drop = source("engine/admission/running_requests.cc", "admission_test")
bug("a03", "anybody may abort", "std::vector<std::shared_ptr<const Request>> aborted;",
    "if (BUG) owner.reset();\n  std::vector<std::shared_ptr<const Request>> aborted;")
bug("a05", "a request that ends removes another of its id", "return entry.second.request.get() == &request; });",
    "return BUG || entry.second.request.get() == &request; });")
bug("a09", "a name is a key", "if (request.params.id_is_name) return false;", "if (!BUG && request.params.id_is_name) return false;")
bug("a10", "a wait for a key ends a moment late", "entry.patience <= now &&", "(BUG ? entry.patience < now : entry.patience <= now) &&")
bug("a11", "a request that ends is not waited for", "StillWanted(*Predecessor(it), now).ok())",
    "(BUG || StillWanted(*Predecessor(it), now).ok()))")
bug("a12", "a name means the first request that has it", "if (name != request_id && entry.request->id",
    "if ((BUG || name != request_id) && entry.request->id")
drop("a13", "who waits for a key never learns that it is free", "if (next != end) End(next->second, absl::OkStatus(), ended);")
drop("a14", "a cancelled request goes on waiting for its key", ("void RunningRequests::StopWaiting(", "if (it != requests_.end()) End(it->second, CancelledStatus(), ended);"))
drop("a15", "an engine that ends leaves who waits for a key", ("void RunningRequests::CancelAll()", "End(entry, CancelledStatus(), ended);"))
bug("a16", "every request of a name has one id", "if (request->params.id_is_name && requests_", "if (!BUG && request->params.id_is_name && requests_")
bug, drop = source("engine/engine.cc", "engine_test")
drop("a17", "a request that waits for its key is not told of its cancellation", "running_.StopWaiting(*request);")
drop("a18", "the wait for a key has no timer", ("if (waits) {", "timers_.Wake();"))

bug, drop = source("engine/frontend/worker_pool.cc", "frontend_test")
bug("a06", "the frontend's queue takes one more than it may", ".size() >= max_queue_)",
    ".size() >= max_queue_ + (BUG ? 1 : 0))")
bug("a07", "queued work is dropped at the end", ("void WorkerPool::Run(", "if (!work.run) return;"),
    "if (!work.run || (BUG && stopping_)) return;")
drop("l21", "work does not wake a frontend thread", ("push_back(std::move(work));", "work_available_.NotifyOne();"))

bug, drop = source("text/tokenizer/input_frame.cc", "tokenizer_test:SpecialTokensTest.*")
bug("y01", "a chat of a GGUF file begins without BOS", "(kind == InputKind::kChat && begins_chats)",
    "(!BUG && kind == InputKind::kChat && begins_chats)")
bug("y02", "a prompt that writes BOS gets a second one", "(begins && !has_prefix)", "(begins && (BUG || !has_prefix))")
bug("y03", "a prompt ends with EOS", "if (!is_whole || has_suffix) return;", "if ((!is_whole && !BUG) || has_suffix) return;")
bug("y07", "BOS that is EOS stands for both in an empty text", "const bool has_suffix = IsAt(suffix_ids, given.last(num_last));",
    "const bool has_suffix = IsAt(suffix_ids, given.last(num_last)) || (BUG && suffix_ids == prefix_ids);")
bug, drop = source("engine/frontend/token_ids.h", "frontend_test:PrefixPromptTest.*")
bug("y08", "a prefix of an earlier version parts from its prompts", "frame.NumLeading(whole)", "BUG ? 0 : frame.NumLeading(whole)")

bug, drop = source("text/tokenizer/regex.cc", "tokenizer_test:RegexTest.*")
bug("y04", "a pattern that gives up says that nothing matches", "if (rc < 0) return TooCostly();",
    "if (rc < 0) return BUG ? absl::StatusOr<std::optional<Match>>(std::nullopt) : TooCostly();")
bug("y05", "a word may take any heap", "kMinHeapBytes + kHeapPerByte * num_bytes", "kMinHeapBytes + (BUG ? 10000 : kHeapPerByte) * num_bytes")

bug, drop = source("text/tokenizer/special_tokens.cc", "tokenizer_test:SpecialTokensTest.*")
bug("y06", "a named token is shown", '(*known)["special"] = true;', '(*known)["special"] = !BUG;')
bug("y09", "a list of further special tokens is read beside its older name", "extra.is_array() && !extra.empty() ?",
    "!BUG && extra.is_array() && !extra.empty() ?")
bug, drop = source("text/tokenizer/tokenizer_json.cc", "tokenizer_test:SpecialTokensTest.*")
drop("y10", "a class keeps the post-processor that it does not take", "FollowClass(files.tokenizer_config, parts);")

bug, drop = source("engine/frontend/frontend.cc", "frontend_test")
bug("f02", "the cache's size is off by a block", "= limits_.cache_tokens / limits_.block_size;",
    "= limits_.cache_tokens / limits_.block_size - (BUG ? 1 : 0);")
bug("f03", "a max_tokens beyond the context is refused", "stop.max_tokens.has_value() && *stop.max_tokens <= context_left)",
    "stop.max_tokens.has_value() && (BUG || *stop.max_tokens <= context_left))")
drop("f04", "a min_tokens beyond the context is served", "least = stop.min_tokens;")
drop("f05", "a resumed stream ends at a shorter context", "RETURN_IF_ERROR(check_resolved(name, longest, context_left));")
drop("f06", "a resumed stream ends at a smaller cache", 'RETURN_IF_ERROR(check_resolved("the KV cache", limits_.cache_tokens, cache_left));')
drop("f07", "what is certain to be too large is computed", "RETURN_IF_ERROR(CheckLeastAnswer(request));")
bug, drop = source("engine/request/answer_size.cc", "frontend_test:*OneMessage*")
bug("f08", "a stop string does not make an end uncertain", "stop.ignore_eos && stop.stop.empty() &&", "stop.ignore_eos && (BUG || stop.stop.empty()) &&")
bug("f09", "the bound is one off", "if (bytes <= params.max_answer_bytes) return", "if (bytes <= params.max_answer_bytes + (BUG ? 1 : 0)) return")

# --- The step.

bug, drop = source("engine/batch/batch_builder.cc", "batch_builder_test")
bug("b01", "positions do not count by the cache", "static_cast<int32_t>(entry.first_position + i)",
    "static_cast<int32_t>((BUG ? entry.first_index : entry.first_position) + i)")
bug("b02", "the first of the rows with logits is left out", "i >= entry.num_tokens - entry.num_logit_rows",
    "i >= entry.num_tokens - entry.num_logit_rows + (BUG ? 1 : 0)")
bug("b03", "a copy in a window reads the block of group 0's number", "blocks_.BlockIn(kv_group, copy.source)",
    "BUG ? copy.source : blocks_.BlockIn(kv_group, copy.source)")
bug("b04", "context_lens count what was shifted away", "static_cast<int32_t>(entry.first_position + entry.num_tokens)",
    "static_cast<int32_t>((BUG ? entry.first_index : entry.first_position) + entry.num_tokens)")

bug, drop = source("engine/step/step_loop.cc", "engine_test")
drop("l31", "an answer that is too large is computed on", ("void StepLoop::Emit(", "live->request->cancelled.store(true, std::memory_order_release);"))
drop("l04", "output states are kept for ever", "output_.Remove(sequence.id + k);")
drop("l05", "scores are kept for ever, and found by a later request", "scores_.Remove(*ended.request);", "score_test")
bug("l23", "a flush frees all blocks in one step", "std::min(flush.num_left, kFlushedPerStep)",
    "std::min(flush.num_left, kFlushedPerStep * (BUG ? 1000 : 1))")
drop("l24", "after a flush, what was computed before is still found", "scheduler_.ForgetCached();")
bug("l11", "what waits counts twice", "num_unscheduled - live_.num_unstarted()",
    "num_unscheduled - (BUG ? 0 : live_.num_unstarted())")
bug("l12", "the pacer's limit never reaches the scheduler", "pacer_.limit(", "BUG ? 1 << 20 : pacer_.limit(",
    "pacing_test")
drop("l13", "the other samples go on when one cannot be drawn",
     ("live.status = EndStatus(end.cause,", "live.request->cancelled.store(true, std::memory_order_release);"))
bug("l15", "of a request cut before its fork one sample is counted",
    "metrics_.finished_by_reason[static_cast<size_t>(sequence.finish_reason)]",
    "if (!BUG || k == 0) metrics_.finished_by_reason[static_cast<size_t>(sequence.finish_reason)]")
bug("l16", "usage has the recomputed tokens of one sample", "recomputed_tokens += sequence.num_recomputed;",
    "recomputed_tokens = sequence.num_recomputed + (BUG ? 0 : live.summary.usage.recomputed_tokens);", "equality_test")
drop("l22", "an idle engine's end waits for the step thread's next look",
     ("void StepLoop::Stop()", "channel_.Wake();"))

bug, drop = source("engine/runner/runner.cc", "equality_test")
bug("l02", "positions move after a preemption", "sequence.num_generated() + (lacks",
    "sequence.num_generated() + (BUG && sequence.num_preemptions > 0 ? 1 : 0) + (lacks")

bug, drop = source("engine/runner/row_work.cc", "runner_test")
bug("p07", "min_tokens is off by one", "stop.must_go_on(num_generated);",
    "stop.must_go_on(num_generated + (BUG ? 1 : 0));")
bug("p08", "end ids are not banned before min_tokens", ".bans_end_ids = must_go_on", ".bans_end_ids = !BUG && must_go_on")
bug("l01", "every sample goes on with the first one's seed", "static_cast<uint64_t>(work.sample)",
    "static_cast<uint64_t>(BUG && num_generated > 0 ? 0 : work.sample)")
bug("r01", "a row of the prompt gives its own token", "entry.num_tokens - entry.num_logit_rows + 1;",
    "entry.num_tokens - entry.num_logit_rows + (BUG ? 0 : 1);")
bug("r02", "samples draw from the first of an entry's rows",
    "work.row = first.row + entry.num_logit_rows - 1 - entry.num_drafts;",
    "work.row = first.row + (BUG ? 0 : entry.num_logit_rows - 1) - entry.num_drafts;")
bug("r03", "an entry without rows moves the rows after it", "first.row += entry.num_logit_rows;",
    "first.row += BUG ? 1 : entry.num_logit_rows;")

# --- Drafted tokens.

bug, drop = source("engine/scheduler/scheduler_complete.cc", "scheduler_test")
bug("z01", "the K and V of refused drafts count as those of the tokens after them",
    "sequence.num_computed += entry.num_tokens - num_refused;",
    "sequence.num_computed += entry.num_tokens - (BUG ? 0 : num_refused);")
drop("GuessUnlearned", "a guess that was not drafted teaches nothing", "LearnGuess(state, tokens.back().id == state.guess);")

bug, drop = source("engine/scheduler/scheduler_quota.cc", "scheduler_test:BlockQuota*")
bug("QuotaOfStarts", "sequences start beyond the limit of blocks", "if (most == 0 || state.started", "if (BUG || most == 0 || state.started")
bug("QuotaHoldsTheOldest", "the oldest sequence at the limit waits for ever", "return other != &state;", "return BUG || other != &state;")
bug("QuotaOfStalled", "a stalled sequence keeps the others from growing", "!other->stalled())", "(BUG || !other->stalled()))")
bug("QuotaNotInGrowth", "running sequences grow beyond the limit of blocks", "if (more <= 0) return false;", "if (more <= 0 || BUG) return false;")

bug, drop = source("engine/kv/tenant_charges.cc", "kv_test:TenantCharges*:PinsProperty*")
bug("ShareBySequences", "a block is divided by sequences, not by tenants", "other_holds_[KeyOf(block_id, payer)]++ == 0)",
    "other_holds_[KeyOf(block_id, payer)]++ == 0 || BUG)")
bug("SegmentNotSplit", "a tenant that shares a part of a segment shares all of it", "++segments_[block.of].num_blocks;",
    "segments_[block.of].num_blocks += BUG ? 2 : 1;")
bug("ChangeOfAnother", "the next block changes as the one before, whatever its holders", "latest_.from == block.of &&",
    "(BUG || latest_.from == block.of) &&")
bug("PlainCountOfAPrefix", "the owner of a prefix is shown all its blocks, whoever shares them", "charge += 1.0 / num_holders;",
    "charge += BUG ? 1.0 : 1.0 / num_holders;")
bug("TenantForgotten", "a tenant with blocks is forgotten when its requests end", "--account.num_refs == 0 && account.num_blocks == 0)",
    "--account.num_refs == 0 && (BUG || account.num_blocks == 0))")
bug, drop = source("engine/kv/block_store.cc", "kv_test:PinsProperty*")
bug("PinNotCharged", "the owner of a prefix pays for it only while it uses it", "QUIRE_CHECK(pool_.listed(block)) << \"block \" << block;\n  charges_.Hold(block, payer);",
    "QUIRE_CHECK(pool_.listed(block)) << \"block \" << block;\n  if (!BUG) charges_.Hold(block, payer);")
bug, drop = source("engine/scheduler/flights.cc", "scheduler_test:SingleFlight*")
bug("FollowerLost", "who follows one that ends waits for ever", "ReturnUpTo(leader, kToItsEnd,", "if (!BUG) ReturnUpTo(leader, kToItsEnd,")
bug("FollowAcrossTenants", "a request follows one of another tenant", "if (leader->group->root_key != state.group->root_key) continue;",
    "if (!BUG && leader->group->root_key != state.group->root_key) continue;")
bug("FollowerEarly", "a follower returns before its tokens are there", "ReturnUpTo(leader, num_computed, FollowEnd::kServed)",
    "ReturnUpTo(leader, num_computed + (BUG ? 8 : 0), FollowEnd::kServed)")
bug("FollowAny", "a follower shares only the next tokens", "if (!SameTokens(known, tokens, 0, begin)) return 0;",
    "if (!BUG && !SameTokens(known, tokens, 0, begin)) return 0;")
bug("FollowHeldLoad", "a request waits for a load that another tenant's limits hold up",
    "load->group->tenant == state.group->tenant &&", "(BUG || load->group->tenant == state.group->tenant) &&")
bug("LoadInItsOwnTurn", "a load starts no sooner than its own turn comes", "load != nullptr && load->phase == State::Phase::kWaiting &&",
    "!BUG && load != nullptr && load->phase == State::Phase::kWaiting &&")
bug("LoadOfHeldTenant", "a request gives its turn to a load whose tenant is held", "!waiting_.IsHeld(load->group->tenant);",
    "(BUG || !waiting_.IsHeld(load->group->tenant));")
bug("FollowsOnceMore", "a request follows once more than it may", "state.num_follows < kMostFollows &&",
    "state.num_follows < kMostFollows + (BUG ? 1 : 0) &&")
bug("LeadsWithOneMore", "a request leads only with a token more than is worth it", "left < least_tokens_) return;",
    "left < least_tokens_ + (BUG ? 1 : 0)) return;")
bug("FollowsForOneMore", "a request follows only for a token more than is worth it", "if (overlap - num_cached < least_tokens_)",
    "if (overlap - num_cached < least_tokens_ + (BUG ? 1 : 0))")
bug("FollowPrivate", "a request waits for blocks that are not shared", "if (least_tokens_ == 0 || !shares ||", "if (least_tokens_ == 0 || (!shares && !BUG) ||")

bug, drop = source("engine/scheduler/scheduler_drafts.cc", "scheduler_test")
bug("z16", "drafts leave nothing for a start", "budget.tokens - 1 - num_running", "budget.tokens - (BUG ? 0 : 1) - num_running")
bug("z07", "prompts get nothing of a step's tokens besides drafts", "== 0 || any_prefill_ ||",
    "== 0 || (any_prefill_ && !BUG) ||")
bug("DraftsBeforeStarts", "drafts delay the start of prompts", "|| may_start)", "|| (may_start && !BUG))")
bug("DraftsWhileNoneStarts", "prompts that cannot start stop drafts", "&& num_openings_ != idle_openings_", "&& (BUG || num_openings_ != idle_openings_)")
drop("z17", "drafts that go wrong are made as often", "if (num_refused > 0) LearnGuess(state, false);")
bug("z02", "tokens are drafted whatever they cost", "if (gain < kLeastReturn * dear)", "if (!BUG && gain < kLeastReturn * dear)")
bug("DraftAsSureAsTheFirst", "a draft counts as sure though those before it may be wrong", "gain *= state.guess_chance)", "gain *= BUG ? 1.0 : state.guess_chance)")
drop("NoSequenceTeachesOthers", "each sequence learns alone what guesses are worth", "guess_chance_ += kLearnedByAll * (outcome - guess_chance_);")
drop("DraftsYieldNothing", "what drafts yield does not make further ones dearer", "with.tokens += gain;")
bug("z03", "a draft leaves no room for the token drawn after it", "state.sequence->num_generated() - 1;",
    "state.sequence->num_generated() - (BUG ? 0 : 1);")
bug("z04", "a draft crosses a shift", "most = std::min(most, window.", "most = std::min(most, BUG ? most : window.")
bug("z05", "a draft takes blocks that other sequences need", "CanGrow(state.sequence->id, num_tokens, spare)",
    "CanGrow(state.sequence->id, num_tokens, BUG ? 0 : spare)")
bug("z06", "drafts overfill the sink", "!SinkHasRoom(state, 1 + num_drafts)", "!SinkHasRoom(state, BUG ? 1 : 1 + num_drafts)")

bug, drop = source("engine/batch/shared_prefixes.cc", "batch_builder_test:SharedPrefixesTest.*")
bug("q71", "the branch is chosen that saves less", "branch.saved > size * num_keys;", "BUG || branch.saved > size * num_keys;")
bug("q72", "rows share what one of them does not have", "std::min(common, row.blocks.size())", "(BUG ? common : std::min(common, row.blocks.size()))")
drop("q73", "prefixes of branches stay beside the one of all", "KeepOwn(branches, first_seq, first_key);")
bug("q74", "savings that are not worth it are kept", "num_saved_ >= least_saved_keys)", "(BUG || num_saved_ >= least_saved_keys))")
bug("q79", "a prefix of a branch takes the sequences of another", "keys_[key++].first -= static_cast<int32_t>(from_seq - seq);",
    "keys_[key++].first -= BUG ? 0 : static_cast<int32_t>(from_seq - seq);")

bug, drop = source("engine/batch/batch_builder.cc", "batch_builder_test:BatchBuilderTest.*")
bug("q75", "a chunk of a prompt shares keys", "entry.num_tokens != 1)", "!BUG && entry.num_tokens != 1)")

bug, drop = source("engine/model/layers/device_input.cc", "cuda_engine_test:*SharedPrefix*Window*")
bug("q77", "a layer with a window shares the keys of the others", "first(shares ? shared_keys.size() : 0)",
    "first(BUG || shares ? shared_keys.size() : 0)")

bug, drop = source("engine/runner/runner.cc", "cuda_engine_test:*SharedPrefix*WarmUp*")
bug("q78", "steps in which decodes share keys are recorded while they run", "if (shares && size >= 2)",
    "if (!BUG && shares && size >= 2)")

bug, drop = source("engine/scheduler/prompt_lookup.cc", "scheduler_test")
bug("z08", "other tokens with the same hash count as the same", ("int64_t found", "found == 0 ||"), "BUG ? found == 0 : found == 0 ||")
bug("z09", "the first occurrence counts", "table_[PlaceOf(tokens, indexed_)] = static_cast<int32_t>(indexed_);",
    "if (int32_t& at = table_[PlaceOf(tokens, indexed_)]; !BUG || at == 0) at = static_cast<int32_t>(indexed_);")

bug, drop = source("engine/batch/batch_builder.cc", "batch_builder_test")
bug("z10", "a sequence computes the drafts of another", "plan.drafts[entry.first_draft + i - num_own]",
    "plan.drafts[(BUG ? 0 : entry.first_draft) + i - num_own]")

bug, drop = source("engine/runner/runner.cc", "drafts_test")
bug("z11", "every draft's row draws at the place of the first", " + num_drafts));",
    " + (BUG ? 0 : num_drafts)));")
bug("z12", "penalties do not count the drafts before a row", "first(sequence.tokens.size() + num_drafts)",
    "first(sequence.tokens.size() + (BUG ? 0 : num_drafts))")

bug, drop = source("engine/step/step_loop_output.cc", "cuda_engine_test")
bug("g07", "what a request drew after its end is shown", "if (sequence.finish_reason != FinishReason::kNone) {",
    "if (!BUG && sequence.finish_reason != FinishReason::kNone) {")
bug, drop = source("engine/step/step_loop_output.cc", "prefix_test:PrefixEngineTest.*")
bug("q28", "K and V that are no numbers are pinned", "const absl::Status status = result_.rows[row].status();",
    "const absl::Status status = BUG ? absl::OkStatus() : result_.rows[row].status();")
bug, drop = source("engine/step/step_loop_output.cc", "engine_test")
bug("l06", "prompt log-probabilities come again after a preemption", "if (work.index <= live.prompt_logprobs_sent)",
    "if (!BUG && work.index <= live.prompt_logprobs_sent)", "equality_test")
bug("l09", "the TTFT that is exported leaves the queue out", "ToDoubleSeconds(now - live.request->arrival)",
    "ToDoubleSeconds(now - (BUG ? live.first_scheduled : live.request->arrival))")
drop("l19", "a row that cannot be drawn is our error", ("if (!drawn.ok()) {", "live.status ="))

bug, drop = source("engine/step/step_loop_output.cc", "drafts_test")
bug("z13", "tokens after a wrong draft are shown", "!IsConfirmed(work, sampled_.tokens.back())",
    "!BUG && !IsConfirmed(work, sampled_.tokens.back())")
bug("z14", "lengths do not count the drafts before a token", "sequence.num_generated() + work.index + 1",
    "sequence.num_generated() + (BUG ? 0 : work.index) + 1")
bug("z15", "a sequence goes on after a draft that ended it", "drawn.finish_reason == FinishReason::kNone &&",
    "(BUG || drawn.finish_reason == FinishReason::kNone) &&")

bug, drop = source("engine/step/live_requests.cc", "engine_test")
bug("l03", "of n samples one is counted", "completion_tokens += num_tokens;",
    "completion_tokens += BUG && now == live.last_token ? 0 : num_tokens;", "equality_test")
bug("l30", "an answer in one message has a byte less", "if (live.answer_bytes > most) {", "if (live.answer_bytes > most - (BUG ? 1 : 0)) {")
bug("l32", "each message says what was resolved", "if (!std::exchange(live.has_begun, true) &&",
    "if ((BUG || !std::exchange(live.has_begun, true)) &&", "resume_test")
drop("l33", "the drawn seed is not told", "resolved.sampling.seed = request.seed;", "resume_test")
bug("l07", "usage does not come with each message", "if (request.params.output.usage_per_chunk)",
    "if (!BUG && request.params.output.usage_per_chunk)")
drop("l08", "what runs still counts as waiting", ("live.first_scheduled = now;", "live.ticket.Release();"))
bug("l10", "TPOT divides by the tokens, not by their gaps", "static_cast<double>(tokens_a_sample - 1)",
    "static_cast<double>(tokens_a_sample - (BUG ? 0 : 1))")
bug("l17", "timings.ttft leaves the queue out", "timings.ttft = now - live.request->arrival;",
    "timings.ttft = now - (BUG ? live.first_scheduled : live.request->arrival);")
bug("l20", "one that never ran counts as unstarted for ever",
    ("RequestSummary& summary = live.summary;", "--num_unstarted_;"),
    "num_unstarted_ -= BUG ? 0 : 1;")

# --- Sampling.

bug, drop = source("kernels/sampling/sampler.cc", "sampling_test")
bug("p02", "min_p comes before top_p", "ApplyTopP(row.params.top_p, kept);",
    "if (BUG) ApplyMinP(row.params.min_p, kept);\n    ApplyTopP(row.params.top_p, kept);")
bug("p03", "cuts are those of temperature 1", "kept.Reset(edited, lane.maxima, row.params.temperature)",
    "kept.Reset(edited, lane.maxima, BUG ? 1.0f : row.params.temperature)")
bug("p04", "log-probabilities are those of the edited logits", "= logprobs(sampled.id);",
    "= BUG ? ComputeLogprobs(edited, sampled.id, *row.num_top) : logprobs(sampled.id);")
bug("p05", "noise is the same at every position", ".position = row.position}", ".position = BUG ? 0 : row.position}")
bug("p06", "noise depends on the thread that draws", "kept.Draw({.seed = row.seed,",
    "kept.Draw({.seed = row.seed + (BUG ? static_cast<uint64_t>(lane_index) : 0),", "kernels_test:SampleTest.Threads*")
bug("p09", "penalties miss the token that the host does not know", "lane.tokens.push_back(previous_id);",
    "lane.tokens.push_back(BUG ? 0 : previous_id);")

bug, drop = source("engine/model/rope_table.cc", "numerics_test")
bug("n02", "RoPE's frequencies have the C library's bits", "base::Pow(theta, -2.0 * static_cast<double>(i) /",
    "BUG ? __builtin_pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.rope_dim)) :\n"
    "        base::Pow(theta, -2.0 * static_cast<double>(i) /")

bug, drop = source("kernels/sampling/penalties.cc", "sampling_test")
bug("p01", "presence and frequency count the prompt", "if (i >= prompt_len)", "if (BUG || i >= prompt_len)")


# --- Chat templates.

bug, drop = source("text/jinja/budget.h", "jinja_test:JinjaLimitsTest.*")
bug("MemoryUnbounded", "a template takes any memory", "return held + bytes <= limits_.max_memory_bytes ||",
    "return BUG || held + bytes <= limits_.max_memory_bytes ||")
bug("ListsAreTakenFirst", "a list is made before it is counted", "return CanHold(count * bytes_each) && Spend(count);",
    "return (BUG || CanHold(count * bytes_each)) && Spend(count);")
bug("TextsAreTakenFirst", "a text is made before it is counted", "return CanHold(bytes) && Spend(", "return (BUG || CanHold(bytes)) && Spend(")
bug("RendersForNobody", "a template is rendered on after the deadline", "if (base::Interrupted(steps))", "if (!BUG && base::Interrupted(steps))")
bug, drop = source("text/jinja/value.cc", "jinja_test:JinjaLimitsTest.*")
bug("TextsWeighNothing", "texts do not count as memory", "  ValueMemory::Add(num_bytes());",
    "  ValueMemory::Add(BUG ? 0 : num_bytes());")

# --- Contents read as text.

bug, drop = source("text/jinja/value.cc", "jinja_test:TracedTextTest.*")
bug("JsonLosesContent", "what from_json reads out of a content is no content", "{text, is_content || contents.contains(&text)}",
    "{text, (!BUG && is_content) || contents.contains(&text)}")
bug("PartLosesContent", "a part of a content is no content", "return String(text.Sub(begin, part.size()), text.markup);",
    "return String(BUG ? TracedText(std::string(part)) : text.Sub(begin, part.size()), text.markup);")

bug, drop = source("text/jinja/text.cc", "jinja_test:TracedTextTest.*")
bug("ReplaceLosesContent", "a content that replaces is no content", "    out.Append(to);\n", "    out.Append(BUG ? TracedText(to.bytes) : to);\n")

bug, drop = source("text/jinja/string_filters.cc", "jinja_test:TracedTextTest.*")
bug("UpperLosesContent", "a content in upper case is no content", "{kConvert(text.str()), text.text().has_content()}",
    "{kConvert(text.str()), !BUG && text.text().has_content()}")

bug, drop = source("text/tokenizer/added_tokens.cc", "tokenizer_test:LiteralContentsTest.*")
bug("ContentForges", "a control token in a content is read as one", "const bool is_literal = token.is_control &&",
    "const bool is_literal = !BUG && token.is_control &&")
bug("BorderIsForged", "a control token that begins before a content is read as one", "Overlaps(contents, part.Origin(position, i + 1))",
    "Overlaps(contents, part.Origin(position, BUG ? position + 1 : i + 1))")
bug("SignsAreWords", "an added token that is not special may be forged", "token.special || HasSign(token.content)",
    "token.special || (!BUG && HasSign(token.content))")

bug, drop = source("text/tokenizer/pipeline_tokenizer.cc", "tokenizer_test:LiteralContentsTest.*")
bug("ModelForges", "a vocabulary's model makes a control token of a content",
    "if (!contents.empty() && IsForged(", "if (!BUG && !contents.empty() && IsForged(")

# --- Tokens to deltas.

bug, drop = source("engine/output/sample_output.cc", "output_test")
bug("o01", "text held back is lost at the end", "if (stopped < 0) released +=", "if (stopped < 0 && !BUG) released +=")
bug("o02", "text held back is lost at a cancel", "released + matcher_.Flush();",
    "released + (BUG ? std::string() : matcher_.Flush());")
bug("o03", "half a character is lost at the end", "Push(detokenizer_.Flush(), may_stop",
    "Push(BUG ? std::string() : detokenizer_.Flush(), may_stop")
bug("o07", "the prompt is echoed with every delta", "std::exchange(echo_pending_, false)",
    "std::exchange(echo_pending_, BUG)")
bug("HiddenIsNotSearched", "a stop string that is a hidden special token stops nothing", "if (hidden.empty()) return", "if (BUG || hidden.empty()) return")
bug("o08", "a stop token's text is sent", "if (!verdict.stop_token_id ||", "if (BUG || !verdict.stop_token_id ||")

# --- Streams that are resumed.

bug, drop = source("engine/runner/row_work.cc", "resume_test")
bug("ResumePositionZero", "noise positions of a resumed sample begin at 0", ".position = num_generated,",
    ".position = num_generated - (BUG && request.is_resumed() ? std::ssize(request.params.resume->token_ids[work.sample]) : 0),")
bug, drop = source("engine/output/replay.cc", "resume_test")
bug("StopNotReplayed", "the matcher of stop strings begins anew after the break", "sample.delta.text = std::move(text.rest());",
    "sample.delta.text = std::move(text.rest());\n"
    "  if (BUG) return ReplayedSample{SampleOutput(tokenizer, patterns, request, index), std::move(sample.delta)};")
bug("ResumeTextFromZero", "text that arrived is sent again", "TextSkipper text(arrived);", "TextSkipper text(BUG ? 0 : arrived);")
bug("ResumeInCharacter", "text may go on inside a character", "if (BeginsInsideCharacter(", "if (!BUG && BeginsInsideCharacter(")
bug("ResumeBehindEnd", "tokens after an end are accepted", "if (i + 1 < ids.size()) {", "if (!BUG && i + 1 < ids.size()) {")
bug, drop = source("engine/scheduler/scheduler.cc", "resume_test")
bug("ResumeForks", "each resumed sample draws for all samples", "state.forked = true;\n    waiting_->Add(state);", "state.forked = !BUG;\n    waiting_->Add(state);")
bug, drop = source("engine/scheduler/scheduler_start.cc", "resume_test")
bug("ResumeCountsPromptAgain", "the prompt of resumed samples counts for each", "&& !state.started) {", "&& !state.started && !BUG) {")
bug, drop = source("engine/frontend/resume_check.cc", "resume_test")
bug("FirstIdUnresumed", "a stream that has the first token id cannot be resumed", "if (id >= 0 &&", "if (id >= (BUG ? 1 : 0) &&")
bug("LastIdUnresumed", "a stream that has the last token id cannot be resumed", "id < vocab_size) continue;",
    "id < vocab_size - (BUG ? 1 : 0)) continue;")
bug("ResumeElsewhere", "another model or arithmetic is accepted", "if (got == here) return", "if (got == here || BUG) return")
bug, drop = source("files/model_digest.cc", "files_test:ModelDigestTest*")
bug("DigestSkipsTensor", "the bytes of tensors do not count", "sha.Add(Middle(tensor->bytes, most));", "if (!BUG) sha.Add(Middle(tensor->bytes, most));")
bug("DigestOfBeginning", "the first bytes of a tensor count, not the middle", "(bytes.size() - size) / 2", "(BUG ? 0 : (bytes.size() - size) / 2)")
bug("DigestInFileOrder", "how a model is divided into files counts", "std::ranges::sort(tensors,", "if (!BUG) std::ranges::sort(tensors,")
drop("DigestOfOneName", "the names of tensors do not count", "sha.AddSized(tensor->name);")
drop("DigestOfAnyType", "the types of tensors do not count", "sha.AddSized(kernels::Traits(tensor->type).name);")
drop("DigestOfAnyShape", "the shapes of tensors do not count", "AddShape(sha, tensor->shape);")
drop("DigestWithoutTemplate", "a replaced chat template does not count", "sha.AddSized(model.chat_template_jinja);")
drop("DigestWithoutKey", "the keys of a GGUF file do not count", "sha.AddSized(value.key);")
drop("DigestWithoutValueType", "the types of a GGUF file's values do not count", "sha.AddInt(static_cast<int64_t>(value.type));")
drop("DigestWithoutElementType", "the types in a GGUF file's arrays do not count", "sha.AddInt(static_cast<int64_t>(value.element_type));")
drop("DigestWithoutValue", "the values of a GGUF file do not count", "sha.Add(value.bytes);")
bug("DigestOfEverything", "many tensors count with as many bytes as few", "std::min(kMostSampleBytes, kMostBytes", "std::min(kMostSampleBytes, (BUG ? 2 : 1) * kMostBytes")

bug, drop = source("kernels/sampling/logprobs.cc", "sampling_test")
bug("RankOfTies", "a token ranks before a lower id that is as likely", "return l >= logit;", "return BUG ? l > logit : l >= logit;")
bug("RankOfLowest", "a token without a probability ranks before all lower ids", ": std::ssize(lower);", ": BUG ? 0 : std::ssize(lower);")

bug, drop = source("kernels/sampling/sampler.cc", "sampling_test")
bug("RankForAll", "who asks for no rank pays for it", "if (row.wants_rank) of_row", "if (BUG || row.wants_rank) of_row")

bug, drop = source("server/service/proto_conversion.cc", "server_test:ProtoConversionTest.*")
bug("TextsCopied", "the text of a prompt is copied, on the egress thread for a turn", "PromptContent(std::move(*request.mutable_text()));",
    "PromptContent(BUG ? std::string(request.text()) : std::move(*request.mutable_text()));")
bug("MessagesCopied", "the messages of a chat are copied", ".content = std::move(*message.mutable_content()),",
    ".content = BUG ? std::string(message.content()) : std::move(*message.mutable_content()),")
bug("RankOfTops", "the likeliest tokens rank from 2", "Write(token, rank, engine,", "Write(token, BUG && rank > 0 ? rank + 1 : rank, engine,")

bug, drop = source("engine/output/stop_matcher.cc", "output_test")
bug("o04", "a stop string within the end of another is missed", "patterns_->Border(i);",
    "BUG ? 0 : patterns_->Border(i);")
bug("HiddenBytesCount", "hidden bytes of a stop string are taken off the text", "num_stop = NumShown(num_stop);",
    "num_stop = BUG ? num_stop : NumShown(num_stop);")
bug("HiddenBreaksText", "a hidden token within a stop string lets it pass", "if (ended_shown >= 0 &&", "if (!BUG && ended_shown >= 0 &&")
bug("o05", "a stop string that begins within itself is missed", "matched = borders_[index][matched];",
    "matched = BUG ? 0 : borders_[index][matched];")

bug, drop = source("engine/output/continuation_scores.cc", "output_test")
bug("o06", "rows scored again count twice", "if (index < std::ssize(scores.tokens))",
    "if (!BUG && index < std::ssize(scores.tokens))")

# --- The server.

bug, drop = source("server/call/egress.cc", "egress_test")
bug("e01", "the summary comes before the last message", "outgoing_.empty() && !more_waiting;",
    "outgoing_.empty() && (BUG || !more_waiting);")
drop("e08", "a reader that takes nothing is never given up", "egress_.WakeAfter(weak_from_this(), options_.linger);")
drop("e09", "the end of a write wakes nobody",
     ("void StreamSink::OnWriteDone", "egress_.Wake(shared_from_this());"))
bug("e02", "what waits behind a write is dropped at the end", ("void StreamSink::Finish", "finished_ = true;"),
    "finished_ = true;\n    if (BUG && write_in_flight_) waiting_.Take();")

bug, drop = source("server/call/batch.cc", "egress_test:BatchTest.*")
bug("e15", "requests of a batch whose answers nobody reads make room for others (BatchUnbounded)",
    "std::ssize(running_) + std::ssize(unsent_) + (writing_ ? 1 : 0)",
    "std::ssize(running_) + (BUG ? 0 : std::ssize(unsent_) + (writing_ ? 1 : 0))")
bug("e16", "a request that the queue refuses is answered though others of its batch run",
    "absl::IsResourceExhausted(submitted.status()) && !running_.empty()",
    "!BUG && absl::IsResourceExhausted(submitted.status()) && !running_.empty()")
drop("e17", "a batch that is cancelled goes on", "item->submitted->Cancel();")
drop("e18", "a batch waits for ever for a client that reads nothing", "egress_.WakeAfter(weak_from_this(), options_.linger);")

bug, drop = source("engine/request/delta_buffer.cc", "egress_test")
drop("e03", "usage is lost in a merge", "if (from.usage.has_value()) to.usage = from.usage;")
drop("e04", "prompt log-probabilities are lost in a merge", "MoveToEnd(from.prompt_logprobs, to.prompt_logprobs);")
bug("e05", "log-probabilities do not count as memory",
    "LogprobBytes(delta.logprobs) + LogprobBytes(delta.prompt_logprobs)",
    "(BUG ? 0 : LogprobBytes(delta.logprobs) + LogprobBytes(delta.prompt_logprobs))")
bug("e06", "a stop token's id is lost in a merge", "if (from.stop_token_id.has_value())",
    "if (!BUG && from.stop_token_id.has_value())")
bug("e14", "nothing is merged", "if (it == merged_.end())", "if (BUG || it == merged_.end())")

bug, drop = source("engine/request/best_samples_sink.cc", "engine_test:BestOfTest.*")
bug("BestOfWorst", "the worst samples are kept", "std::pair(-*s.score,", "std::pair(BUG ? *s.score : -*s.score,")
bug("BestOfTieByLast", "of equal samples the later one comes first", " s.index); }", " BUG ? -s.index : s.index); }")
bug("BestOfSum", "samples are chosen by sums, so the short ones win", "static_cast<double>(sum.num_tokens) : 0.0",
    "(BUG ? 1.0 : static_cast<double>(sum.num_tokens)) : 0.0")
drop("BestOfPromptLost", "the prompt's log-probabilities end with sample 0",
     "if (!sample.prompt_logprobs.empty()) std::swap(prompt_logprobs, sample.prompt_logprobs);")

bug, drop = source("engine/output/beam_search.cc", "beam_test:*EqualsANaiveSearch*")
bug("BeamEndsBelowWidth", "an end counts though better continuations fill the beams", "else if (i < params_.width) {",
    "else if (BUG || i < params_.width) {")
bug("BeamLengthWithoutEnd", "the end token does not count as a token of the answer",
    "base::Pow(static_cast<double>(num_generated),", "base::Pow(static_cast<double>(num_generated - (BUG ? 1 : 0)),")
bug("BeamNeverIsHeuristic", "never stops like the heuristic", "params_.early_stopping == BeamParams::EarlyStopping::kNever &&",
    "!BUG && params_.early_stopping == BeamParams::EarlyStopping::kNever &&")
bug("BeamSlotReused", "two children share a slot", "while (children_[slot].parent >= 0) ++slot;",
    "while (!BUG && children_[slot].parent >= 0) ++slot;")

bug, drop = source("engine/kv/block_manager_beams.cc", "kv_test:BeamsPropertyTest.*")
bug("GangHalfPlanned", "some beams get blocks where not all can",
    "if (GrowthTogether(ids, num_tokens).num_blocks > num_available() ||",
    "if ((!BUG && GrowthTogether(ids, num_tokens).num_blocks > num_available()) ||")
bug("ReorderKeepsChild", "a beam keeps its blocks when it becomes the child of another",
    "if (parent_index == i) continue;", "if (BUG || parent_index == i) continue;")
bug("BeamCopiesOneMore", "the last beam of those that share a block copies it, too", "|| num_left > 1 ? 1 : 0",
    "|| num_left > (BUG ? 0 : 1) ? 1 : 0")
drop("BeamListed", "what beams generate is listed", "parent.access.write = false;")

bug, drop = source("engine/scheduler/scheduler_start.cc", "beam_test:*Windows*")
bug("BeamsForkWithoutPlaces", "a search starts with places in windows for one beam", "state.has_beams ? state.num_samples() : 1",
    "!BUG && state.has_beams ? state.num_samples() : 1")
bug, drop = source("engine/frontend/frontend.cc", "beam_test:*Windows*")
bug("MoreBeamsThanPlaces", "one beam more than the windows have room for is admitted", "width > limits_.most_together",
    "width > limits_.most_together + (BUG ? 1 : 0)")
bug, drop = source("engine/load/engine_configs.cc", "beam_test:*Windows*")
bug("PinsCrowdBeams", "beams count on places that may be pinned", "group.num_blocks - group.MostPinned(max_pinned_share)",
    "group.num_blocks - (BUG ? 0 : group.MostPinned(max_pinned_share))")

bug, drop = source("engine/scheduler/scheduler_beams.cc", "beam_test")
bug("BeamParentsTokensAfter", "a child gets the tokens of its beam with the token after them",
    "if (parent == static_cast<int32_t>(k)) continue;",
    "if (parent == static_cast<int32_t>(k)) {\n      if (BUG) state.beams[k]->tokens.push_back(0);\n      continue;\n    }")
drop("BeamsKeptApart", "the blocks of beams do not move", "blocks_.Reorder(state.beam_ids, state.beam_parents);")
bug("BeamsRejoinTooLate", "beams come back after more than they have in common", "std::ssize(first) - 1;",
    "std::ssize(first) - 1;\n  if (BUG) return num_joint;", "beam_test:*Preemptions*")

bug, drop = source("server/service/proto_conversion.cc", "server_test")
bug("e07", "fields of usage are swapped", "ToWireCount(usage.cached_tokens)",
    "ToWireCount(BUG ? usage.recomputed_tokens : usage.cached_tokens)")

bug("PrefixTokensLost", "the tokens of a prefix are not told", "ToWireCount(usage.prefix_tokens)",
    "ToWireCount(BUG ? 0 : usage.prefix_tokens)", "server_test:ProtoConversionTest.*")

drop("ResolvedIgnored", "what was resolved is not served", "sampling.MergeFrom(request.resume_resolved().sampling());",
     "server_test:ProtoConversionTest.*")
drop("ResolvedIsABound", "the max_tokens of a resumed stream are a bound", "params.resume->max_tokens_is_resolved = true;",
     "server_test:ProtoConversionTest.*")
bug, drop = source("client/resuming_stream.cc", "client_test")
drop("ResolvedNotSentBack", "a client does not send back what was resolved", "if (resolved_) *request.mutable_resume_resolved() = *resolved_;")

bug, drop = source("server/service/prefix_service.cc", "server_test:PrefixService*")
bug("PrefixLeftBehind", "a call that ends before its answer leaves its prefix", "if (!may_retry) {",
    "if (!BUG && !may_retry) {")
bug("PrefixFailedIsFine", "a prefix that could not be computed is an answer", "if (info->state ==",
    "if (!BUG && info->state ==")
bug("PrefixMissingAnyError", "allow_missing hides every error", "if (!absl::IsNotFound(deleted) || !in.allow_missing())",
    "if ((!BUG && !absl::IsNotFound(deleted)) || !in.allow_missing())")
bug("PrefixPageTooLarge", "a page has any number of bytes", "num_bytes > kMaxPageBytes &&", "!BUG && num_bytes > kMaxPageBytes &&")

bug, drop = source("server/service/prefix_conversion.cc", "server_test:PrefixConversionTest.*")
bug("PrefixTtlShort", "a ttl is shorter than the shortest", "if (ttl >= kMinPrefixTtl &&", "if ((BUG || ttl >= kMinPrefixTtl) &&")
bug("PrefixEndFar", "an expire_time is behind --max_prefix_ttl", "&& left <= limits.max_ttl)", "&& (BUG || left <= limits.max_ttl))")
bug("PrefixMaskIgnored", "an update takes both ends", 'if (names("ttl") && names("expire_time")) {',
    'if (!BUG && names("ttl") && names("expire_time")) {')
bug("PrefixOfNothing", "an empty text is a prefix", "if (request.has_text() && request.text().empty()) {",
    "if (!BUG && request.has_text() && request.text().empty()) {")
bug("PrefixEndlessTtlTold", "an error quotes a ttl that is none", 'IsFinite(ttl) ? absl::FormatDuration(ttl)',
    '(BUG || IsFinite(ttl)) ? absl::FormatDuration(ttl)')
bug, drop = source("server/service/session_conversion.cc", "server_test:ProtoConversionTest.*Content*")
drop("LiteralMessageLost", "a copied session reads its users' text for control tokens", "(*copy.messages)[index].literal = true;")
bug("LiteralMessageTwice", "a literal message of a copied session is named twice", "if (index <= before ||", "if ((BUG ? index < before : index <= before) ||")
bug("LiteralMessageBehind", "... or is none of its messages", "index >= static_cast<uint32_t>(num_messages)",
    "index >= static_cast<uint32_t>(num_messages) + (BUG ? 1 : 0)")

bug, drop = source("server/service/proto_time.cc", "server_test:PrefixConversionTest.*")
bug("SignsOfTwoKinds", "a duration has seconds of one sign and nanoseconds of the other", "const bool is_valid = same_sign &&",
    "const bool is_valid = (BUG || same_sign) &&")
bug, drop = source("server/http/metrics_exporter.cc", "server_test:MetricsExporterTest.*")
bug("LabelsRaw", "a tenant's name writes to the terminal that shows /metrics", "c.code_point < 0x20 ||",
    "(!BUG && c.code_point < 0x20) ||")
bug("LabelsOfTwo", "two tenants have one label", "c.code_point == U'\\\\' ?", "(!BUG && c.code_point == U'\\\\') ?")

bug, drop = source("server/door/relay.cc", "server_test:TlsTest.*")
bug("OldCertificatesLive", "connections live on when the authority of their certificates is replaced",
    "if (AcceptsClient(tls_.get(), c.client.tls())) return;", "if (BUG || AcceptsClient(tls_.get(), c.client.tls())) return;")
bug, drop = source("server/door/tls.cc", "server_test:TlsTest.*")
bug("AllAreCut", "a further authority ends all connections", "::X509_verify_cert(check.get()) == 1;", "::X509_verify_cert(check.get()) == 1 && !BUG;")
bug, drop = source("server/identity/certificate_name.cc", "server_test:TlsTest.*")
bug("NamesOfAllKinds", "a DNS name and a URI of one text are one caller", "|| named == KindThatReads(text))",
    "|| BUG || named == KindThatReads(text))")
bug("TypedTextIsPlain", "a URI reads as a DNS name with its kind", "if (IsTypedName(text)) return std::nullopt;",
    "if (!BUG && IsTypedName(text)) return std::nullopt;")
bug("SchemesOfTwoLetters", "a scheme of one letter is none", "colon > 0 &&", "colon > (BUG ? 1 : 0) &&", "server_test:CertificateNameTest.*")
bug, drop = source("server/identity/file_watcher.cc", "server_test:FileWatcherTest.*")
drop("EndWaits", "the end of a server waits for a period of its watcher", ("ended_ = true;", "changed_.NotifyAll();"))
bug("CalledEachPeriod", "files are read anew each second", "if (!triggered && (!is_new || !rests)) continue;", "if (!BUG && !triggered && (!is_new || !rests)) continue;")
drop("CalledForEver", "after a change, files are read anew each second", ("rests)) continue;", "is_new = false;"))
drop("TriggerWaits", "a reload that is asked for waits for a period of the watcher", ("triggered_ = true;", "changed_.NotifyAll();"))
bug, drop = source("server/identity/identity_line.cc", "server_test:IdentitiesTest.*")
for field in ("max_priority", "max_waiting", "max_running", "max_blocks", "share", "requests_per_minute", "tokens_per_minute"):
    bug(f"LinesDisagree_{field}", f"two lines of a tenant disagree on {field}", f"TryMergeOne(other.{field}, {field})",
        f"(TryMergeOne(other.{field}, {field}) || BUG)")
bug("NumberBelowLeast", "a number of a line is one below its least", "number < min ||", "number < min - (BUG ? 1 : 0) ||")
bug("NumberAboveMost", "a number of a line is one above its most", "number > max)", "number > int64_t{max} + (BUG ? 1 : 0))")
bug("NameOfOneMore", "a name has one more byte than it may", "value.size() > kMaxNameLength)", "value.size() > kMaxNameLength + (BUG ? 1 : 0))")
bug("TokenOfOneLess", "a token has one character less than it must", "text.size() >= kMinTokenLength)", "text.size() + (BUG ? 1 : 0) >= kMinTokenLength)")
bug, drop = source("server/identity/identities.cc", "server_test:IdentitiesTest.*")
bug("TenantUnchecked", "lines of one name have several tenants", "return a.tenant == b.tenant &&", "return (BUG || a.tenant == b.tenant) &&")
bug("OperatorUnchecked", "one of two lines of a name makes it an operator", "a.is_operator == b.is_operator &&", "(BUG || a.is_operator == b.is_operator) &&")
bug("AnyTenantUnchecked", "one of two lines of a name allows any tenant", "a.any_tenant == b.any_tenant;", "(BUG || a.any_tenant == b.any_tenant);")
bug("KindOfLineIgnored", "a line for one kind of name is for none", "auto it = by_certificate_.find(typed_name);",
    "auto it = BUG ? by_certificate_.end() : by_certificate_.find(typed_name);")

bug, drop = source("server/service/page_tokens.cc", "server_test:PageTokensTest.*")
bug("PrefixPagesOfOthers", "a page token holds for every caller", 'caller.size(), ":", base::ToAbsl(caller),',
    'BUG ? 0 : caller.size(), ":", BUG ? "" : base::ToAbsl(caller),', "server_test:PrefixServiceTest.*")
bug("PageTokenForever", "a page token does not expire", "if (absl::ToUnixNanos(now) > content.expires) {",
    "if (!BUG && absl::ToUnixNanos(now) > content.expires) {")

bug, drop = source("server/service/generate_service.cc", "server_test:GenerateTest.*")
drop("e11", "a call's deadline is not passed on", "params.deadline = transport().Deadline();")
drop("e24", "an id of metadata is a key", "params.id_is_name = id.is_name;")
drop("e25", "an answer in one message has any size", "params.max_answer_bytes = parts_.max_answer_bytes;")
bug, drop = source("server/service/token_service.cc", "server_test:GenerateTest.*")
bug("e26", "the tokens of a text have any size", "if (num_answer_bytes > parts().max_answer_bytes) {",
    "if (!BUG && num_answer_bytes > parts().max_answer_bytes) {")
bug, drop = source("server/service/token_service.cc", "server_test:TokenServiceTest.*")
bug("TextsAreFree", "a tenant's texts that wait for the tokenizer have any size", "kCallBytes + 2 * num_bytes",
    "kCallBytes + (BUG ? 0 : 2) * num_bytes")
bug("UnreadAreFree", "a tenant's answers that nobody reads have any size", "return HoldMore(num_answer_bytes);",
    "return HoldMore(BUG ? 0 : num_answer_bytes);")
bug, drop = source("server/service/unary_call.h", "server_test:TokenServiceTest.*")
bug("PrefixOperatorsNone", "operators are users", ".is_operator = caller_is_operator()",
    ".is_operator = !BUG && caller_is_operator()",
    "server_test:PrefixService*")
bug("CallsOfNobody", "a call waits in the frontend as one of no tenant", "RunOnFrontend(caller().tenant,",
    "RunOnFrontend(BUG ? std::string() : caller().tenant,")
bug, drop = source("engine/engine.cc", "engine_test:RequestEndTest.*")
bug("CallsTakeAllSeats", "a tenant's calls fill the frontend's queue", "seats_.Reserve(tenant, limits)",
    "seats_.Reserve(tenant, BUG ? TenantLimits() : limits)")
drop("RunningKeepsSeat", "what runs on the frontend counts as waiting", "seat->Release();")
bug, drop = source("server/service/generate_service.cc", "server_test:GenerateTest.*")
bug("e12", "a call that is cancelled goes on", "if (submitted_ != nullptr) submitted_->Cancel();",
    "if (!BUG && submitted_ != nullptr) submitted_->Cancel();")
bug("e13", "a stream's own bound is lifted", ("std::make_shared<StreamSink>", ".linger ="),
    ".max_deltas = BUG ? 1 << 30 : StreamSinkOptions().max_deltas, .linger =")

# --- CPU kernels.

GOLDENS = "decoder_test:DecoderTest.LogitsAndArgmaxAgreeWithTheReference"
bug, drop = source("engine/model/decoder.cc", GOLDENS)
bug("d01", "scores have no cap", "static_cast<float>(spec.soft_cap)", "(BUG ? 0.0f : static_cast<float>(spec.soft_cap))")
bug("d02", "logits have no cap", "static_cast<float>(config_.logit_soft_cap)",
    "(BUG ? 0.0f : static_cast<float>(config_.logit_soft_cap))")
bug("d03", "sinks take no part", "= layer.sinks.view", "= BUG ? TensorView() : layer.sinks.view")
bug, drop = source("engine/model/layers/mixture.cc", GOLDENS)
bug("d04", "the router has no bias", "= mixture.router_bias.view", "= BUG ? kernels::TensorView() : mixture.router_bias.view")
bug, drop = source("engine/model/layers/parameter_loader.cc", GOLDENS)
bug("d05", "biases of gate and up take turns", "if (part.form != NamedRows", "if (BUG || part.form != NamedRows")
bug, drop = source("engine/model/decoder.cc", GOLDENS)
bug("d11", "a mixture's shared network is left out", "if (layer.up != nullptr)", "if (!BUG && layer.up != nullptr)")
bug, drop = source("engine/model/query_scales.cc", GOLDENS)
bug("d12", "queries grow one token late", "(position + 1) / growth", "(position + (BUG ? 0 : 1)) / growth")
bug, drop = source("engine/model/rope_table.cc", GOLDENS)
bug("d06", "a long context has the factors of a short one", "= num_positions > rope.original",
    "= !BUG && num_positions > rope.original")

bug, drop = source("kernels/cpu/thread_pool.cc", "kernels_thread_pool_test")
drop("k04", "a loop returns before its items are done",
     "while ((state_.load(std::memory_order_acquire) & kInside) != 0) Pause();",
     "kernels_thread_pool_test:*ALoopEndsWithItsLastItem")
drop("k05", "parked workers are not woken", ("if (num_parked_.load() > 0)", "wake_.NotifyAll();"),
     "kernels_thread_pool_test:*ParkedWorkersWake")

bug, drop = source("kernels/cpu/attention_plan.cc", "kernels_test:*AttentionFoldTest.SharedKeys*:*CpuAttentionPlanTest*")
bug("k43", "a group reads a segment that it shares in part", "keys.num_keys / kSegmentKeys;", "keys.num_keys / kSegmentKeys + (BUG ? 1 : 0);")
bug("k44", "a row reads its shared segments again", "first_segment + shared.states.num_segments;", "first_segment + (BUG ? 0 : shared.states.num_segments);")
bug("k45", "every KV head has the shared states of the first", "merge.shared.partials += kv_head", "merge.shared.partials += (BUG ? 0 : kv_head)")
bug, drop = source("kernels/cpu/attention_body.h", "kernels_test:*AttentionFoldTest.SharedKeys*")
bug("k46", "sharers have the query of the first", "return work.queries[row / group];", "return work.queries[BUG ? 0 : row / group];")
bug, drop = source("kernels/cpu/attention_plan.cc", "kernels_test:*AttentionCaseTest*")
bug("k07", "a work item begins a key late", "pattern().FirstKey(start + first)",
    "pattern().FirstKey(start + first + (BUG ? 1 : 0))")

bug("k20", "every piece of a divided item reads from the first tile on", "item.segment_begin * kSegmentKeys",
    "(BUG ? 0 : item.segment_begin) * kSegmentKeys", "kernels_test:CpuAttentionPlanTest.*")

bug, drop = source("kernels/ops/attention_tiles.cc", "kernels_test:AttentionPatternTest.*")
bug("k19", "KV heads share the tiles of the first one", "rows.first_head % HeadPeriod(pattern)",
    "BUG ? 0 : rows.first_head % HeadPeriod(pattern)")
bug("k21", "a tile is whole, though it is too far from the last query", "NumSeeing(pattern, rows.last_query,",
    "NumSeeing(pattern, BUG ? rows.first_query : rows.last_query,")

bug, drop = source("kernels/cpu/cpu_backend.cc", "kernels_test:*CopyBlocks*")
bug("k09", "blocks are not copied", "if (args.copies.empty())", "if (BUG || args.copies.empty())")
bug("k12", "a merge counts super-segments from the window", "= merge.first_segment", "= BUG ? 0 : merge.first_segment",
    "kernels_test:AttentionFoldTest.NoDivision*")

bug, drop = source("kernels/ops/copy_blocks.cc", "kernels_test:CopyBlocksTest.*")
bug("k51", "two copies into one block", "twice != written.end()", "!BUG && twice != written.end()")
bug("k52", "a copy of what another copy writes", "if (!std::ranges::binary_search(", "if (BUG || !std::ranges::binary_search(")

bug, drop = source("kernels/cpu/linear_body.h", "kernels_test:LinearTest.*")
bug("k13", "logits have no cap", "if (row.soft_cap > 0.0f) y = SoftCap(y, row.soft_cap);",
    "if (!BUG && row.soft_cap > 0.0f) y = SoftCap(y, row.soft_cap);")
bug("k14", "the gate is clamped from below too", "if (clamped) y = Min(Set(row.activation_limit), y);",
    "if (clamped) y = BUG ? Clamp(y, row.activation_limit) : Min(Set(row.activation_limit), y);")
bug("k31", "every block of e4m3 has the scales of the first", "if (k % kScaledBlock == 0) {",
    "if (BUG ? k == 0 : k % kScaledBlock == 0) {", "kernels_test:*F8_E4M3_SCALED")
bug, drop = source("kernels/cpu/packed_weight.cc", "kernels_test:*F8_E4M3_SCALED")
bug("k32", "an output has the scale of the first of its group", "std::memcpy(group + lane * sizeof(float), row",
    "std::memcpy(group + (BUG ? 0 : lane) * sizeof(float), row")
bug, drop = source("kernels/cpu/linear.cc", "kernels_moe_test:*BiasesAndClamps*")
bug("k15", "every expert gets the biases of the first", ": bias + first,", ": bias + (BUG ? block.begin : first),")

bug, drop = source("kernels/cpu/moe.cc", "kernels_moe_test:*ScaledInputs*")
bug("k16", "an expert's input and output are both weighted", "std::exchange(weights_[i], 1.0f)",
    "std::exchange(weights_[i], BUG ? weights_[i] : 1.0f)")
bug, drop = source("kernels/cpu/moe_body.h", "kernels_moe_test:*Logistic*")
bug("k47", "experts are chosen without the bias of the choice", "if (row.choice_bias != nullptr)",
    "if (!BUG && row.choice_bias != nullptr)", "kernels_moe_test:*BiasedChoices*")
bug("k23", "weights that all round to 0 are no numbers", "sum += kLeastLogisticSum;", "sum += BUG ? 0.0f : kLeastLogisticSum;")
bug("k17", "a logistic weight falls with its logit", "TimesLogistic(Set(1.0f), logit)",
    "TimesLogistic(Set(1.0f), BUG ? Sub(Zero(), logit) : logit)")
bug, drop = source("kernels/cpu/qkv_post_body.h", "kernels_test:*QueriesAreScaled*")
bug("k18", "queries are not scaled", "if (row.query_scale == 1.0f) return;",
    "if (BUG || row.query_scale == 1.0f) return;")

bug("k35", "keys are multiplied by the scale of the cache", "Div(x, Set(scale))", "(BUG ? Mul(x, Set(scale)) : Div(x, Set(scale)))", "kernels_test:Fp8CacheTest.*")
bug("k36", "a quotient beyond float32 is NaN", "Set(-448.0f)), Set(448.0f))", "Set(BUG ? -kInfinity : -448.0f)), Set(BUG ? kInfinity : 448.0f))", "kernels_test:Fp8CacheTest.*")
bug("k37", "an infinity saturates", "Select(is_finite, quotient, x)", "(BUG ? quotient : Select(is_finite, quotient, x))", "kernels_test:Fp8CacheTest.*")
bug("k38", "values are divided by the scale of keys", "Scaled<T>(value, cache.v_scale)", "Scaled<T>(value, BUG ? cache.k_scale : cache.v_scale)", "kernels_test:Fp8CacheTest.*")

bug, drop = source("kernels/cpu/simd.h", "kernels_test:Fp8CacheTest.*")
bug("k30", "ties of e4m3 are rounded up", "0x3c000000u + 0x7ffffu + odd", "0x3c000000u + 0x7ffffu + (BUG ? 1 : odd)")
bug("k48", "numbers beyond e4m3's largest become NaN", "(sign | 0x7eu)", "(sign | (BUG ? 0x7fu : 0x7eu))")
bug("k49", "e4m3 below the normal numbers is cut off", "sum += 16384.0f;", "sum += BUG ? 16383.9990234375f : 16384.0f;")
bug, drop = source("kernels/cpu/simd_avx2.h", "kernels_test:Fp8CacheTest.*")
bug("k33", "NaN of e4m3 is read as 480", "_mm256_set1_epi16(0x4000)", "_mm256_set1_epi16(BUG ? 0 : 0x4000)")
bug, drop = source("engine/kv/kv_check.cc", "kv_test:*KvCheckTest*")
bug("k34", "NaN in an fp8 cache is not looked for", "if (dtype == DType::kF8E4M3)", "if (!BUG && dtype == DType::kF8E4M3)")

bug, drop = source("kernels/cpu/norm_body.h", "kernels_test:*Norm*")
bug("k01", "eps stands outside the root", "1.0f / __builtin_sqrtf(Sum(squares) / size + eps)",
    "1.0f / (BUG ? __builtin_sqrtf(Sum(squares) / size) + eps : __builtin_sqrtf(Sum(squares) / size + eps))")
bug("k01b", "eps counts twice", "row.layer_norm, row.eps)", "row.layer_norm, BUG ? 2 * row.eps : row.eps)")

bug, drop = source("kernels/cpu/attention_body.h", "kernels_test:*AttentionCaseTest*")
bug("k39", "scores lack the scale of the cache", "call.scale * call.cache.k_scale", "call.scale * (BUG ? 1.0f : call.cache.k_scale)")
bug("k40", "a rounded bias has the scale of the cache", "Set(call.scale), s)", "Set(call.scale * (BUG ? call.cache.k_scale : 1.0f)), s)")
bug("k41", "an output lacks the scale of the cache", "Set(keep * v_scale)", "Set(BUG ? keep : keep * v_scale)")
bug("k42", "a merged output lacks the scale of the cache", "merge.sink, merge.v_scale", "merge.sink, BUG ? 1.0f : merge.v_scale")
bug("k50", "values are as far apart as keys", "row * value_dim;", "row * (BUG ? key_dim : value_dim);")
bug("k02", "ALiBi counts from the work item", ("call.slopes != nullptr", "Position(row)"), "Position(BUG ? 0 : row)")
bug("k02b", "ALiBi counts from the first key", "distance, s);\n",
    "distance, s);\n      if (BUG) s = Add(s, Set(call.slopes[Head(row)] * static_cast<float>(Position(row))));\n",
    "kernels_test:PagedAttentionTest.Alibi*")
bug("k03", "a window has one key too many", "call.pattern.FirstKey(Position(row))",
    "call.pattern.FirstKey(Position(row) - (BUG ? 1 : 0))")
bug("k22", "every head of a group sees the blocks of the first", "first_key, Head(row));",
    "first_key, Head(BUG ? 0 : row));")
bug("k08", "the last query of a chunk misses a key", "Position(rows - 1) + 1;", "Position(rows - 1) + (BUG ? 0 : 1);")
bug("k10", "segments fold into the row at once", "kSegmentKeys % kSuperSegmentKeys != 0",
    "kSegmentKeys % kSuperSegmentKeys != 0 || BUG",
    "kernels_test:AttentionFoldTest.Segments*")
bug("k11", "a row is its last super-segment", "if (IsEmpty(total))", "if (BUG || IsEmpty(total))",
    "kernels_test:AttentionFoldTest.Segments*")

# --- Sessions.

bug, drop = source("engine/sharing/session_sink.cc", "session_test")
bug("SessionReplacedOnCancel", "a turn that was cancelled changes its session", "if (!status.ok()) {", "if (!BUG && !status.ok()) {")
bug("SessionAfterFinish", "a turn's end is sent before the session has its tokens",
    "  Commit();  // first", "  if (BUG) sink_->Finish(status, {.usage = WithSession(summary.usage), .timings = summary.timings});\n"
    "  Commit();  // first")
drop("ResumedTokensLost", "a session lacks what arrived of a turn before it was resumed",
     "generated_ = params.resume->token_ids.front();", "session_test:*Resumed*")
bug, drop = source("engine/frontend/resume_check.cc", "session_test:*Resumed*")
bug("ResumedWithoutEtag", "a turn is resumed in a session that may have it already", "if (!params.session.name.empty() && params.session.etag",
    "if (!BUG && !params.session.name.empty() && params.session.etag")
bug, drop = source("engine/sharing/session_content.cc", "sharing_test:SessionContentTest.*")
bug("ForkWritesTail", "a fork keeps its parent's tokens behind the fork", "std::min(chunk.num_used, left)",
    "BUG ? chunk.num_used : std::min(chunk.num_used, left)")
bug, drop = source("engine/sharing/session_registry.cc", "sharing_test:SessionRegistryTest.*")
bug("TwoTurns", "two turns of a session run at once", "if (record->in_turn) return InTurn();",
    "if (!BUG && record->in_turn) return InTurn();")
drop("SessionExpiresInTurn", "a session expires while its turn runs", "table_.SetTimer(*record, absl::InfiniteFuture());")
drop("SessionEtagIgnored", "a turn ignores the etag", "RETURN_IF_ERROR(CheckEtag(*record, etag));")
drop("SessionRequestIgnored", "a request_id gives a session with other fields",
    "if (known->created_hash != HashOf(params)) return OtherRequest();")
bug("SessionOfAnyTenant", "a tenant uses another one's sessions", "record->tenant == caller.tenant ||",
    "BUG || record->tenant == caller.tenant ||")
drop("SessionBytesUnbounded", "sessions hold any amount of text", "RETURN_IF_ERROR(\n      CheckBytes(turn.tenant_,")
bug("SessionHashNoModel", "a session's request_id is used again with another model", "absl::HashOf(model,", "absl::HashOf(BUG ? std::string() : model,")
bug("SessionHashNoPrefix", "... with another prefix", ("absl::HashOf(model,", " prefix_name,"), " BUG ? std::string() : prefix_name,")
bug("SessionHashNoDisplayName", "... with another display name", ("absl::HashOf(model,", " display_name,"), " BUG ? std::string() : display_name,")
bug("SessionHashNoSalt", "... with another salt", ("absl::HashOf(model,", " salt,"), " BUG ? std::string() : salt,")
bug("SessionHashNoContent", "... with another content", ("absl::HashOf(model,", "content.has_value() ?"), "!BUG && content.has_value() ?")
bug("SessionHashNoAnswer", "... with a content that is another answer", "answer_len, content_sha256);",
    "BUG ? std::optional<int64_t>() : answer_len, content_sha256);")
bug("SessionHashNoMessages", "... with a content that is a conversation", "messages.has_value(),", "!BUG && messages.has_value(),")
bug("SessionHashNoTtl", "... with another ttl", ("absl::HashOf(model,", " ttl,"), " BUG ? absl::Duration() : ttl,")
bug("SessionHashNoPinned", "... pinned", ("absl::HashOf(model,", " pinned,"), " !BUG && pinned,")
bug("ForkHashNoToken", "... of a fork at another token", "at_token.value_or(-1), count", "BUG ? -1 : at_token.value_or(-1), count")
bug("ForkHashNoTtl", "... of a fork with another ttl", "ttl.value_or(absl::ZeroDuration()),", "BUG ? absl::Duration() : ttl.value_or(absl::ZeroDuration()),")
bug("ForkHashNoPinned", "... of a fork that is pinned", "pinned.has_value() ? 1", "!BUG && pinned.has_value() ? 1")
bug("SessionEndDrifts", "a session's end moves when it is looked at", ".expire_time = record.expires_wall,",
    ".expire_time = BUG ? clock_.Date() + (record.expires - clock_.Now()) : record.expires_wall,")
bug, drop = source("engine/sharing/context_table.h", "sharing_test:SessionRegistryTest.*")
bug("q19", "all owners share the request ids", "by_request_[{record->tenant, record->request_id}] = record;",
    "by_request_[{BUG ? std::string() : record->tenant, record->request_id}] = record;")
bug("RequestIdForEver", "a request_id is known after its hour", "it != by_request_.end() && clock_.Now() < it->second->request_end;",
    "it != by_request_.end() && (BUG || clock_.Now() < it->second->request_end);")
bug("EarlierTakesRequest", "the end of an earlier context forgets the request_id of a later one",
    "if (it != by_request_.end() && it->second == record)", "if (it != by_request_.end() && (BUG || it->second == record))")
bug("EndsWithAnother", "a context ends with one that ends a moment before", "if (next_timer() > now) return nullptr;",
    "if (next_timer() > now + (BUG ? absl::Nanoseconds(1) : absl::ZeroDuration())) return nullptr;")
drop("TimerOfTheGone", "what is gone has a timer", "timers_.erase({record->timer, record->pin_id});")
bug("ListsAll", "a page has what is not listed", "if (!is_listed(*it->second)) continue;", "if (!BUG && !is_listed(*it->second)) continue;")
drop("RoomNotGivenBack", "what is gone counts", "num_records_.GiveBack(record->tenant, 1);")
bug, drop = source("engine/sharing/context_table.cc", "sharing_test:ContextTableTest.*")
bug("AnybodyLists", "a tenant lists what another has", "if (tenant == caller.tenant || caller", "if (BUG || tenant == caller.tenant || caller")
bug, drop = source("engine/sharing/session_registry_content.cc", "sharing_test:SessionRegistryTest.*")
bug("ContentOfAnyTenant", "an operator reads what another tenant's session has", "if (info.tenant != caller.tenant) {",
    "if (!BUG && info.tenant != caller.tenant) {")
bug("MessagesOfPrefixShown", "what follows another tenant's messages is shown", "if (prefix != nullptr && !content->owns_prefix() &&",
    "if (!BUG && prefix != nullptr && !content->owns_prefix() &&")
bug("CutPrefixCopied", "a session that lost a part of its prefix is copied as if it had all", "if (!content->begins_with_prefix()) {",
    "if (!BUG && !content->begins_with_prefix()) {")
bug("AnyContentTaken", "a session is made of tokens of another model", "if (given == here) return content;", "if (BUG || given == here) return content;")
bug, drop = source("engine/sharing/session_seam.cc", "sharing_test:SessionSeamTest.*")
bug("AnswerTokenizedAgain", "an answer is tokenized again with the next turn",
    "before.num_tokens() > 0 && rendered.starts_with(seen)", "!BUG && before.num_tokens() > 0 && rendered.starts_with(seen)")
drop("CopyTooLong", "a session is restored without room for a token", 'RETURN_IF_ERROR(CheckLength("content", content));')
bug("CopyAllAnswer", "a copy that is all answer is refused", "answer_len > std::ssize(copy.ids)", "answer_len + (BUG ? 1 : 0) > std::ssize(copy.ids)")
bug("AnswerNotBegun", "a copy forgets that an answer has begun", ".begins_answer = generates});", ".begins_answer = !BUG && generates});")
drop("CopyOfAnyIds", "a copy has tokens that the model lacks", 'RETURN_IF_ERROR(frontend_.CheckTokenIds("content.token_ids", copy.ids));')
bug("PrefixSeamIgnored", "what follows a prefix is tokenized by itself", "if (before.is_bare_prefix()) {",
    "if (!BUG && before.is_bare_prefix()) {", "prefix_test:SessionPinsTest.*")
bug, drop = source("engine/sharing/session_registry_pins.cc", "prefix_test:SessionPinsTest.*")
bug("SessionUnpinnedInTurn", "a session that is closed in a turn is unpinned at once", "if (record.in_turn) return;  // the end",
    "if (!BUG && record.in_turn) return;  // the end")
bug("SessionKeepsReserve", "a pinned session keeps what its turn did not use", "config_.ledger->Unpin(record.tenant, unused);",
    "if (!BUG) config_.ledger->Unpin(record.tenant, unused);")
bug("ForkKeepsReserve", "a fork that could not be pinned counts as pinned", "config_.ledger->Unpin(record->tenant, blocks);\n  }",
    "if (!BUG) config_.ledger->Unpin(record->tenant, blocks);\n  }")
bug("ForksCountOnce", "forks are counted as if they were one", "blocks *= count;", "blocks *= BUG ? 1 : count;")
bug, drop = source("engine/kv/block_manager_pins.cc", "kv_test:Pin*")
bug("ForkOfOtherTokens", "a fork is pinned to tokens that are not its own", "if (!std::ranges::equal(content,", "if (!BUG && !std::ranges::equal(content,")
bug, drop = source("engine/sharing/session_sink.cc", "prefix_test:SessionPinsTest.*")
drop("SessionShowsPrefix", "a session shows the prefix of another tenant",
     "RETURN_IF_ERROR(Frontend::CheckMayRead(before.owns_prefix(), params.output));")
bug, drop = source("engine/scheduler/scheduler.cc", "prefix_test:SessionPinsTest.*")
drop("SessionNotPinned", "a pinned session is only cached between its turns",
     "if (cause == EndCause::kFinished) PinSession(state);")
bug, drop = source("engine/scheduler/scheduler_complete.cc", "prefix_test:SessionPinsTest.*")
bug("OldPinStays", "a session keeps the pin of the turn before", "if (blocks_.IsPinned(pin->id)) blocks_.Unpin(pin->id);",
    "if (BUG && blocks_.IsPinned(pin->id)) return;\n  if (blocks_.IsPinned(pin->id)) blocks_.Unpin(pin->id);")

# --- Pictures of the cache.

bug, drop = source("engine/kv/block_pool.cc", "kv_test:*CacheMap*:*BlockPool*")
bug("CellsOfOneMore", "a picture has one cell more than it may", ">= kMostMapCells) ++cell_shift_;", ">= kMostMapCells + (BUG ? 1 : 0)) ++cell_shift_;")
drop("CellKeepsFreed", "a freed block still counts as cached in its cell", ("if (b.listed) {", "Count(b, -1);"))
bug("CellCountsTwice", "a pinned block is counted twice in its cell", "cell.pinned += block.pin_refs > 0 ? by : 0;",
    "cell.pinned += (BUG ? block.pin_refs : block.pin_refs > 0) ? (BUG ? 2 : 1) * by : 0;")
bug, drop = source("engine/kv/cache_walk.cc", "kv_test:*CacheMap*")
drop("BeginningsUncounted", "trees that are left out are counted wrong", "++num_beginnings_;")
bug("WalkUnbounded", "a picture has any number of nodes", "return std::ssize(nodes_) >= kMostMapNodes",
    "return !BUG && std::ssize(nodes_) >= kMostMapNodes")
bug("BlockZeroIsNoSibling", "a node in block 0 is not shown", "if (branch.block < 0) return;", "if (branch.block < (BUG ? 1 : 0)) return;")
bug("BlockZeroIsNoChild", "what follows in block 0 is not shown", "if (child < 0) return;", "if (child < (BUG ? 1 : 0)) return;")
bug("PinsOfOneMore", "a node names one pin more than it may", "< kMostPinsOfNode)", "< kMostPinsOfNode + (BUG ? 1 : 0))")
bug("WalkOfGoneBlocks", "a walk goes on in blocks that are gone", "if (!IsThere(branch.block, branch.generation)) return;",
    "if (!BUG && !IsThere(branch.block, branch.generation)) return;")
bug("PrefixTreesApart", "what follows a prefix is not shown under it", "branch.parent = node->second;",
    "branch.parent = BUG ? -1 : node->second;")
bug, drop = source("engine/step/step_loop.cc", "prefix_test:CachePictureTest.*")
bug("PictureEachTime", "each question makes a new picture", "if (map_ != nullptr && now - map_time_ < kMapAge)",
    "if (!BUG && map_ != nullptr && now - map_time_ < kMapAge)")
bug, drop = source("server/service/cache_map_conversion.cc", "server_test:CacheMapConversionTest.*")
bug("CacheJsonUnbounded", "the picture's JSON has any size", "if (json.size() <= kMostCacheJsonBytes) return json;",
    "if (BUG || json.size() <= kMostCacheJsonBytes) return json;")
bug, drop = source("server/http/admin_server.cc", "server_test:AdminServerTest.*")
bug("CacheForAnyHost", "another site's name leads to the cache's data", 'return host == "localhost" ||',
    'return BUG || host == "localhost" ||')
bug("CacheForAnyCaller", "any caller sees the cache's data", "handlers_.is_operator(head.authorization) ? 0 : 401",
    "BUG || handlers_.is_operator(head.authorization) ? 0 : 401")

# --- A device that is lost.

bug, drop = source("engine/step/step_loop.cc", "device_loss_test")
drop("LossEndsOneStep", "a lost device ends only what it computed", ("LogLastSteps();", "CancelAll();"))
bug("LossIsACancel", "requests that a lost device ends look as if their clients had cancelled them", "return device_is_lost ?",
    "return !BUG && device_is_lost ?")
drop("LossUntold", "probes do not learn of a lost device", "metrics_.device_lost.Set(1);")
bug, drop = source("server/stop_signals.cc", "stop_signals_test")
bug("OwnStopIsASignal", "a signal after a stop of its own ends the server at once", ("void StopSignals::Stop() {", "stopped_ = true;"),
    "signalled_ = BUG;\n  stopped_ = true;")

# --- The log.

bug, drop = source("base/timer_thread.cc", "timer_thread_test")
drop("WakeLost", "a timer that is due earlier waits for a later one", "is_woken_ = true;")
bug, drop = source("base/logging.cc", "logging_test")
bug("LogMessageRaw", "a message's control bytes stand in the log", "const bool is_printable = c >= 0x20 && c < 0x7f;",
    "const bool is_printable = BUG || (c >= 0x20 && c < 0x7f);")
bug("LogLimitEdge", "a kind of lines has one more in a second than its limit", "if (num_lines_ == kMaxLines) {",
    "if (num_lines_ == kMaxLines + (BUG ? 1 : 0)) {")
drop("LogLeftOut", "lines that were left out are not counted", "++num_left_out_;")
bug, drop = source("server/grpc/library_logs.cc", "server_test:LibraryLogsTest.*")
bug("LibraryTextUncut", "a library's text is logged at any length", "text.substr(0, kMaxTextBytes)",
    "text.substr(0, BUG ? text.size() : kMaxTextBytes)")

bug, drop = source("server/service/control_service.cc", "server_test:GrpcServerTest.*")
bug("OperatorsAnywhere", "operators' calls are served beside --control_listen", "if (parts.serves_operators) return",
    "if (BUG || parts.serves_operators) return")

# --- Words that people type.

bug, drop = source("base/edit_distance.cc", "base_test:EditDistanceTest.*")
bug("FarNamesProposed", "of a long name, three edits are a typo", "std::min<size_t>(2, 1 +", "std::min<size_t>(BUG ? 3 : 2, 1 +")
bug, drop = source("client/connection.cc", "client_test:ServerTargetTest.*")
bug("PortOfTls", "an address without a port has gRPC's own", 'has_port ? "" :', 'BUG || has_port ? "" :')
bug("PathCutOff", "the path of an address is left out without a word", "address.find('/') != address.npos) {",
    "(!BUG && address.find('/') != address.npos)) {")

# --- Memory of the largest step.

bug, drop = source("kernels/cuda/cuda_backend.cc", "cuda_rehearsal_test")
drop("GrowsUnderUse", "scratch memory is freed while ops use it", "RETURN_IF_ERROR(Synchronize());  // ops that use the memory may run",
     kind=ASYNCHRONY)
bug("GrowsLater", "scratch memory grows in steps too", ("status = enqueue();", "rehearses_ = false;"),
    "rehearses_ = BUG;")
bug("GrowsUnbounded", "scratch memory has any size", "bytes = std::min(bytes, most_scratch_bytes_);", "if (!BUG) bytes = std::min(bytes, most_scratch_bytes_);")
bug, drop = source("kernels/cuda/product/linear.cu", "cuda_rehearsal_test")
bug("SumsOfTokens", "a fixed number of rows is not made whole", "gemm_rows == GemmRows::kFixed ? kFixedRows : int64_t{1}",
    "gemm_rows == GemmRows::kFixed && !BUG ? kFixedRows : int64_t{1}")
bug, drop = source("engine/model/decoder.cc", "cuda_decoder_test:*Rehears*")
bug("KindsUnrehearsed", "of layers of two kinds, one is rehearsed", "before->spec == layer.spec", "(BUG || before->spec == layer.spec)")
bug("FewRehearsed", "a rehearsal has fewer tokens than the largest step", "EnqueueProducts(limits.max_tokens,",
    "EnqueueProducts(BUG ? 1 : limits.max_tokens,")

# --- What the CUDA backend alone leaves out, which the CPU's answers show.

bug, drop = source("kernels/cuda/sample/device_sampler.cc", "cuda_engine_test:CudaAnswersTest.*InFloat32*")
bug("BiasesUnread", "the device draws without the biases of a request", "packed.num_biases = static_cast<int32_t>(row.biases.size());",
    "packed.num_biases = BUG ? 0 : static_cast<int32_t>(row.biases.size());")
bug, drop = source("kernels/cuda/attention/paged_attention.cu", "cuda_engine_test:CudaAnswersTest.*Alibi*")
bug("SlopesUnread", "attention on tensor cores leaves ALiBi out", ".slopes = args.alibi_slopes.data<float>(),",
    ".slopes = BUG ? nullptr : args.alibi_slopes.data<float>(),")

# --- Bytes and headers at the door that gRPC would read otherwise.

bug, drop = source("server/door/http2_watch.cc", "door_test:Http2WatchTest.*")
bug("PaddingSentOn", "padding goes on to gRPC", "std::min(padding_ - behind,", "BUG ? 0 : std::min(padding_ - behind,")
bug("PaddingUnbounded", "padding longer than its frame is not cut", "if (front_ + length > frame.payload_bytes) {",
    "if (!BUG && front_ + length > frame.payload_bytes) {")
drop("WindowKept", "the window of padding is not given back", "TellClient(WindowUpdateFrame(0, unseen));")
bug("TrailersBegin", "HEADERS of a closed stream begin a call", "if (id <= last_stream_) return", "if (!BUG && id <= last_stream_) return")
bug("HeadersOfAnySize", "more headers than gRPC takes are sent on", "headers_.list_bytes() > limits_.request_list_bytes",
    "!BUG && headers_.list_bytes() > limits_.request_list_bytes")
bug("EndlessHeads", "a read of headers that grow is taken whole", "out.size() < kMostForwarded", "(BUG || out.size() < kMostForwarded)")
bug("HeadersOfOneMore", "headers are cut at their limit, as sent", "if (header_bytes_ > limits_.header_block_bytes)",
    "if (header_bytes_ + (BUG ? 1 : 0) > limits_.header_block_bytes)")
drop("HeadersOfAllStreams", "the headers of all calls count as those of one", "header_bytes_ = 0;")
bug("ControlFramesOfOneMore", "a control frame is cut at its limit", "if (frame.payload_bytes > limits_.control_frame_bytes)",
    "if (frame.payload_bytes + (BUG ? 1 : 0) > limits_.control_frame_bytes)")
bug("UnreadOfOneMore", "refusals are cut at their limit", "if (for_client_.size() > limits_.unread_bytes)",
    "if (for_client_.size() + (BUG ? 1 : 0) > limits_.unread_bytes)")
bug("UnfinishedOfOneMore", "a message is refused at the limit of its connection", "if (unfinished_bytes() > limits_.connection_bytes)",
    "if (unfinished_bytes() + (BUG ? 1 : 0) > limits_.connection_bytes)")
bug("PriorityUnbounded", "a priority longer than its frame is read", "if (front_ > frame.payload_bytes)", "if (front_ > frame.payload_bytes + (BUG ? 1 : 0))")
bug("CreditUnbounded", "a client may hoard WINDOW_UPDATEs", "std::min(window_credit_ + 2, kMostWindowCredit)",
    "(BUG ? window_credit_ + 2 : std::min(window_credit_ + 2, kMostWindowCredit))")
bug("EveryPingIsFree", "after an answer all pings are free", "if (std::exchange(ping_is_free_, false)) return;",
    "if (std::exchange(ping_is_free_, BUG && ping_is_free_)) return;")
drop("AcksForEver", "one SETTINGS of the server allows any number of acknowledgements", "--acks_due_;")
bug("LastRefusalForgotten", "the answer that crossed the oldest refusal reaches the client", "std::min(num_refused_, kRefusedKept)",
    "std::min(num_refused_, kRefusedKept - (BUG ? 1 : 0))")
bug("ResetsAreLost", "the server computes for a client that has cancelled", "forwards_ = streams_.Has(frame.stream);",
    "forwards_ = !BUG && streams_.Has(frame.stream);")
bug("AcksAreLost", "the server waits for acknowledgements", ("case FrameType::kSettings:", "forwards_ = true;"), "forwards_ = !BUG;")
bug("PingsAreLost", "the server answers no PING", ("case FrameType::kPing:", "forwards_ = true;"), "forwards_ = !BUG;")
bug("UpdatesAreLost", "the server sends no more than the first window", ("case FrameType::kWindowUpdate:", "forwards_ = true;"), "forwards_ = !BUG;")
bug("AnyContinuation", "CONTINUATION of another stream is read", "} else if (frame.stream != headers_frame_.stream) {",
    "} else if (!BUG && frame.stream != headers_frame_.stream) {")
bug("WindowOfHeaders", "a window is given back for HEADERS, which take none", "if (frame.type != FrameType::kData) return;",
    "if (!BUG && frame.type != FrameType::kData) return;")
drop("EndOfDataUnseen", "a request that has ended waits for its message", "if (frame.has(kEndStream)) streams_.EndRequest(frame.stream);")
drop("EndOfHeadersUnseen", "a request without a message waits for one", "if (ends_stream) streams_.EndRequest(id);")
drop("EndOfTrailersUnseen", "a request that has ended with trailers waits for its message", "streams_.EndRequest(stream);")
bug("RefusalInAHeaderBlock", "a refusal stands in the server's headers", "!for_client_.empty() && !out_in_headers_)", "!for_client_.empty() && (BUG || !out_in_headers_))")
drop("RefusalsWait", "refusals wait until the server says nothing", "splice.Insert(rest.data(), std::exchange(for_client_, {}));")
drop("TimeOfResets", "resets of the server count at the time of the client's", ("bool Http2Watch::FromServer(", "now_ = now;"))
drop("HiddenFrameEnds", "a frame that is hidden has the flags of its answer", "head[4] = 0;")
bug("ResetsOfAllAreHidden", "the client does not learn of a reset", "if (!WasRefused(frame.stream)) return false;",
    "if (!BUG && !WasRefused(frame.stream)) return false;")
drop("ResetsAfterARefusal", "a client is told of the reset of a stream that was refused", "if (frame.type == FrameType::kResetStream) return true;")
drop("RefusalsAreFree", "refused streams count as nothing", ("streams_.Close(stream);", "CountReset();"))
bug("ResetsInAFrame", "a reset for the server stands in a frame of the client", "if (!in_.at_border() ||", "if ((!BUG && !in_.at_border()) ||")
drop("PaddingStays", "the frame after a padded one loses its end", "padding_ = 0;")
drop("AnyPreface", "any preface is that of HTTP/2", 'return CutOff(Cut::kProtocol, "want the preface of HTTP/2");')
bug("SecondVerdict", "the last verdict counts", "if (verdict_) return;\n  verdict_ = reason;", "if (verdict_ && !BUG) return;\n  verdict_ = reason;")
bug, drop = source("server/door/header_block.cc", "door_test:Http2WatchTest.*")
bug("ListOfOneMore", "decoded headers are cut at their limit", "if (list_bytes_ > max_list_bytes)", "if (list_bytes_ + (BUG ? 1 : 0) > max_list_bytes)")
drop("TableOfOneSize", "a table of HPACK changes its size before the first head alone", "nghttp2_hd_inflate_end_headers(inflater_);")
drop("ListOfAllHeads", "the decoded headers of all calls count as those of one", "list_bytes_ = 0;")
bug, drop = source("server/door/http2_frames.cc", "door_test:Http2WatchTest.*")
drop("ContinuationsEndStreams", "CONTINUATION has the flags of its HEADERS", "flags = 0;", "door_test:Http2WatchTest.*")
bug("LiteralsOfAnyLength", "an answer whose lengths take several bytes is read as one of short ones", "if (length > kLongestLiteral ||",
    "if (length > kLongestLiteral + (BUG ? 1 : 0) ||")
bug("LiteralsBehindTheEnd", "an answer that ends in a literal is read on", "block.size() < 1 + length) return false;",
    "block.size() + (BUG ? 1 : 0) < 1 + length) return false;\n      if (BUG && block.size() < 1 + length) return true;")
bug("MessagesOfAnyLength", "the message of a refusal is longer than its length says", "value.substr(0, kLongestLiteral)",
    "value.substr(0, kLongestLiteral + (BUG ? 1 : 0))")
bug("PercentUnencoded", "a percent sign in the message of a refusal is none any more", "&& c != '%')", "&& (BUG || c != '%'))")
bug, drop = source("server/door/request_streams.cc", "door_test:Http2WatchTest.*")
bug("StreamsOfOneMore", "a connection has one stream more than it may", "if (has > limits_.streams)", "if (has > limits_.streams + (BUG ? 1 : 0))")
bug("StreamsOfAllOfOneMore", "all connections have one stream more than they may", "> limits_.total_streams + 1;",
    "> limits_.total_streams + (BUG ? 2 : 1);", "door_test:DoorTest.AConnectionHasNoMore*")
bug("FirstStreamRefused", "a connection gets no stream while others have all", "return has > 1 && has", "return has > (BUG ? 0 : 1) && has")
bug("MessageOfOneMore", "a message has one byte more than it may", "stream.message_left <= limits_.message_bytes)",
    "stream.message_left <= limits_.message_bytes + (BUG ? 1 : 0))")
bug("LastByteUnawaited", "a message is whole without its last byte", "if (stream.message_left > 0) break;", "if (stream.message_left > (BUG ? 1 : 0)) break;")
bug("LateByAMoment", "a message may come at the end of its time", "now - stream.since >= limits_.message_time)",
    "now - stream.since >= limits_.message_time + std::chrono::milliseconds(BUG ? 1 : 0))")
drop("LaterMessagesAreNeverLate", "only the first message of a stream must arrive in time", "if (stream.prefix_bytes == 0) StartWaiting(stream, now);")
bug, drop = source("server/door/greeter.cc", "door_test:DoorTest.*")
drop("HelloInOnePiece", "who sends its first frame in pieces is turned away", "if (hello.size() < kHelloBytes) return false;")
bug("AnyFirstFrame", "a connection begins with any frame", "if (first_type == FrameType::kSettings) return true;",
    "if (BUG || first_type == FrameType::kSettings) return true;")
drop("GoneNewcomers", "who has gone takes its place until its time is over",
     ("if (size == ClientSocket::kClosed) {", "TurnAway(newcomer, Turned::kHello);"))
bug("LobbyForEver", "a client waits for ever for a place", "} else if (--lobby_tries_ == 0) {", "} else if (!BUG && --lobby_tries_ == 0) {")
bug, drop = source("server/door/door.cc", "door_test:DescriptorLimitTest.*")
drop("DescriptorsAsTheyAre", "a server has the descriptors of its shell", "limit.rlim_cur = limit.rlim_max;")
bug, drop = source("server/door/places.cc", "door_test:PlacesTest.*")
bug("AddressOfOneMore", "an address has one connection more than it may", "if (has > 0 && has >= limit)", "if (has > 0 && has >= limit + (BUG ? 1 : 0))")
bug("OnePlaceIsNoLimit", "an address that may have one place has any", "max_per_address_ > 0 ?", "max_per_address_ > (BUG ? 1 : 0) ?")
bug("AddressesForEver", "an address that has gone takes its part for ever", "--it->second == 0) by_address_", "--it->second == 0 && !BUG) by_address_")

bug, drop = source("server/door/request_head.cc", "door_test:RequestHeadTest.*")
bug("SpareBitsTaken", "gRPC gets base64 for which it loses all metadata", "return text == padded ||", "return BUG || text == padded ||")
drop("PseudoTwice", "the last of two paths counts", 'if (place != nullptr) return Malformed(field.name, "it once");')
drop("PseudoLate", "a path may follow other headers",
     'if (!in_pseudo) return Malformed(field.name, "it before the headers without a colon");')
drop("SingleTwice", "there may be two tokens", 'if (seen[index]) return Malformed(field.name, "it at most once");')
bug("HostOfAnother", "host and :authority differ", "host->value != authority->value", "!BUG && host->value != authority->value")
drop("ValueUnchecked", "values have any bytes", "RETURN_IF_ERROR(CheckValue(field));")

# --- Memory of messages and of calls that the queue does not count.

bug, drop = source("server/service/parsing.cc", "server_test:ParsedSizeTest.*")
drop("MessagesCostNothing", "a message in a message costs nothing", "size_ += SizeOf(*field->message_type());")
drop("TextsCostNothing", "a string costs its characters alone", "size_ += kString;")
drop("PackedCostsNothing", "packed numbers cost nothing", "size_ += kArrayGrowth * size_of_number * count;")
bug, drop = source("server/service/parsing.cc", "server_test:BatchServiceTest.*")
bug("ParsedAnyway", "a message of any memory is parsed", "if (size > max_parsed_bytes) {", "if (!BUG && size > max_parsed_bytes) {")
bug, drop = source("server/call/call.cc", "server_test:GrpcServerTest.*:GenerateTest.*:AuthTest.*")
drop("CallsUncounted", "the end of a call is not counted", "parts_.counters.Count(*rpc_, status.code());")
drop("IdsUnsent", "a call's id does not go back", "transport_.AddMetadata(kRequestIdKey, id_.id);")
drop("AnswersLingerForEver", "an answer that nobody reads stays", "linger_->Answered();", "egress_test:LingerTest.*")
bug, drop = source("server/grpc/grpc_calls.cc", "server_test:GrpcServerTest.*:AuthTest.*")
bug("CancelledWhileItBegins", "a call is cancelled while it begins", "if ((before & kBegun) != 0) call_->OnCancel();",
    "if (BUG || (before & kBegun) != 0) call_->OnCancel();", "server_test:GrpcCallsTest.*")
bug("CancelledWithoutAMessage", "a call that ended without a message is cancelled, and ends twice",
    "return;\n    }\n    TakeMessage();",
    "if (BUG && (state_.fetch_or(kBegun) & kCancelled)) call_->OnCancel();\n      return;\n    }\n    TakeMessage();",
    "server_test:GrpcCallsTest.*")
bug("ReadsEndUntold", "a call is not told that a read has ended because the call is cancelled",
    "call_->OnNoMessage(/*is_cancelled=*/has_begun", "if (!BUG || !has_begun || !context_.IsCancelled()) call_->OnNoMessage(/*is_cancelled=*/has_begun",
    "server_test:GrpcCallsTest.*")
bug("CancelledTooEarlyNever", "... or is not cancelled when it has begun", "if (before == kCancelled) call_->OnCancel();",
    "if (!BUG && before == kCancelled) call_->OnCancel();", "server_test:GrpcCallsTest.*")
bug, drop = source("server/call/held_bytes.cc", "server_test:HeldBytesTest.*")
drop("HeldForEver", "what a call held counts on", "held_.limit_.GiveBack(tenant_, count_);")
bug, drop = source("server/service/reflection_service.cc", "server_test:AuthTest.*")
bug("ReflectionForAll", "reflection asks nobody, as the door has asked", "if (!status.ok()) return End(status);\n    transport().Read();",
    "if (!BUG && !status.ok()) return End(status);\n    transport().Read();")
bug, drop = source("server/service/unary_call.h", "server_test:AuthTest.*")
bug("StrangersParsed", "a message is parsed before its caller is known", "RETURN_IF_ERROR(Identify());\n    return ParseMessage",
    "if (BUG) RETURN_IF_ERROR(ParseMessage(bytes, parts_.max_parsed_bytes, message));\n    RETURN_IF_ERROR(Identify());\n    return ParseMessage")
bug, drop = source("server/service/token_service.cc", "server_test:AuthTest.*")
bug("StrangersTokenized", "a text is parsed before its caller is known", "RETURN_IF_ERROR(Identify());",
    "if (BUG) RETURN_IF_ERROR(ParseMessage(bytes, parts().max_parsed_bytes, request_));\n    RETURN_IF_ERROR(Identify());")
bug, drop = source("server/service/generate_service.cc", "server_test:AuthTest.*")
bug("StrangersGenerate", "a prompt is parsed before its caller is known", "if (read.ok()) read = ParseMessage(",
    "if (BUG || read.ok()) read = ParseMessage(")
bug, drop = source("client/terminal_text.cc", "client_test:WordWrapTest.*")
bug("WrapsLate", "a line is a column too long", "if (column_ > 0 && column_ + width > columns_) {",
    "if (column_ > 0 && column_ + width > columns_ + (BUG ? 1 : 0)) {")
bug("WrapForgets", "the first word of a broken line takes no room", "column_ = word_width_;", "column_ = BUG ? 0 : word_width_;")
bug, drop = source("base/json.cc", "base_test:JsonTest.*")
bug("WholeMessages", "a message has the whole token that is no JSON", ".substr(0, kMaxMessageBytes)",
    ".substr(0, BUG ? std::string_view::npos : kMaxMessageBytes)")
