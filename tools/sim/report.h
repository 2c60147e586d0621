#pragma once

// Tables and pictures of simulations.

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"

#include "tools/sim/fleet.h"

namespace quire::tools {

// Columns of a table, aligned to the right but the first.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

using NamedResults = std::vector<std::pair<std::string, FleetResult>>;
// One row for each result.
std::string FormatResults(const NamedResults& results);
// One row for each tenant of each result.
std::string FormatTenants(const NamedResults& results);
nlohmann::ordered_json ToJson(const NamedResults& results);

// An SVG picture of the results' times to the first token, with a line at `slo_ttft` seconds, times
// between tokens (p50, p95 and p99 of both, on a logarithmic axis) and goodput. At most 12 results.
std::string DrawResults(const NamedResults& results, double slo_ttft);

// Values between 0 and 1 by size: one line for each name.
struct Curves {
  std::string title;
  std::string x_title;
  std::vector<std::string> x_labels;
  std::vector<std::pair<std::string, std::vector<double>>> lines;  // as long as x_labels
};
// An SVG picture with no outside resource, for light and dark pages.
std::string DrawCurves(const Curves& curves);

}  // namespace quire::tools
