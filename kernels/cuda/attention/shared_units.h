#pragma once

// Units of attention work that read the keys of a prefix once for several decodes (RelayAttention,
// arXiv:2402.14808; Hydragen, arXiv:2402.05099).
//
// A unit has the rows of up to 64 / group members: member by member, and in a member its heads of
// one KV head. It reads keys that are the same memory for all members. Each member has a unit of
// its own for its later keys, and the merge adds up both results. A unit ends at the border of a
// tile, so no row needs a mask there. A row of a window masks the keys before its first one.

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/ops/paged_attention.h"

namespace quire::kernels::cuda {

class SharedUnits {
 public:
  // Returns whether the decodes of a layer can share units: two members must fit into one, and a
  // pattern without holes needs no lists.
  static bool Supports(const AttentionPlanKey& layer);
  // Returns the most members of a unit.
  static int32_t MostMembers(const AttentionPlanKey& layer);

  // Replaces the content with the units for args.shared_keys. Leaves out sequences that are no
  // decodes, and keys that no query sees. `args` must be valid, and its layer supported.
  void Build(const AttentionPlanArgs& args);
  void Clear();

  bool empty() const { return members_.empty(); }
  const std::vector<SharedMember>& members() const { return members_; }
  // Returns the first key that the sequence's own units read, or 0 if it shares no keys.
  int32_t EndOf(int32_t seq) const { return empty() ? 0 : ends_[static_cast<size_t>(seq)]; }
  // Appends the units to `units`, each as one item with all its keys.
  void AddTo(std::vector<AttentionItem>& units) const;

  // Keeps where the partial results of a unit are, which has been cut into num_items.
  void SetPieces(const AttentionItem& unit, int32_t partial, int32_t num_items);
  // Completes the merge of a sequence's own unit. All units must have been cut.
  void Complete(AttentionMerge& merge) const;

 private:
  // The members of one unit of each KV head.
  struct Chunk {
    int32_t seq = 0;  // whose block table the unit reads
    int32_t first_member = 0, num_members = 0;
    int32_t key_begin = 0, key_end = 0;
    int32_t last_position = 0;  // the largest of the members'
  };
  struct Pieces {
    int32_t partial = 0, num_items = 0;
  };

  int32_t num_kv_heads_ = 0, group_ = 1;
  std::vector<SharedMember> members_;
  std::vector<int32_t> chunk_of_;  // by member
  std::vector<Chunk> chunks_;
  std::vector<Pieces> pieces_;      // [chunks, num_kv_heads]
  std::vector<int32_t> ends_;       // by sequence
  std::vector<int32_t> member_of_;  // by sequence; only for those that share keys
};

}  // namespace quire::kernels::cuda
