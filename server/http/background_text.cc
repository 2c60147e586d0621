#include "server/http/background_text.h"

#include <chrono>
#include <utility>

#include <sys/eventfd.h>

namespace quire::server {

Wakeup::Wakeup() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Wakeup::Wake() { ::eventfd_write(event_.get(), 1); }

void Wakeup::Clear() {
  eventfd_t ignored = 0;
  ::eventfd_read(event_.get(), &ignored);
}

BackgroundText::BackgroundText(std::function<std::string()> make, Wakeup& done)
    : make_(std::move(make)), done_(done), thread_([this] { Run(); }) {}

BackgroundText::~BackgroundText() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

int64_t BackgroundText::Ask() {
  base::MutexLock lock(mu_);
  changed_.NotifyOne();
  return asked_ = begun_ + 1;
}

std::optional<BackgroundText::Made> BackgroundText::Take() {
  base::MutexLock lock(mu_);
  return std::exchange(made_, std::nullopt);
}

void BackgroundText::Run() {
  while (true) {
    int64_t number = 0;
    {
      base::MutexLock lock(mu_);
      while (asked_ <= begun_ && !stopping_) changed_.WaitFor(mu_, std::chrono::minutes(1));
      if (stopping_) return;
      number = ++begun_;
    }
    std::string text = make_();
    {
      base::MutexLock lock(mu_);
      made_ = Made{.number = number, .text = std::move(text)};
    }
    done_.Wake();
  }
}

}  // namespace quire::server
