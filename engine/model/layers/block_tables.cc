#include "engine/model/layers/block_tables.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace quire::engine {

using kernels::DType;
using kernels::TensorView;

absl::StatusOr<BlockTables> BlockTables::Create(kernels::Backend& backend, int64_t num_groups,
                                                int64_t max_seqs, int64_t max_blocks,
                                                int32_t block_size) {
  BlockTables tables;
  tables.max_seqs_ = max_seqs;
  tables.max_blocks_ = max_blocks;
  tables.block_size_ = block_size;
  const int64_t num_entries = num_groups * max_seqs * max_blocks;
  if (num_entries > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("block tables: want at most 2^31 - 1 entries, got ", num_groups,
                     " KV groups of ", max_seqs, " sequences with ", max_blocks,
                     " blocks; lower --max_num_seqs or --max_model_len, or raise --block_size"));
  }
  ASSIGN_OR_RETURN(tables.tables_, backend.Allocate(num_entries * SizeOf(DType::kI32)));
  tables.mirror_ = kernels::TableMirror(num_entries);
  return tables;
}

std::span<const kernels::TableChange> BlockTables::Changes(const ModelInput& input,
                                                           std::span<const KvGroup> groups) {
  QUIRE_CHECK(input.num_seqs() <= max_seqs_) << "a step larger than its limits";
  mirror_.Begin();
  first_entries_.assign(groups.size(), 0);
  int64_t end = 0;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].layers.empty()) continue;
    first_entries_[group] = end;
    end += max_seqs_ * max_blocks_;
    QUIRE_CHECK(end <= mirror_.size()) << groups.size() << " KV groups";
    const GroupInput& from = input.groups[group];
    for (int64_t seq = 0; seq < input.num_seqs(); ++seq) {
      const int64_t num_blocks = base::CeilDiv<int64_t>(input.context_lens[seq], block_size_);
      QUIRE_CHECK(num_blocks <= std::min(max_blocks_, from.max_blocks_per_seq))
          << "a context of " << num_blocks << " blocks";
      const int32_t* const row = from.block_table.data() + seq * from.max_blocks_per_seq;
      const int64_t first = first_entries_[group] + seq * max_blocks_;
      for (int64_t i = 0; i < num_blocks; ++i) mirror_.Set(first + i, row[i]);
    }
  }
  return mirror_.changes();
}

absl::Status BlockTables::Update(kernels::Backend& backend, const TensorView& changes) {
  const TensorView tables(tables_.data(), DType::kI32, {mirror_.size()});
  RETURN_IF_ERROR(backend.UpdateTable({.table = tables, .changes = changes}));
  mirror_.Commit();
  return absl::OkStatus();
}

TensorView BlockTables::table(size_t group, int64_t num_seqs) const {
  return TensorView(static_cast<int32_t*>(tables_.data()) + first_entries_[group], DType::kI32,
                    {num_seqs, max_blocks_});
}

}  // namespace quire::engine
