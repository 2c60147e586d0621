#include "client/top_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/terminal_text.h"

namespace quire::client {
namespace {

// Returns a number with a unit of thousands, in at most five characters: "412", "8.21k", "1.86M".
std::string Short(double number) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(number) >= 999.5 && unit + 1 < kUnits.size()) {
    number /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || std::abs(number) >= 99.95 ? 0 : std::abs(number) >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f%s", digits, number, kUnits[unit]);
}

std::string Sparkline(const std::deque<double>& rates, size_t columns) {
  constexpr std::array<const char*, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double most = rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
  std::string out;
  for (size_t i = rates.size() - std::min(rates.size(), columns); i < rates.size(); ++i) {
    const double height = most > 0 ? rates[i] / most : 0;
    out += kBars[static_cast<size_t>(std::lround(height * (kBars.size() - 1)))];
  }
  return out;
}

struct Part {
  const char* mark;
  uint64_t count;
};

// Returns a bar of `columns` marks, shared out in proportion to the counts. Every part that is not
// zero has one mark at least, where there is room.
std::string Bar(const std::vector<Part>& parts, int columns) {
  uint64_t total = 0;
  for (const Part& part : parts) total += part.count;
  std::string out;
  int drawn = 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < parts.size() && total > 0; ++i) {
    sum += parts[i].count;
    int end = static_cast<int>(
        std::lround(static_cast<double>(sum) / static_cast<double>(total) * columns));
    if (parts[i].count > 0) end = std::min(std::max(end, drawn + 1), columns);
    for (; drawn < end; ++drawn) out += parts[i].mark;
  }
  return out;
}

double Percent(uint64_t part, uint64_t total) {
  return total == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(total);
}

std::string LimitOf(bool is_limited, double left, uint32_t limit) {
  return is_limited ? absl::StrCat(Short(left), "/", Short(limit)) : "-";
}

// Returns how long a prefix lasts: "59s", "42m", "3h05m".
std::string LeftOf(double seconds) {
  const auto left = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e6));
  if (left < 60) return absl::StrCat(left, "s");
  if (left < 3600) return absl::StrCat(left / 60, "m");
  return absl::StrFormat("%dh%02dm", left / 3600, left % 3600 / 60);
}

std::string TimeOf(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.0f ms", 1000 * seconds)
                     : absl::StrFormat("%.1f s", seconds);
}

// Returns `text` of what came since the look before, and of all in parentheses.
std::string LateAndAll(const std::optional<std::string>& late,
                       const std::optional<std::string>& all) {
  if (!all) return "-";
  return absl::StrCat(late.value_or("-"), " (", *all, ")");
}

// Returns the mean time to the first token between two looks; nothing if there was none.
std::optional<std::string> MeanTtft(const v1::LatencyStats& from, const v1::LatencyStats& to) {
  if (to.first_tokens() <= from.first_tokens()) return std::nullopt;
  return TimeOf((to.ttft_seconds() - from.ttft_seconds()) /
                static_cast<double>(to.first_tokens() - from.first_tokens()));
}

// Returns the share of prompt tokens that were cached between two looks; nothing if none came.
std::optional<std::string> HitRate(const v1::TokenStats& from, const v1::TokenStats& to) {
  if (to.prompt_cached() < from.prompt_cached()) return std::nullopt;
  const uint64_t cached = to.prompt_cached() - from.prompt_cached();
  const uint64_t computed = to.prompt_computed() - from.prompt_computed();
  if (cached + computed == 0) return std::nullopt;
  return absl::StrFormat("%.0f%%", Percent(cached, cached + computed));
}

std::string TenantName(const std::string& name) {
  return name.empty() ? "(all callers)" : ForTerminal(name);
}

// Adds the prefixes that saved most tokens, in no more than half of the screen.
void AddPrefixes(const v1::GetCacheMapResponse& cache, const ScreenSize& size,
                 std::vector<std::string>& lines) {
  if (cache.prefixes_size() == 0) return;
  lines.emplace_back();
  constexpr int kUsers = 15;
  lines.push_back(absl::StrFormat("%-20s %-12s %7s %6s %6s  %s EXPIRES", "PREFIX", "TENANT",
                                  "TOKENS", "HITS", "SAVED", Padded("USERS", kUsers)));
  const int most = std::min(cache.prefixes_size(), std::max(3, size.rows / 2 - 3));
  for (int i = 0; i < most; ++i) {
    const v1::CachePrefix& prefix = cache.prefixes(i);
    std::string users;
    for (const v1::CacheUser& user : prefix.users()) {
      absl::StrAppend(&users, users.empty() ? "" : ", ", TenantName(user.tenant()), " ",
                      user.num_sequences());
    }
    const std::string name =
        ForTerminal(prefix.display_name().empty() ? prefix.name() : prefix.display_name());
    lines.push_back(absl::StrCat(Padded(name, 20), " ", Padded(TenantName(prefix.tenant()), 12),
                                 absl::StrFormat(" %7s %6s %6s  ", Short(prefix.num_tokens()),
                                                 Short(static_cast<double>(prefix.hits())),
                                                 Short(static_cast<double>(prefix.saved_tokens()))),
                                 Padded(users.empty() ? "-" : users, kUsers), " ",
                                 LeftOf(prefix.expires_in_seconds())));
  }
}

}  // namespace

std::string TopScreen::Draw(const TopLook& look, double seconds, const ScreenSize& size) {
  const v1::GetStatsResponse& now = look.stats;
  const auto rate = [&](uint64_t from, uint64_t to) {
    // A server that has started anew counts from 0.
    return has_before_ && seconds > 0 && to >= from ? static_cast<double>(to - from) / seconds : 0;
  };
  const v1::TokenStats& tokens = now.tokens();
  const v1::TokenStats& old = before_.tokens();
  const double generated = rate(old.generated(), tokens.generated());
  const double computed = rate(old.prompt_computed(), tokens.prompt_computed());
  const double cached = rate(old.prompt_cached(), tokens.prompt_cached());
  const double steps = rate(before_.sequences().steps(), now.sequences().steps());
  if (has_before_) rates_.push_back(generated);
  if (rates_.size() > kMostRates) rates_.pop_front();

  std::vector<std::string> lines;
  lines.push_back(absl::StrFormat(
      "%s   %s %s   step %s   %d running   %d waiting%s", Cut(ForTerminal(look.model), 24),
      ForTerminal(look.info.backend()), ForTerminal(look.info.isa_path()),
      steps > 0 ? absl::StrFormat("%.1f ms", 1000 / steps) : "-", now.queue().num_running(),
      now.queue().num_waiting(), now.draining() ? "   DRAINING" : ""));
  const std::string line = absl::StrFormat("tokens/s  %5s generated  %5s of prompts  %5s cached  ",
                                           Short(generated), Short(computed), Short(cached));
  const int left = std::max(0, size.columns - static_cast<int>(line.size()));
  lines.push_back(line + Sparkline(rates_, static_cast<size_t>(left)));
  const v1::BlockStats& blocks = now.blocks();
  const uint64_t pinned = std::min(blocks.pinned(), blocks.held());
  const uint64_t shared = look.cache.cells_size() == 1 ? look.cache.cells(0).shared() : 0;
  const std::string shares = absl::StrFormat(
      "  held %.0f%%  pinned %.0f%%  cached %.0f%%  free %.0f%%  of %s%s",
      Percent(blocks.held() - pinned, blocks.total()), Percent(pinned, blocks.total()),
      Percent(blocks.cached(), blocks.total()), Percent(blocks.free(), blocks.total()),
      Short(blocks.total()),
      shared > 0 ? absl::StrFormat("  shared %.0f%%", Percent(shared, blocks.total())) : "");
  constexpr int kLabel = 10;
  lines.push_back(
      absl::StrCat("blocks    ",
                   Bar({{"█", blocks.held() - pinned},
                        {"▓", pinned},
                        {"▒", blocks.cached()},
                        {"░", blocks.free()}},
                       std::max(4, size.columns - kLabel - static_cast<int>(shares.size()))),
                   shares));
  lines.push_back(absl::StrFormat("total     %5s generated  %5s of prompts  %5s cached",
                                  Short(static_cast<double>(tokens.generated())),
                                  Short(static_cast<double>(tokens.prompt_computed())),
                                  Short(static_cast<double>(tokens.prompt_cached()))));
  const bool goes_on = has_before_ && now.sequences().steps() >= before_.sequences().steps();
  const v1::GetStatsResponse& from = goes_on ? before_ : now;
  lines.push_back(absl::StrFormat(
      "requests  TTFT %s  hit rate %s  %s preempted  %s refused",
      LateAndAll(MeanTtft(from.latency(), now.latency()), MeanTtft({}, now.latency())),
      LateAndAll(HitRate(from.tokens(), tokens), HitRate({}, tokens)),
      Short(static_cast<double>(now.sequences().preemptions())),
      Short(static_cast<double>(now.sequences().requests_rejected()))));
  AddPrefixes(look.cache, size, lines);
  if (look.tenants.tenants_size() > 0) {
    lines.emplace_back();
    lines.push_back(absl::StrFormat("%-20s %5s %12s %12s %8s %7s %7s", "TENANT", "OPEN",
                                    "REQUESTS/MIN", "TOKENS/MIN", "ACCEPTED", "REFUSED", "TOKENS"));
    std::vector<const v1::Tenant*> tenants;
    for (const v1::Tenant& tenant : look.tenants.tenants()) tenants.push_back(&tenant);
    std::stable_sort(tenants.begin(), tenants.end(), [](const v1::Tenant* a, const v1::Tenant* b) {
      return a->served_tokens() > b->served_tokens();
    });
    for (const v1::Tenant* tenant : tenants) {
      const std::string name = Padded(TenantName(tenant->name()), 20);
      lines.push_back(absl::StrCat(
          name, absl::StrFormat(" %5d %12s %12s %8s %7s %7s", tenant->num_requests(),
                                LimitOf(tenant->has_requests_left(), tenant->requests_left(),
                                        tenant->requests_per_minute()),
                                LimitOf(tenant->has_tokens_left(), tenant->tokens_left(),
                                        tenant->tokens_per_minute()),
                                Short(static_cast<double>(tenant->accepted_requests())),
                                Short(static_cast<double>(tenant->refused_requests())),
                                Short(static_cast<double>(tenant->served_tokens())))));
    }
  }
  before_ = now;
  has_before_ = true;

  lines.resize(std::min(lines.size(), static_cast<size_t>(std::max(size.rows, 1))));
  std::string out;
  for (const std::string& text : lines) absl::StrAppend(&out, Cut(text, size.columns), "\n");
  return out;
}

}  // namespace quire::client
