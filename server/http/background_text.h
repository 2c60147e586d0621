#pragma once

// Makes a text on a separate thread, and wakes a polling thread when the text is made.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace quire::server {

// Wakes a poll(2) from another thread.
class Wakeup {
 public:
  Wakeup();
  int fd() const { return event_.get(); }  // readable between Wake and Clear
  void Wake();
  void Clear();

 private:
  const base::UniqueFd event_;
};

class BackgroundText {
 public:
  struct Made {
    int64_t number = 0;
    std::string text;
  };

  // `done`, which must outlive this, is woken after each text.
  BackgroundText(std::function<std::string()> make, Wakeup& done);
  ~BackgroundText();  // waits for the text that is being made
  BackgroundText(const BackgroundText&) = delete;
  BackgroundText& operator=(const BackgroundText&) = delete;

  // Asks for a text that is begun after this call, and returns the text's number. All calls that
  // come while a text is being made share the next text.
  int64_t Ask();
  // Returns the newest text, or nullopt if there is none or Take has already returned it. A text
  // answers every Ask that returned the text's number or a lower one.
  std::optional<Made> Take();

 private:
  void Run();

  const std::function<std::string()> make_;
  Wakeup& done_;  // not owned
  base::Mutex mu_;
  base::CondVar changed_;
  int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;  // number of the last text asked for
  int64_t begun_ ABSL_GUARDED_BY(mu_) = 0;  // number of the last text begun
  std::optional<Made> made_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::server
