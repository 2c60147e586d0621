#include "engine/load/kept_on_disk.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "engine/load/engine_configs.h"

namespace quire::engine {
namespace {

// Returns a text that differs wherever equal blocks would have different bytes.
std::string ContentsOf(const EngineParts& parts) {
  const ServerInfo& server = parts.server_info;
  return absl::StrCat(server.model_digest, ";", server.answer_numerics, ";", server.backend, ";",
                      server.isa_path, ";", server.version, ";",
                      std::string(kernels::Name(parts.cache.shape().dtype)));
}

absl::StatusOr<std::unique_ptr<DiskTier>> OpenBlocks(const EngineParts& parts,
                                                     const EngineConfig& config) {
  if (!parts.backend->info().host_memory) {
    return absl::FailedPreconditionError(
        "kv_disk_mib: the blocks of a GPU are not kept on disk yet: leave it out. Named prefixes "
        "outlive the server without it");
  }
  if (parts.cache.groups().size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv_disk_mib: ", kSeesPartOfContext,
                     ", and the blocks of such a model are not kept on disk: leave it out. Named "
                     "prefixes outlive the server without it"));
  }
  const kernels::TensorView blocks = parts.cache.blocks(0);
  const KvGroup& group = parts.cache.groups()[0];
  return DiskTier::Open(*parts.directory,
                        {.store = {.contents = ContentsOf(parts),
                                   .block_size = parts.limits.block_size,
                                   .block_bytes = parts.cache.shape().bytes_per_block(group),
                                   .max_bytes = config.kv_disk_mib << 20},
                         .blocks = static_cast<std::byte*>(blocks.raw()),
                         .num_blocks = static_cast<int32_t>(group.num_blocks),
                         .clock = parts.clock});
}

}  // namespace

absl::StatusOr<KeptOnDisk> OpenKept(const EngineParts& parts, const EngineConfig& config) {
  KeptOnDisk kept;
  if (parts.directory == nullptr) return kept;
  ASSIGN_OR_RETURN(
      kept.prefixes,
      PrefixLog::Open(*parts.directory, parts.server_info.model_digest,
                      {.max_bytes = config.prefix_disk_mib << 20,
                       .vocab_size = static_cast<int32_t>(parts.model->config().vocab_size)}));
  if (config.kv_disk_mib > 0) {
    ASSIGN_OR_RETURN(kept.blocks, OpenBlocks(parts, config));
  }
  return kept;
}

}  // namespace quire::engine
