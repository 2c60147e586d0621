#pragma once

// A mixture of experts as products of groups of rows: the tokens that chose an expert lie side by
// side, in their order, and meet its weights together.

#include <cstdint>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/moe.h"

namespace quire::kernels::cpu {

class Moe {
 public:
  Moe(const KernelTable& kernels, ThreadPool& pool, Linear& linear);  // all must outlive this

  // `args` were validated and hold f32 activations.
  void Run(const MoeArgs& args);

 private:
  void Route(const MoeArgs& args);
  // Gives each choice its row among those of its expert, and each expert's rows their weights.
  void GroupByExpert(const MoeArgs& args);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  Linear& linear_;
  // A choice is a (token, expert it chose); [num_tokens, num_experts_per_token] of them. They grow
  // to the largest step.
  std::vector<int32_t> experts_;          // of a choice
  std::vector<float> weights_;            // likewise
  std::vector<int32_t> rows_;             // likewise: its row of input_, inner_ and y_
  std::vector<int32_t> ends_;             // of an expert's rows
  std::vector<RowGroup> up_, down_;       // of each expert that somebody chose
  std::vector<float> logits_;             // [num_tokens, num_experts]
  std::vector<float> input_, inner_, y_;  // [choices, hidden | intermediate | hidden]
};

}  // namespace quire::kernels::cpu
