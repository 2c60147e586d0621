#include "base/interrupt.h"

#include <utility>

#include "base/check.h"

namespace quire::base {
namespace {

constexpr int64_t kWorkPerCheck = 16 * 1024;

thread_local Interrupt* current = nullptr;

}  // namespace

Interrupt::Interrupt(std::function<absl::Status()> check)
    : check_(std::move(check)), left_(kWorkPerCheck) {
  QUIRE_CHECK(current == nullptr) << "a thread's work has one interrupt";
  current = this;
}

Interrupt::~Interrupt() { current = nullptr; }

bool Interrupt::Spend(int64_t work) {
  left_ -= work;
  if (left_ > 0) return false;
  left_ = 0;
  if (status_.ok()) status_ = check_();
  if (status_.ok()) left_ = kWorkPerCheck;
  return !status_.ok();
}

bool Interrupted(int64_t work) { return current != nullptr && current->Spend(work); }

}  // namespace quire::base
