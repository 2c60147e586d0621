// Compares the sampler of the device with that of the host (kernels/sampling/sampler.h), which
// tests/kernels/sampling/ tests. Ids and log-probabilities must be equal to the bit.

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample/device_sampler.h"
#include "kernels/sampling/sampler.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/sampling/random_logits.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceArray;
using testing::ThreadOrder;

constexpr int32_t kEnd = 3, kOtherEnd = 5;

// One work with all that it refers to.
struct Work {
  SampleRow row;
  std::vector<LogitBias> biases;
  std::vector<int32_t> tokens;
  TokenSet allowed, banned;

  // Makes `row` refer to the members. Called once the work no longer moves.
  void Refer() {
    row.biases = biases;
    row.tokens = tokens;
    row.allowed = &allowed;
    if (!banned.empty()) row.banned = &banned;
  }
};

rc::Gen<float> Share() { return rc::gen::element(1.0f, 0.999f, 0.9f, 0.5f, 0.05f, 1e-6f); }

std::vector<int32_t> SomeIds(int32_t vocab_size) {
  return *rc::gen::container<std::vector<int32_t>>(*rc::gen::inRange<size_t>(1, 40),
                                                   rc::gen::inRange(0, vocab_size));
}

DrawParams AnyParams() {
  const auto some = [](auto gen, float off) { return *rc::gen::oneOf(rc::gen::just(off), gen); };
  return {.temperature = *rc::gen::element(0.0f, 0.0f, 1e-6f, 0.3f, 1.0f, 1.7f, 100.0f),
          .top_k = *rc::gen::element(0, 0, 1, 2, 7, 40, 5000),
          .typical_p = some(Share(), 1.0f),
          .top_p = some(Share(), 1.0f),
          .min_p = some(rc::gen::element(1.0f, 0.3f, 0.01f, 1e-9f), 0.0f),
          .presence_penalty = some(rc::gen::element(-2.0f, 0.7f), 0.0f),
          .frequency_penalty = some(rc::gen::element(-0.3f, 0.4f), 0.0f),
          .repetition_penalty = some(rc::gen::element(0.5f, 1.3f, 1e-38f), 1.0f),
          .penalty_last_n = *rc::gen::element(-1, -1, 0, 1, 2, 15)};
}

// Returns a draw from row 0.
Work AnyDraw(int32_t vocab_size, int32_t num_draws) {
  Work work;
  SampleRow& row = work.row;
  row.params = AnyParams();
  row.seed = *rc::gen::arbitrary<uint64_t>();
  row.previous = *rc::gen::oneOf(rc::gen::just(-1), rc::gen::inRange(0, num_draws));
  row.prompt_len = *rc::gen::inRange(1, 30);
  const int64_t known = *rc::gen::inRange(0, 30);
  row.position = known + (row.previous >= 0 ? 1 : 0);
  for (int64_t i = 0; i < row.prompt_len + known; ++i) {
    work.tokens.push_back(*rc::gen::inRange(0, std::min(vocab_size, 20)));
  }
  const auto rarely = [] { return *rc::gen::inRange(0, 3) == 0; };
  if (rarely()) {
    for (const int32_t id : SomeIds(std::min(vocab_size, 50))) {
      work.biases.push_back(
          {.token_id = id, .bias = *rc::gen::element(-100.0f, 0.3f, 1e-3f, 5.0f)});
    }
  }
  if (rarely()) work.allowed = TokenSet(SomeIds(vocab_size), vocab_size);
  if (rarely()) work.banned = TokenSet(SomeIds(vocab_size), vocab_size);
  row.bans_end_ids = rarely();
  return work;
}

Work AnyWork(int32_t vocab_size, int64_t num_rows, int32_t num_draws) {
  Work work;
  if (*rc::gen::inRange(0, 5) == 0) {
    work.row.given = *rc::gen::inRange(0, vocab_size + 2);
  } else {
    work = AnyDraw(vocab_size, num_draws);
  }
  work.row.row = *rc::gen::inRange<int64_t>(0, num_rows);
  if (*rc::gen::inRange(0, 3) == 0) work.row.num_top = *rc::gen::element(0, 1, 3, 20);
  work.row.wants_rank = *rc::gen::inRange(0, 2) == 0;
  return work;
}

// Expects equal results, to the bit of the log-probabilities.
void ExpectEqual(const absl::StatusOr<SampledRow>& got, const absl::StatusOr<SampledRow>& want) {
  RC_ASSERT(got.status() == want.status());
  if (!want.ok()) return;
  RC_ASSERT(got->id == want->id);
  RC_ASSERT(got->logprobs.has_value() == want->logprobs.has_value());
  if (!want->logprobs) return;
  const auto same = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.token_id == b.token_id &&
           std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob);
  };
  RC_ASSERT(got->logprobs->rank == want->logprobs->rank);
  RC_ASSERT(same(got->logprobs->chosen, want->logprobs->chosen));
  RC_ASSERT(std::ranges::equal(got->logprobs->top, want->logprobs->top, same));
}

// One sampler of each kind. A second call continues the first.
class BothSamplers {
 public:
  BothSamplers(const SamplerSpec& spec, ThreadOrder order)
      : device_(testing::MakeDevice(order)),
        drawn_(*device_, std::vector<int32_t>(static_cast<size_t>(spec.max_draws), 0)),
        want_drawn_(static_cast<size_t>(spec.max_draws)),
        on_device_(*DeviceSampler::Create(*device_, spec)),
        on_host_(spec) {}

  // If `fails_first`, a step with these works fails between Prepare and the op.
  void Call(const std::vector<float>& logits, int64_t num_rows, std::vector<Work>& works,
            bool fails_first = false) {
    std::vector<SampleRow> rows;
    for (Work& work : works) {
      work.Refer();
      rows.push_back(work.row);
    }
    const int64_t num_ids = std::ssize(logits) / num_rows, num_draws = std::ssize(want_drawn_);
    DeviceArray<float> copy(*device_, logits);
    SampleArgs args = {.logits = TensorView(copy.data(), DType::kF32, {num_rows, num_ids}),
                       .rows = rows,
                       .drawn = TensorView(drawn_.data(), DType::kI32, {num_draws}),
                       .sampler = on_device_.get()};
    if (fails_first) {
      RC_ASSERT(on_device_->Prepare(rows).ok());
      RC_ASSERT(device_->Synchronize() == absl::OkStatus());
    }
    const auto update = on_device_->Prepare(rows);
    RC_ASSERT(update.ok());
    num_changes_ = std::ssize(update->changes);
    std::vector<TableChange> changes(update->changes.begin(), update->changes.end());
    changes.push_back({.index = -1});  // of no entry, for a call may change none
    DeviceArray<TableChange> sent(*device_, changes);
    RC_ASSERT(UpdateTable(*device_, {.table = update->table,
                                     .changes = TensorView(sent.data(), DType::kI32,
                                                           {std::ssize(changes), 2})})
                  .ok());
    const absl::Status status = DeviceSampler::Enqueue(args);
    RC_ASSERT(status.ok());
    const std::vector<int32_t> drawn = drawn_.ToHost();
    std::vector<absl::StatusOr<SampledRow>> got, want;
    on_device_->Take(got);

    args.logits = TensorView(const_cast<float*>(logits.data()), DType::kF32, {num_rows, num_ids});
    args.drawn = TensorView(want_drawn_.data(), DType::kI32, {num_draws});
    on_host_.Run(args, sampling::RunInOrder);
    on_host_.Take(want);
    RC_ASSERT(got.size() == want.size());
    for (size_t i = 0; i < want.size(); ++i) ExpectEqual(got[i], want[i]);
    RC_ASSERT(drawn == want_drawn_);
  }
  // The changes of the last call.
  int64_t num_changes() const { return num_changes_; }

 private:
  const std::unique_ptr<Device> device_;
  DeviceArray<int32_t> drawn_;
  std::vector<int32_t> want_drawn_;
  const std::unique_ptr<DeviceSampler> on_device_;
  sampling::Sampler on_host_;
  int64_t num_changes_ = 0;
};

// Draws are stored in any order, as those of an engine whose sequences change places.
std::vector<Work> AnyWorks(int32_t vocab_size, int64_t num_rows, int32_t num_draws) {
  std::vector<int32_t> places(static_cast<size_t>(num_draws));
  std::iota(places.begin(), places.end(), 0);
  std::ranges::shuffle(places, std::mt19937(*rc::gen::arbitrary<uint32_t>()));
  std::vector<Work> works;
  const int count = *rc::gen::inRange(1, num_draws + 1);
  for (int i = 0; i < count; ++i) {
    works.push_back(AnyWork(vocab_size, num_rows, num_draws));
    if (works.back().row.given < 0) works.back().row.draw = places[static_cast<size_t>(i)];
  }
  return works;
}

TEST(DeviceSamplerTest, DrawsAndWeighsAsTheHostDoes) {
  int case_number = 0;
  const bool passed = rc::check([&] {
    if (++case_number > QUIRE_RANDOM_CASES) return;
    constexpr int32_t kDraws = 20;
    const std::vector<float> first = *sampling::AnyLogits(*rc::gen::element(12, 700));
    const auto num_ids = static_cast<int32_t>(first.size());
    const int32_t vocab_size = num_ids + *rc::gen::element(0, 3);
    SamplerSpec spec = {
        .vocab_size = vocab_size, .end_ids = {kEnd, kOtherEnd}, .max_rows = 2, .max_draws = kDraws};
    if (*rc::gen::arbitrary<bool>())
      spec.without_piece = {*rc::gen::element(1, kOtherEnd), vocab_size - 1};
    std::ranges::sort(spec.without_piece);
    spec.without_piece.erase(std::unique(spec.without_piece.begin(), spec.without_piece.end()),
                             spec.without_piece.end());
    const ThreadOrder order =
        *rc::gen::element(ThreadOrder::kForward, ThreadOrder::kReverse, ThreadOrder::kRandom);
    BothSamplers samplers(spec, order);
    std::vector<float> logits = first;
    std::vector<float> second =
        sampling::NormalLogits(num_ids, 2.0f, *rc::gen::arbitrary<uint32_t>());
    if (*rc::gen::inRange(0, 8) == 0) {
      second[0] = *rc::gen::element(std::numeric_limits<float>::infinity(), 3e38f, 1e-40f);
    }
    logits.insert(logits.end(), second.begin(), second.end());
    for (int call = 0; call < 3; ++call) {
      std::vector<Work> works = AnyWorks(vocab_size, 2, kDraws);
      samplers.Call(logits, 2, works);
    }
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(case_number, std::min(QUIRE_RANDOM_CASES, 90));
}

// There are more sequences than slots, and each call has some of them.
TEST(DeviceSamplerTest, SequencesThatGoOnSendWhatChangedAndDrawAsTheHostDoes) {
  int case_number = 0;
  const bool passed = rc::check([&] {
    if (++case_number > QUIRE_RANDOM_CASES) return;
    constexpr int32_t kSequences = 7, kDraws = 4, kIds = 50;
    BothSamplers samplers(
        {.vocab_size = kIds, .end_ids = {kEnd, kOtherEnd}, .max_rows = 1, .max_draws = kDraws},
        ThreadOrder::kForward);
    const std::vector<float> logits =
        sampling::NormalLogits(kIds, 1.0f, *rc::gen::arbitrary<uint32_t>());
    std::vector<Work> sequences;
    for (int32_t i = 0; i < kSequences; ++i) {
      sequences.push_back(AnyDraw(kIds, kDraws));
      sequences.back().row.sequence = 1000 + i;
    }
    std::vector<size_t> chosen;
    for (int call = 0; call < 12; ++call) {
      const bool goes_on = call > 0 && *rc::gen::inRange(0, 3) > 0;
      if (!goes_on) {
        chosen.clear();
        for (size_t i = 0; i < sequences.size() && chosen.size() < kDraws; ++i) {
          if (*rc::gen::arbitrary<bool>()) chosen.push_back(i);
        }
      }
      std::vector<Work> works;
      for (const size_t i : chosen) {
        Work& sequence = sequences[i];
        for (int k = *rc::gen::element(0, 1, 1, 1, 2); k > 0; --k) {
          sequence.tokens.push_back(*rc::gen::inRange(0, 20));
        }
        Work& work = works.emplace_back(sequence);
        work.row.draw = static_cast<int32_t>(works.size()) - 1;
        work.row.previous = *rc::gen::oneOf(rc::gen::just(-1), rc::gen::inRange(0, kDraws));
        work.row.position = std::ssize(work.tokens) - work.row.prompt_len;
        if (work.row.previous >= 0) ++work.row.position;
        if (*rc::gen::inRange(0, 4) == 0) work.banned = {};
      }
      const bool fails_first = *rc::gen::inRange(0, 8) == 0;
      samplers.Call(logits, 1, works, fails_first);
      // The position, the token of the call before, has_banned and the slot, and four counts.
      if (goes_on && !fails_first) RC_ASSERT(samplers.num_changes() <= std::ssize(chosen) * 8);
    }
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(case_number, std::min(QUIRE_RANDOM_CASES, 90));
}

// Makes calls outside of a random case, in which RC_ASSERT is a test's failure.
template <typename Body>
void ExpectNoDifference(Body body) {
  int cases = 0;
  EXPECT_TRUE(rc::check([&] {
    if (++cases == 1) body();
  }));
}

// As many ids as large vocabularies have, and cuts that need several rounds.
TEST(DeviceSamplerTest, AgreesOnALargeVocabulary) {
  constexpr int32_t kIds = 50000;
  std::vector<float> logits = sampling::NormalLogits(kIds, 3.0f, 7);
  for (int32_t id = 1000; id < 3000; ++id) logits[static_cast<size_t>(id)] = 9.0f;  // ties
  std::vector<Work> works(7);
  works[0].row.params = {.temperature = 0.0f};
  works[1].row.params = {.temperature = 1.0f};
  works[2].row.params = {.temperature = 0.8f, .top_k = 1500};
  works[3].row.params = {.temperature = 1.0f, .top_p = 0.6f};
  works[4].row.params = {.temperature = 1.2f, .typical_p = 0.7f};
  works[5].row.params = {.temperature = 1.0f, .top_k = 30000, .top_p = 0.99f, .min_p = 0.001f};
  works[6].row.given = 4711;
  for (int32_t i = 0; i < 7; ++i) {
    works[static_cast<size_t>(i)].row.draw = i;
    works[static_cast<size_t>(i)].row.num_top = 5;
    works[static_cast<size_t>(i)].row.wants_rank = true;
    works[static_cast<size_t>(i)].row.seed = 100;
  }
  BothSamplers samplers({.vocab_size = kIds, .max_rows = 1, .max_draws = 7}, ThreadOrder::kForward);
  ExpectNoDifference([&] { samplers.Call(logits, 1, works); });
}

// One thread has all of four ids, and weighs each against the best before it.
TEST(DeviceSamplerTest, AgreesOnManyDrawsAmongNearlyEqualScores) {
  constexpr int32_t kDraws = 20;
  const std::vector<float> logits(4, 1.0f);
  BothSamplers samplers({.vocab_size = 4, .max_rows = 1, .max_draws = kDraws},
                        ThreadOrder::kForward);
  ExpectNoDifference([&] {
    for (uint64_t call = 0; call < 100; ++call) {
      std::vector<Work> works(kDraws);
      for (int32_t i = 0; i < kDraws; ++i) {
        SampleRow& row = works[static_cast<size_t>(i)].row;
        row.params = {.temperature = 1.0f};
        row.draw = i;
        row.seed = call * kDraws + static_cast<uint64_t>(i);
      }
      samplers.Call(logits, 1, works);
    }
  });
}

TEST(DeviceSamplerTest, RefusesARowOfNegativeInfinities) {
  const std::vector<float> logits(12, -std::numeric_limits<float>::infinity());
  std::vector<Work> works(2);
  works[0].row.draw = 0;
  works[1].row.given = 3;
  works[1].row.num_top = 1;
  BothSamplers samplers({.vocab_size = 12, .max_rows = 1, .max_draws = 2}, ThreadOrder::kForward);
  ExpectNoDifference([&] { samplers.Call(logits, 1, works); });
}

}  // namespace
}  // namespace quire::kernels::cuda
