#pragma once

// Computes a mixture of experts as products of groups of rows. The rows of all tokens that chose
// the same expert are stored one after another, in order. One product multiplies all of them by the
// weights of that expert.

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

  // `args` must have been validated, and must hold f32 activations.
  void Run(const MoeArgs& args);

 private:
  void Route(const MoeArgs& args);
  // Assigns to each choice a row in the group of rows of the chosen expert. Assigns to each group
  // the weights of its expert.
  void GroupByExpert(const MoeArgs& args);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  Linear& linear_;
  // A choice is a pair of a token and an expert that was chosen for it. A vector "by choice" has
  // the shape [num_tokens, num_experts_per_token]. No vector shrinks, so each becomes as large as
  // the largest step needs.
  std::vector<int32_t> experts_;          // by choice: the expert
  std::vector<float> weights_;            // by choice: the weight of the expert
  std::vector<int32_t> rows_;             // by choice: the row in input_, inner_ and y_
  std::vector<int32_t> ends_;             // by expert: the end of the expert's rows
  std::vector<RowGroup> up_, down_;       // one for each chosen expert
  std::vector<float> logits_;             // [num_tokens, num_experts]
  std::vector<float> input_, inner_, y_;  // [choices, hidden | intermediate | hidden]
};

}  // namespace quire::kernels::cpu
