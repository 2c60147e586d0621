#include "tests/kernels/sample_testing.h"

#include <memory>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

#include "kernels/lone_update.h"
#include "kernels/token_set.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::testing {

using kernels::DeviceBuffer;
using kernels::DType;
using kernels::LogitBias;
using kernels::SampledRow;
using kernels::SampleRow;
using kernels::TensorView;
using kernels::TokenSet;

TwoCalls SampleTwice(kernels::Backend& backend, int64_t num_ids) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kMaxDraws = 12;
  const auto ok = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  const auto sampler =
      *backend.PrepareSampler({.vocab_size = static_cast<int32_t>(num_ids) + 3,
                               .end_ids = {4, 9},
                               .without_piece = {17, static_cast<int32_t>(num_ids) + 2},
                               .max_rows = kRows,
                               .max_draws = kMaxDraws});
  const std::vector<float> first_logits = Normal(31, kRows * num_ids);
  const std::vector<float> second_logits = Normal(32, kRows * num_ids);
  const int64_t bytes = kRows * num_ids * SizeOf(DType::kF32);
  // The second call overwrites the logits of the first, like the next forward pass of a model.
  const DeviceBuffer logits = *backend.Allocate(bytes);
  const DeviceBuffer drawn = *backend.Allocate(kMaxDraws * SizeOf(DType::kI32));

  const TokenSet allowed(std::vector<int32_t>{1, 4, 17, 33, 60, 89}, 90);
  const TokenSet banned(std::vector<int32_t>{2, 5, 40}, 90);
  const std::vector<LogitBias> biases = {{.token_id = 70, .bias = 2.5f},
                                         {.token_id = 71, .bias = -1.25f}};
  const std::vector<int32_t> tokens = {3, 8, 8, 21, 60, 33};
  std::vector<SampleRow> works = {
      {.params = {.temperature = 0.0f}},
      {.row = 1, .num_top = 3, .params = {.temperature = 0.7f, .top_k = 11}},
      {.row = 1, .params = {.temperature = 1.3f, .typical_p = 0.8f, .min_p = 0.02f}, .seed = 6},
      {.row = 2, .given = 12, .num_top = 2},
      {.row = 2, .params = {.top_p = 0.85f}, .biases = biases, .allowed = &allowed},
      {.row = 3, .num_top = 0, .banned = &banned, .bans_end_ids = true},
      {.row = 4,
       .params = {.presence_penalty = 0.75f, .frequency_penalty = 0.5f, .repetition_penalty = 1.5f},
       .seed = uint64_t{1} << 40,
       .tokens = tokens,
       .prompt_len = 4},
      {.row = 4,
       .params = {.repetition_penalty = 2.0f, .penalty_last_n = 2},
       .tokens = tokens,
       .prompt_len = 4}};
  int32_t num_draws = 0;
  for (SampleRow& work : works) {
    work.position = 2;
    if (work.given < 0) work.draw = num_draws++;
  }
  // Draw i of the second call continues draw 6 - i of the first.
  std::vector<SampleRow> next = works;
  for (SampleRow& work : next) {
    work.position = 3;
    if (work.given < 0) work.previous = num_draws - 1 - work.draw;
  }

  std::vector<absl::StatusOr<SampledRow>> results[2];
  kernels::SampleArgs args = {.logits = TensorView(logits.data(), DType::kF32, {kRows, num_ids}),
                              .rows = works,
                              .drawn = TensorView(drawn.data(), DType::kI32, {kMaxDraws}),
                              .sampler = sampler.get()};
  ok(backend.CopyToDevice(logits.data(), first_logits.data(), bytes));
  std::vector<kernels::LoneUpdate> updates;
  const auto sample = [&] {
    const auto update = sampler->Prepare(args.rows);
    ASSERT_TRUE(update.ok()) << update.status();
    updates.push_back(*EnqueueLoneUpdate(backend, *update));
    ok(backend.Sample(args));
  };
  sample();
  ok(backend.CopyToDevice(logits.data(), second_logits.data(), bytes));
  args.rows = next;
  sample();
  TwoCalls calls;
  calls.drawn.resize(kMaxDraws);
  ok(backend.CopyToHost(calls.drawn.data(), drawn.data(), drawn.bytes()));
  ok(backend.Synchronize());
  for (auto& taken : results) sampler->Take(taken);
  const auto rows_of = [](const std::vector<absl::StatusOr<SampledRow>>& all) {
    std::vector<SampledRow> rows;
    for (const absl::StatusOr<SampledRow>& row : all) {
      EXPECT_TRUE(row.ok()) << row.status();
      rows.push_back(row.value_or(SampledRow()));
    }
    return rows;
  };
  calls.first = rows_of(results[0]);
  calls.second = rows_of(results[1]);
  return calls;
}

std::string ToText(const TwoCalls& calls) {
  std::string text;
  std::vector<SampledRow> rows = calls.first;
  rows.insert(rows.end(), calls.second.begin(), calls.second.end());
  for (const SampledRow& row : rows) {
    absl::StrAppendFormat(&text, "%d", row.id);
    if (row.logprobs) {
      absl::StrAppendFormat(&text, " %d:%a", row.logprobs->chosen.token_id,
                            row.logprobs->chosen.logprob);
      for (const kernels::TokenLogprob& top : row.logprobs->top) {
        absl::StrAppendFormat(&text, " %d:%a", top.token_id, top.logprob);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace quire::testing
