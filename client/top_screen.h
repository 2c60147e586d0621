#pragma once

// The screen of `quire top`, as text.

#include <deque>
#include <string>
#include <string_view>

#include "client/terminal_text.h"
#include "quire/v1/control_service.pb.h"
#include "quire/v1/tenant_service.pb.h"

namespace quire::client {

// The state of a server at one look.
struct TopLook {
  std::string model;
  v1::GetServerInfoResponse info;
  v1::GetStatsResponse stats;
  v1::ListTenantsResponse tenants;
  v1::GetCacheMapResponse cache;  // its prefixes, and one cell
};

// Makes one screen after another. Keeps the rates of the latest looks for the sparkline.
class TopScreen {
 public:
  // Returns the screen of `look`, `seconds` after the one before: at most size.rows lines, each
  // with a newline at its end and at most size.columns characters.
  std::string Draw(const TopLook& look, double seconds, const ScreenSize& size);

 private:
  static constexpr size_t kMostRates = 60;

  v1::GetStatsResponse before_;
  bool has_before_ = false;
  std::deque<double> rates_;  // generated tokens a second, oldest first
};

}  // namespace quire::client
