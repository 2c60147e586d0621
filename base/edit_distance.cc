#include "base/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace quire::base {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string_view NearestName(std::string_view name, std::span<const std::string_view> known) {
  std::string_view nearest;
  // A name with more edits is another word, not a typo.
  size_t distance = std::min<size_t>(2, 1 + name.size() / 3);
  for (const std::string_view candidate : known) {
    const size_t d = EditDistance(name, candidate);
    if (d <= distance && d < name.size() && (nearest.empty() || d < distance)) {
      nearest = candidate;
      distance = d;
    }
  }
  return nearest;
}

}  // namespace quire::base
