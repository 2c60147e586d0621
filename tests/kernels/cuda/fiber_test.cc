// Tests both ways of switching between fibers. This file is built once with fiber.cc as in the
// emulator, and once with fiber.cc based on ucontext.

#include "kernels/cuda/emulator/fiber.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire::kernels::cuda::emulator {
namespace {

// These variables are global, because the function that a fiber runs takes no arguments.
Fiber* running = nullptr;
std::vector<int>* visited = nullptr;

void Count() {
  for (int i = 0;; ++i) {
    visited->push_back(i);
    running->Suspend();
  }
}

// Keeps values in registers and on the stack across a switch.
void Sum() {
  double sum = 0.0;
  for (int i = 1;; ++i) {
    volatile double term = i * 0.5;
    running->Suspend();
    sum += term;
    visited->push_back(static_cast<int>(sum * 2));
  }
}

class FiberTest : public ::testing::Test {
 protected:
  void SetUp() override { visited = &visited_; }
  void Resume(Fiber& fiber) {
    running = &fiber;
    fiber.Resume();
  }
  std::vector<int> visited_;
};

TEST_F(FiberTest, GoesOnWhereItSuspended) {
  Fiber a(&Count), b(&Count);
  Resume(a);
  Resume(a);
  Resume(b);
  Resume(a);
  Resume(b);
  EXPECT_EQ(visited_, (std::vector<int>{0, 1, 0, 2, 1}));
}

TEST_F(FiberTest, KeepsItsValues) {
  Fiber fiber(&Sum);
  for (int i = 0; i < 5; ++i) Resume(fiber);
  EXPECT_EQ(visited_, (std::vector<int>{1, 3, 6, 10}));
}

// The emulator never resumes the threads of a block that has failed. The fibers of the next block
// reuse the stacks of these threads.
TEST_F(FiberTest, AStackServesAgainAfterItsFiberWasGivenUp) {
  for (int i = 0; i < 100; ++i) {
    Fiber fiber(&Count);
    Resume(fiber);
  }
  EXPECT_EQ(visited_, std::vector<int>(100, 0));
}

}  // namespace
}  // namespace quire::kernels::cuda::emulator
