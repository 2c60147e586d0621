#include "tools/sim/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace quire::tools {
namespace {

std::string Milliseconds(double seconds) { return absl::StrFormat("%.1f", seconds * 1e3); }

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Okabe and Ito's colours, which differ for all kinds of sight.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#777777", "#999900"};

// The beginning of a picture, for light and dark pages.
std::string Begin(int width, int height) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n"
      "<style>text{fill:#222}.g{stroke:#888;stroke-opacity:.35}"
      "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n",
      width, height);
}

}  // namespace

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&out, i > 0 ? "  " : "", i > 0 ? space : "", row[i], i == 0 ? space : "");
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

std::string FormatResults(const NamedResults& results) {
  std::vector<std::vector<std::string>> rows = {{"", "requests", "refused", "hit", "recomputed",
                                                 "preempted", "TTFT ms p50", "p95", "p99",
                                                 "TPOT ms p50", "p95", "p99", "goodput/s", "Jain",
                                                 "busiest", "us/step", "router blocks", "real s"}};
  for (const auto& [name, r] : results) {
    rows.push_back(
        {name, absl::StrCat(r.num_served), absl::StrCat(r.num_refused),
         absl::StrFormat("%.4f", r.hit_rate()),
         absl::StrFormat("%.2f%%", r.recomputed_share() * 100), absl::StrCat(r.num_preemptions),
         Milliseconds(r.ttft.p50), Milliseconds(r.ttft.p95), Milliseconds(r.ttft.p99),
         Milliseconds(r.tpot.p50), Milliseconds(r.tpot.p95), Milliseconds(r.tpot.p99),
         absl::StrFormat("%.3f", r.goodput), absl::StrFormat("%.3f", r.jain),
         absl::StrFormat("%.2f", r.busiest), absl::StrFormat("%.1f", r.scheduler_us_per_step),
         absl::StrCat(r.router_blocks), absl::StrFormat("%.1f", r.real_seconds)});
  }
  return FormatTable(rows);
}

std::string FormatTenants(const NamedResults& results) {
  std::vector<std::vector<std::string>> rows = {{"", "tenant", "requests", "TTFT ms p50", "p95",
                                                 "p99", "steps p50", "p95", "p99", "longest gap ms",
                                                 "steps", "longest step ms"}};
  for (const auto& [name, r] : results) {
    for (const TenantResult& t : r.tenants) {
      rows.push_back({name, absl::StrCat(t.tenant), absl::StrCat(t.num_served),
                      Milliseconds(t.ttft.p50), Milliseconds(t.ttft.p95), Milliseconds(t.ttft.p99),
                      absl::StrCat(t.ttft_steps.p50), absl::StrCat(t.ttft_steps.p95),
                      absl::StrCat(t.ttft_steps.p99), Milliseconds(t.longest_gap),
                      absl::StrCat(t.longest_gap_steps), Milliseconds(r.longest_step)});
    }
  }
  return FormatTable(rows);
}

nlohmann::ordered_json ToJson(const NamedResults& results) {
  const auto percentiles = [](const Percentiles& p) {
    return nlohmann::ordered_json{{"p50", p.p50}, {"p95", p.p95}, {"p99", p.p99}};
  };
  auto json = nlohmann::ordered_json::array();
  for (const auto& [name, r] : results) {
    auto tenants = nlohmann::ordered_json::array();
    for (const TenantResult& t : r.tenants) {
      tenants.push_back({{"tenant", t.tenant},
                         {"num_served", t.num_served},
                         {"ttft_seconds", percentiles(t.ttft)},
                         {"ttft_steps", percentiles(t.ttft_steps)},
                         {"longest_gap_seconds", t.longest_gap},
                         {"longest_gap_steps", t.longest_gap_steps}});
    }
    json.push_back({{"name", name},
                    {"num_served", r.num_served},
                    {"num_refused", r.num_refused},
                    {"prompt_tokens", r.prompt_tokens},
                    {"cached_tokens", r.cached_tokens},
                    {"output_tokens", r.output_tokens},
                    {"hit_rate", r.hit_rate()},
                    {"recomputed_tokens", r.recomputed_tokens},
                    {"computed_tokens", r.computed_tokens},
                    {"num_preemptions", r.num_preemptions},
                    {"num_steps", r.num_steps},
                    {"seconds", r.seconds},
                    {"ttft_seconds", percentiles(r.ttft)},
                    {"tpot_seconds", percentiles(r.tpot)},
                    {"goodput", r.goodput},
                    {"longest_step_seconds", r.longest_step},
                    {"tenants", std::move(tenants)},
                    {"jain", r.jain},
                    {"busiest", r.busiest},
                    {"scheduler_us_per_step", r.scheduler_us_per_step},
                    {"router_blocks", r.router_blocks},
                    {"real_seconds", r.real_seconds}});
  }
  return json;
}

std::string DrawResults(const NamedResults& results, double slo_ttft) {
  constexpr int kLeft = 200, kPanel = 200, kGap = 24, kTop = 64, kRow = 44, kBar = 10;
  const size_t num_rows = std::min<size_t>(results.size(), 12);
  const int bottom = kTop + kRow * static_cast<int>(num_rows);
  std::string svg = Begin(kLeft + 3 * (kPanel + kGap) + 24, bottom + 40);
  const auto panel = [&](int p) { return kLeft + p * (kPanel + kGap); };
  // Decades of milliseconds.
  constexpr double kLeast = 1.0, kDecades = 5.0;
  const auto width_of = [&](double seconds) {
    return kPanel * std::clamp(std::log10(seconds * 1e3 / kLeast) / kDecades, 0.0, 1.0);
  };
  double most = 1e-9;
  for (const auto& [name, r] : results) most = std::max(most, r.goodput);
  const auto text = [&svg](double x, double y, const std::string& what, const char* more = "") {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, more,
                          Escape(what));
  };
  text(panel(0), 24, "time to the first token, ms");
  text(panel(1), 24, "for each later token, ms");
  text(panel(2), 24, "goodput, requests/s");
  text(panel(0), 44, "bars: p50, p95, p99");
  for (int p = 0; p < 2; ++p) {
    for (int d = 0; d <= static_cast<int>(kDecades); ++d) {
      const double x = panel(p) + kPanel * d / kDecades;
      absl::StrAppendFormat(&svg,
                            "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x,
                            x, kTop - 8, bottom);
      text(x, bottom + 18, absl::StrCat(kLeast * std::pow(10.0, d)),
           " text-anchor=\"middle\" font-size=\"10\"");
    }
  }
  const double goal = panel(0) + width_of(slo_ttft);
  absl::StrAppendFormat(&svg,
                        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" "
                        "stroke-dasharray=\"4 3\"/>\n",
                        goal, goal, kTop - 8, bottom, kColours[1]);
  for (size_t i = 0; i < num_rows; ++i) {
    const auto& [name, r] = results[i];
    const int y = kTop + kRow * static_cast<int>(i);
    text(kLeft - 10, y + 20, name, " text-anchor=\"end\"");
    const auto bar = [&](int p, int k, double width, const std::string& value) {
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                            panel(p), y + k * (kBar + 2), std::max(width, 1.0), kBar,
                            kColours[p == 2   ? 2
                                     : k == 0 ? 5
                                     : k == 1 ? 0
                                              : 4]);
      text(panel(p) + std::max(width, 1.0) + 3, y + k * (kBar + 2) + 9, value, " font-size=\"10\"");
    };
    for (int p = 0; p < 2; ++p) {
      const Percentiles& times = p == 0 ? r.ttft : r.tpot;
      bar(p, 0, width_of(times.p50), Milliseconds(times.p50));
      bar(p, 1, width_of(times.p95), Milliseconds(times.p95));
      bar(p, 2, width_of(times.p99), Milliseconds(times.p99));
    }
    bar(2, 1, kPanel * 0.8 * r.goodput / most, absl::StrFormat("%.2f", r.goodput));
  }
  return svg + "</svg>\n";
}

std::string DrawCurves(const Curves& curves) {
  constexpr int kWidth = 720, kHeight = 400, kLeft = 60, kRight = 130, kTop = 40, kBottom = 50;
  double most = 1e-9;
  for (const auto& [name, values] : curves.lines) {
    for (const double value : values) most = std::max(most, value);
  }
  const auto n = static_cast<double>(std::max<size_t>(curves.x_labels.size(), 2) - 1);
  const auto x = [&](size_t i) {
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(i) / n;
  };
  const auto y = [&](double v) {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * v / most;
  };

  std::string svg = Begin(kWidth, kHeight);
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"22\" font-size=\"16\">%s</text>\n", kLeft,
                        Escape(curves.title));
  for (int i = 0; i <= 4; ++i) {
    const double value = most * i / 4;
    absl::StrAppendFormat(&svg,
                          "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n",
                          kLeft, kWidth - kRight, y(value), y(value), kLeft - 8, y(value) + 4,
                          value);
  }
  for (size_t i = 0; i < curves.x_labels.size(); ++i) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                          x(i), kHeight - kBottom + 20, Escape(curves.x_labels[i]));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - 8, Escape(curves.x_title));
  for (size_t k = 0; k < curves.lines.size(); ++k) {
    const auto& [name, values] = curves.lines[k];
    const char* colour = kColours[k % kColours.size()];
    std::string points;
    for (size_t i = 0; i < values.size(); ++i) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x(i), y(values[i]));
    }
    const int legend = kTop + 10 + 20 * static_cast<int>(k);
    absl::StrAppendFormat(
        &svg,
        "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%s\"/>\n"
        "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/>"
        "<text x=\"%d\" y=\"%d\">%s</text>\n",
        colour, points, kWidth - kRight + 14, kWidth - kRight + 34, legend, legend, colour,
        kWidth - kRight + 40, legend + 4, Escape(name));
  }
  return svg + "</svg>\n";
}

}  // namespace quire::tools
