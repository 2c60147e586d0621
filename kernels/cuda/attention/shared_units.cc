#include "kernels/cuda/attention/shared_units.h"

#include <algorithm>

namespace quire::kernels::cuda {

bool SharedUnits::Supports(const AttentionPlanKey& layer) {
  return !layer.pattern.has_holes() && MostMembers(layer) >= 2;
}

int32_t SharedUnits::MostMembers(const AttentionPlanKey& layer) {
  return kMostItemRows / (layer.heads.num_heads / layer.heads.num_kv_heads);
}

void SharedUnits::Clear() {
  members_.clear();
  chunk_of_.clear();
  chunks_.clear();
}

void SharedUnits::Build(const AttentionPlanArgs& args) {
  Clear();
  if (args.shared_keys.empty()) return;
  num_kv_heads_ = args.heads.num_kv_heads;
  group_ = args.heads.num_heads / num_kv_heads_;
  const int32_t most_members = MostMembers(args.key());
  const auto position_of = [&](int32_t seq) {
    return args.context_lens[static_cast<size_t>(seq)] - 1;
  };
  std::vector<int32_t> tokens = {0};  // by sequence, its first one
  for (const int32_t query_len : args.query_lens) tokens.push_back(tokens.back() + query_len);
  ends_.assign(args.query_lens.size(), 0);
  member_of_.assign(args.query_lens.size(), -1);
  std::vector<int32_t> seqs;
  for (const SharedKeys& keys : args.shared_keys) {
    seqs.clear();
    for (const int32_t seq : args.shared_seqs.subspan(static_cast<size_t>(keys.first),
                                                      static_cast<size_t>(keys.count))) {
      // A sequence without any of the keys in its window has nothing to share.
      if (args.query_lens[static_cast<size_t>(seq)] == 1 &&
          args.pattern.FirstKey(position_of(seq)) < keys.num_keys) {
        seqs.push_back(seq);
      }
    }
    if (seqs.size() < 2) continue;
    for (size_t i = 0; i < seqs.size(); ++i) {
      const int32_t seq = seqs[i], position = position_of(seq);
      const auto first_key = static_cast<int32_t>(args.pattern.FirstKey(position));
      if (i % static_cast<size_t>(most_members) == 0) {
        chunks_.push_back({.first_member = static_cast<int32_t>(members_.size()),
                           .key_begin = keys.num_keys,
                           .key_end = keys.num_keys});
      }
      Chunk& chunk = chunks_.back();
      ++chunk.num_members;
      if (first_key < chunk.key_begin) {
        chunk.key_begin = first_key;
        chunk.seq = seq;  // only its table is known to have the block of the key
      }
      chunk.last_position = std::max(chunk.last_position, position);
      ends_[static_cast<size_t>(seq)] = keys.num_keys;
      member_of_[static_cast<size_t>(seq)] = static_cast<int32_t>(members_.size());
      members_.push_back({.token = tokens[static_cast<size_t>(seq)], .position = position});
      chunk_of_.push_back(static_cast<int32_t>(chunks_.size()) - 1);
    }
  }
  pieces_.assign(chunks_.size() * static_cast<size_t>(num_kv_heads_), {});
}

void SharedUnits::AddTo(std::vector<AttentionItem>& units) const {
  for (const Chunk& chunk : chunks_) {
    for (int32_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      units.push_back({.seq = chunk.seq,
                       .kv_head = kv_head,
                       .num_rows = chunk.num_members * group_,
                       .key_begin = chunk.key_begin,
                       .key_end = chunk.key_end,
                       // Makes the last row's position the largest one, so that the kernel knows
                       // which tiles all rows see (SeenByAll).
                       .first_position = chunk.last_position - chunk.num_members + 1,
                       .first_member = chunk.first_member});
    }
  }
}

void SharedUnits::SetPieces(const AttentionItem& unit, int32_t partial, int32_t num_items) {
  const int32_t chunk = chunk_of_[static_cast<size_t>(unit.first_member)];
  pieces_[static_cast<size_t>(chunk * num_kv_heads_ + unit.kv_head)] = {.partial = partial,
                                                                        .num_items = num_items};
}

void SharedUnits::Complete(AttentionMerge& merge) const {
  if (EndOf(merge.seq) == 0) return;
  const int32_t member = member_of_[static_cast<size_t>(merge.seq)];
  const int32_t chunk = chunk_of_[static_cast<size_t>(member)];
  const Chunk& of = chunks_[static_cast<size_t>(chunk)];
  const Pieces& pieces = pieces_[static_cast<size_t>(chunk * num_kv_heads_ + merge.kv_head)];
  merge.shared_partial = pieces.partial + (member - of.first_member) * group_ + merge.first_row;
  merge.num_shared_items = pieces.num_items;
  merge.shared_rows = of.num_members * group_;
}

}  // namespace quire::kernels::cuda
