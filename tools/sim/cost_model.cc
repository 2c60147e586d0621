#include "tools/sim/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace quire::tools {
namespace {

constexpr int kNumPrices = 4;
using Vector = std::array<double, kNumPrices>;

Vector AsVector(const Work& work) {
  return {work.steps, work.decodes, work.prompt_tokens, work.keys};
}

// Solves the normal equations of the prices in `used`, by elimination. Returns nullopt when they do
// not determine the prices.
std::optional<Vector> Solve(std::span<const Measurement> measurements, unsigned used) {
  std::array<std::array<double, kNumPrices + 1>, kNumPrices> rows = {};
  for (const Measurement& m : measurements) {
    Vector x = AsVector(m.work);
    for (double& value : x) value /= m.seconds;
    for (int i = 0; i < kNumPrices; ++i) {
      for (int j = 0; j < kNumPrices; ++j) rows[i][j] += x[i] * x[j];
      rows[i][kNumPrices] += x[i];
    }
  }
  for (int i = 0; i < kNumPrices; ++i) {
    if ((used >> i & 1) != 0) continue;
    for (int j = 0; j < kNumPrices; ++j) rows[i][j] = rows[j][i] = i == j ? 1.0 : 0.0;
    rows[i][kNumPrices] = 0.0;
  }
  const Vector scale = {rows[0][0], rows[1][1], rows[2][2], rows[3][3]};
  for (int i = 0; i < kNumPrices; ++i) {
    if (!(rows[i][i] > 1e-9 * scale[i])) return std::nullopt;
    for (int k = i + 1; k < kNumPrices; ++k) {
      const double factor = rows[k][i] / rows[i][i];
      for (int j = i; j <= kNumPrices; ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  Vector prices = {};
  for (int i = kNumPrices; i-- > 0;) {
    double value = rows[i][kNumPrices];
    for (int j = i + 1; j < kNumPrices; ++j) value -= rows[i][j] * prices[j];
    prices[i] = value / rows[i][i];
  }
  return prices;
}

}  // namespace

Work WorkOf(const engine::StepPlan& plan) {
  Work work{.steps = 1.0};
  for (const engine::StepPlanEntry& entry : plan.entries) {
    const double num_tokens = entry.num_tokens;
    if (entry.num_tokens == 1) {
      ++work.decodes;
    } else {
      work.prompt_tokens += num_tokens;
    }
    work.keys += num_tokens * (static_cast<double>(entry.first_position) + (num_tokens + 1) / 2);
  }
  return work;
}

absl::StatusOr<Measurement> ReadBench(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) {
    return absl::NotFoundError(
        absl::StrCat(path, ": cannot be read; want the output of `quire bench --json`"));
  }
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  std::string missing;
  const auto number = [&](const nlohmann::json& object, const char* name) {
    const auto it = object.is_object() ? object.find(name) : object.end();
    if (it != object.end() && it->is_number()) return it->get<double>();
    missing = name;
    return 0.0;
  };
  const nlohmann::json server =
      json.is_object() ? json.value("server", nlohmann::json()) : nlohmann::json();
  Measurement m;
  m.seconds = number(json, "wall_seconds");
  const double num_requests = number(json, "num_ok");
  const double prompt_tokens = number(json, "prompt_tokens");
  const double output_tokens = number(json, "output_tokens");
  m.work.steps = number(server, "steps");
  const double generated = number(server, "generated");
  m.work.prompt_tokens = number(server, "prompt_computed") + number(server, "recomputed");
  // The first token of an answer comes from the step of the prompt's last chunk.
  m.work.decodes = std::max(generated - num_requests, 0.0);
  if (missing.empty() && (m.seconds <= 0.0 || num_requests < 1.0 || m.work.steps < 1.0)) {
    missing = "a load that ran";
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no ", missing,
                     "; want the output of `quire bench --json --concurrency N` from a server that "
                     "answers GetStats"));
  }
  const double prompt = prompt_tokens / num_requests;
  const double answer = output_tokens / num_requests;
  m.work.keys = m.work.prompt_tokens * prompt / 2 + m.work.decodes * (prompt + answer / 2);
  return m;
}

absl::StatusOr<Fit> FitCostModel(std::span<const Measurement> measurements) {
  if (measurements.empty()) {
    return absl::InvalidArgumentError(
        "want the output of `quire bench --json` in at least one file");
  }
  std::optional<Vector> best;
  double least = std::numeric_limits<double>::infinity();
  double worst_of_best = 0.0;
  for (unsigned used = 1; used < 1u << kNumPrices; ++used) {
    const std::optional<Vector> prices = Solve(measurements, used);
    if (!prices || std::ranges::any_of(*prices, [](double price) { return price < 0.0; })) continue;
    double sum = 0.0, worst = 0.0;
    for (const Measurement& m : measurements) {
      const Vector x = AsVector(m.work);
      double seconds = 0.0;
      for (int i = 0; i < kNumPrices; ++i) seconds += x[i] * (*prices)[i];
      const double error = seconds / m.seconds - 1.0;
      sum += error * error;
      worst = std::max(worst, std::abs(error));
    }
    if (sum < least) {
      least = sum;
      best = prices;
      worst_of_best = worst;
    }
  }
  if (!best) return absl::InvalidArgumentError("the measurements determine no price");
  const Vector& prices = *best;
  return Fit{.model = {.step = prices[0],
                       .decode = prices[1],
                       .prompt_token = prices[2],
                       .key = prices[3]},
             .worst_error = worst_of_best};
}

}  // namespace quire::tools
