#pragma once

// The time of a step, fitted to measurements of a server.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/scheduler/step_plan.h"

namespace quire::tools {

// The work of one step, or of many steps together.
struct Work {
  double steps = 0.0;
  double decodes = 0.0;        // entries of one token
  double prompt_tokens = 0.0;  // all other tokens
  double keys = 0.0;           // read by decodes and prompt tokens
};
Work WorkOf(const engine::StepPlan& plan);

// seconds = step * steps + decode * decodes + prompt_token * prompt tokens + key * keys. The
// default is the fit of docs/simulator.md: quire-stories on two cores.
struct CostModel {
  double step = 7.9e-4;
  double decode = 4.4e-4;
  double prompt_token = 2.8e-4;
  double key = 0.0;

  double Seconds(const Work& work) const {
    return step * work.steps + decode * work.decodes + prompt_token * work.prompt_tokens +
           key * work.keys;
  }
};

struct Measurement {
  Work work;
  double seconds = 0.0;  // in which the server always had work
};
// Reads the output of `quire bench --json` of a closed loop (--concurrency), in which the server
// was never idle. The counters of the server give steps and tokens. Keys are estimated: a token
// reads half of a prompt, and a decode a prompt and half of an answer.
absl::StatusOr<Measurement> ReadBench(const std::string& path);

struct Fit {
  CostModel model;
  double worst_error = 0.0;  // the greatest |predicted / measured - 1|
};
// Least squares of relative errors over prices that are not negative. Wants at least one
// measurement for each price that is to be told from the others; prices that the measurements do
// not show are 0.
absl::StatusOr<Fit> FitCostModel(std::span<const Measurement> measurements);

}  // namespace quire::tools
