#pragma once

// Holds an engine's model at the start of each step until the test lets the step run.

#include <chrono>
#include <memory>
#include <semaphore>

#include "tests/testing/engine_harness.h"

namespace quire::testing {

// Holds each step of an engine at its start until LetGo or Open. Create the gate while the engine
// is idle. An open gate lets all steps pass. The gate may be destroyed before the engine, because
// the engine's hook shares the gate's state.
class StepGate {
 public:
  explicit StepGate(EngineHarness& harness) {
    harness.before_forward() = [state = state_] {
      state->arrived.release();
      state->go.acquire();
    };
  }
  bool WaitForStep() { return state_->arrived.try_acquire_for(std::chrono::seconds(30)); }
  void LetGo() { state_->go.release(); }
  void Open() { state_->go.release(1 << 20); }

 private:
  struct State {
    std::counting_semaphore<> arrived{0};
    std::counting_semaphore<> go{0};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace quire::testing
