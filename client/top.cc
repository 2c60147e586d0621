// quire top: one screen of a server's load, drawn again and again.

#include <algorithm>
#include <array>
#include <optional>
#include <poll.h>
#include <string>
#include <termios.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "client/command.h"
#include "client/top_screen.h"

namespace quire::client {
namespace {

struct TopFlags {
  CommonFlags common;
  absl::Duration interval = absl::Seconds(1);
  std::optional<uint64_t> count;
};

absl::StatusOr<TopLook> Look(Connection& connection) {
  TopLook look;
  v1::ListModelsResponse models;
  RETURN_IF_ERROR(connection.ListModels({}, &models));
  if (models.models_size() > 0) look.model = models.models(0).name();
  RETURN_IF_ERROR(connection.GetServerInfo({}, &look.info));
  RETURN_IF_ERROR(connection.GetStats({}, &look.stats));
  RETURN_IF_ERROR(connection.ListTenants({}, &look.tenants));
  v1::GetCacheMapRequest request;
  request.set_cells(1);
  request.set_max_nodes(0);
  const absl::Status status = connection.GetCacheMap(request, &look.cache);
  // A server that is busy, or older than this, has a screen without prefixes.
  if (!absl::IsResourceExhausted(status) && !absl::IsUnimplemented(status)) {
    RETURN_IF_ERROR(status);
  }
  return look;
}

// The terminal's second screen, while this exists.
class SecondScreen {
 public:
  explicit SecondScreen(bool is_on) : is_on_(is_on) {
    if (is_on_) Print("\x1b[?1049h\x1b[?25l");
  }
  ~SecondScreen() {
    if (is_on_) Print("\x1b[?25h\x1b[?1049l");
  }
  SecondScreen(const SecondScreen&) = delete;
  SecondScreen& operator=(const SecondScreen&) = delete;

  void Show(const std::string& text) {
    // Each line clears what it leaves of the line before it, so that nothing flickers.
    Print(is_on_
              ? absl::StrCat("\x1b[H", absl::StrReplaceAll(text, {{"\n", "\x1b[K\r\n"}}), "\x1b[J")
              : absl::StrCat(text, "\n"));
  }

 private:
  const bool is_on_;
};

// Waits for the next look, or for the end: the key q, Ctrl-C, or the terminal's end. While this
// exists, the terminal gives each key at once, and does not show it.
class Wait {
 public:
  explicit Wait(Interrupt& interrupt)
      : interrupt_(interrupt), has_keys_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    interrupt_.SetHandler([this] { (void)eventfd_write(interrupted_.get(), 1); });
    if (!has_keys_) return;
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  ~Wait() {
    interrupt_.ClearHandler();
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Returns false at the end.
  bool Until(absl::Time time) {
    while (true) {
      const absl::Duration left = std::max(absl::ZeroDuration(), time - absl::Now());
      const auto milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
      std::array<pollfd, 2> waited = {
          pollfd{.fd = interrupted_.get(), .events = POLLIN},
          pollfd{.fd = has_keys_ ? STDIN_FILENO : -1, .events = POLLIN}};
      const int num_ready = poll(waited.data(), waited.size(),
                                 static_cast<int>(std::min<int64_t>(milliseconds, kMost)));
      if (waited[0].revents != 0) return false;
      char key = 0;
      if (waited[1].revents != 0 && (read(STDIN_FILENO, &key, 1) < 1 || key == 'q')) return false;
      if (num_ready <= 0 && absl::Now() >= time) return true;
    }
  }

 private:
  static constexpr int64_t kMost = 1 << 30;

  Interrupt& interrupt_;
  const base::UniqueFd interrupted_{eventfd(0, EFD_CLOEXEC)};
  termios before_{};
  const bool has_keys_;  // standard input is a terminal
};

absl::Status Watch(Connection& connection, const TopFlags& given, Interrupt& interrupt) {
  Wait wait(interrupt);
  SecondScreen terminal(isatty(STDOUT_FILENO) != 0);
  TopScreen screen;
  absl::Time before = absl::InfinitePast();
  for (uint64_t i = 0; !given.count.has_value() || i < *given.count; ++i) {
    if (i > 0 && !wait.Until(before + given.interval)) break;
    ASSIGN_OR_RETURN(const TopLook look, Look(connection));
    const absl::Time now = absl::Now();
    ScreenSize size = TerminalSize();
    --size.rows;  // the last line's newline must not scroll the screen
    terminal.Show(screen.Draw(look, i == 0 ? 0 : absl::ToDoubleSeconds(now - before), size));
    before = now;
  }
  return absl::OkStatus();
}

}  // namespace

int RunTop(const Args& args, Interrupt& interrupt) {
  TopFlags given;
  base::FlagSet flags(
      "quire top [flags]",
      "Shows a server's load on one screen until q or Ctrl-C: tokens a second, KV blocks, "
      "named prefixes with their users, and tenants. Needs the role operator.");
  flags.Section("Watching");
  flags.Add("interval", "TIME", "time between two screens (default 1s)", &given.interval);
  flags.Add("count", "N", "end after N screens", &given.count);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  const absl::Status status = Watch(**connection, given, interrupt);
  interrupt.ClearHandler();
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace quire::client
