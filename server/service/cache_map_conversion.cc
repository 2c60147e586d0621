#include "server/service/cache_map_conversion.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/json.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/service/proto_conversion.h"

namespace quire::server {
namespace {

constexpr size_t kMostUsers = 8;

absl::StatusOr<int32_t> InRange(const char* field, uint32_t value, uint32_t least, uint32_t most) {
  if (value >= least && value <= most) return static_cast<int32_t>(value);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want %d..%d, got %d", field, least, most, value));
}

void AddCells(const engine::CacheMap& map, int32_t most, v1::GetCacheMapResponse& out) {
  const auto count = static_cast<int64_t>(map.cells.size());
  const int64_t shown = std::min<int64_t>(most, count);
  for (int64_t i = 0; i < shown; ++i) {
    engine::CacheMapCell sum;
    for (int64_t k = i * count / shown; k < (i + 1) * count / shown; ++k) sum += map.cells[k];
    v1::CacheCell& cell = *out.add_cells();
    cell.set_free(ToWireCount(sum.free()));
    cell.set_cached(ToWireCount(sum.cached));
    cell.set_held(ToWireCount(sum.held));
    cell.set_pinned(ToWireCount(sum.pinned));
    cell.set_shared(ToWireCount(sum.shared));
  }
}

void AddNodes(const engine::CacheMap& map,
              const std::unordered_map<uint64_t, std::string_view>& names, int32_t most,
              v1::GetCacheMapResponse& out) {
  int64_t hidden_roots = map.num_hidden_roots;
  for (size_t i = 0; i < map.nodes.size(); ++i) {
    const engine::CacheMapNode& node = map.nodes[i];
    if (i >= static_cast<size_t>(most)) {
      // Its parent may be left out as well.
      if (node.parent < 0) {
        ++hidden_roots;
      } else if (node.parent < most) {
        v1::CacheNode& parent = *out.mutable_nodes(node.parent);
        parent.set_num_hidden(parent.num_hidden() + 1);
      }
      continue;
    }
    v1::CacheNode& shown = *out.add_nodes();
    if (node.parent >= 0) shown.set_parent(static_cast<uint32_t>(node.parent));
    shown.set_tenant(node.tenant);
    shown.set_part(node.part);
    shown.set_num_blocks(ToWireCount(node.num_blocks));
    shown.set_num_tokens(static_cast<uint64_t>(node.num_tokens));
    shown.set_num_held(ToWireCount(node.num_held));
    shown.set_num_pinned(ToWireCount(node.num_pinned));
    shown.set_num_sequences(ToWireCount(node.num_sequences));
    shown.set_num_hidden(ToWireCount(node.num_hidden));
    for (const uint64_t pin : node.pins) {
      const auto name = names.find(pin);
      if (name != names.end()) {
        shown.add_pins(std::string(name->second));
      } else {
        shown.add_pins(pin >= engine::kFirstSessionPin ? "a session" : "a prefix that has ended");
      }
    }
  }
  out.set_num_hidden_roots(ToWireCount(hidden_roots));
}

void AddUsers(const engine::CacheMap& map, uint64_t pin, v1::CachePrefix& out) {
  std::vector<const engine::CacheMapUse*> uses;
  for (const engine::CacheMapUse& use : map.uses) {
    if (use.pin == pin) uses.push_back(&use);
  }
  std::stable_sort(uses.begin(), uses.end(), [](const auto* a, const auto* b) {
    return a->num_sequences > b->num_sequences;
  });
  if (uses.size() > kMostUsers) uses.resize(kMostUsers);
  for (const engine::CacheMapUse* use : uses) {
    v1::CacheUser& user = *out.add_users();
    user.set_tenant(use->tenant);
    user.set_num_sequences(ToWireCount(use->num_sequences));
  }
}

std::string Json(const v1::GetCacheMapResponse& map) {
  std::string out = absl::StrCat(
      "{\"block_size\":", map.block_size(), ",\"num_blocks\":", map.num_blocks(),
      ",\"num_sessions\":", map.num_sessions(), ",\"num_prefixes\":", map.num_prefixes(),
      ",\"num_hidden_roots\":", map.num_hidden_roots(), ",\"cells\":[");
  const char* comma = "";
  const auto next = [&] { return std::exchange(comma, ","); };
  // A cell is [free, cached, held, pinned, shared].
  for (const v1::CacheCell& cell : map.cells()) {
    absl::StrAppend(&out, next(), "[", cell.free(), ",", cell.cached(), ",", cell.held(), ",",
                    cell.pinned(), ",", cell.shared(), "]");
  }
  out += "],\"nodes\":[";
  comma = "";
  for (const v1::CacheNode& node : map.nodes()) {
    absl::StrAppend(&out, next(),
                    "{\"parent\":", node.has_parent() ? static_cast<int64_t>(node.parent()) : -1,
                    ",\"tenant\":", base::QuoteJson(node.tenant()),
                    ",\"part\":", base::QuoteJson(node.part()), ",\"blocks\":", node.num_blocks(),
                    ",\"tokens\":", node.num_tokens(), ",\"held\":", node.num_held(),
                    ",\"pinned\":", node.num_pinned(), ",\"sequences\":", node.num_sequences());
    absl::StrAppend(&out, ",\"hidden\":", node.num_hidden(), ",\"pins\":[");
    for (int i = 0; i < node.pins_size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ",", base::QuoteJson(node.pins(i)));
    }
    out += "]}";
  }
  out += "],\"prefixes\":[";
  comma = "";
  for (const v1::CachePrefix& prefix : map.prefixes()) {
    absl::StrAppend(&out, next(), "{\"name\":", base::QuoteJson(prefix.name()),
                    ",\"display_name\":", base::QuoteJson(prefix.display_name()),
                    ",\"tenant\":", base::QuoteJson(prefix.tenant()),
                    ",\"tokens\":", prefix.num_tokens(), ",\"blocks\":", prefix.num_blocks(),
                    ",\"hits\":", prefix.hits(), ",\"saved\":", prefix.saved_tokens());
    absl::StrAppend(&out, ",\"expires_in\":", static_cast<int64_t>(prefix.expires_in_seconds()),
                    ",\"users\":[");
    for (int i = 0; i < prefix.users_size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ",",
                      "{\"tenant\":", base::QuoteJson(prefix.users(i).tenant()),
                      ",\"sequences\":", prefix.users(i).num_sequences(), "}");
    }
    out += "]}";
  }
  return out + "]}\n";
}

// The answer of the step thread. Outlives a call that does not wait for it any more.
struct Answer {
  base::Mutex mu;
  base::CondVar done;
  bool is_done ABSL_GUARDED_BY(mu) = false;
  std::shared_ptr<const engine::CacheMap> map ABSL_GUARDED_BY(mu);
};

std::shared_ptr<const engine::CacheMap> WaitForMap(engine::Engine& engine,
                                                   std::chrono::milliseconds patience) {
  const auto answer = std::make_shared<Answer>();
  engine.GetCacheMap([answer](absl::StatusOr<std::shared_ptr<const engine::CacheMap>> map) {
    base::MutexLock lock(answer->mu);
    answer->is_done = true;
    if (map.ok()) answer->map = *std::move(map);
    answer->done.NotifyAll();
  });
  const auto deadline = std::chrono::steady_clock::now() + patience;
  base::MutexLock lock(answer->mu);
  while (!answer->is_done) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    answer->done.WaitFor(answer->mu, std::chrono::duration_cast<std::chrono::nanoseconds>(left));
  }
  return answer->map;
}

}  // namespace

absl::StatusOr<CacheMapLimits> FromProto(const v1::GetCacheMapRequest& request) {
  CacheMapLimits limits;
  if (request.has_cells()) {
    ASSIGN_OR_RETURN(limits.cells, InRange("cells", request.cells(), 1, engine::kMostMapCells));
  }
  if (request.has_max_nodes()) {
    ASSIGN_OR_RETURN(limits.nodes,
                     InRange("max_nodes", request.max_nodes(), 0, engine::kMostMapNodes));
  }
  return limits;
}

std::vector<engine::PrefixInfo> AllPrefixes(engine::Engine& engine) {
  auto page = engine.prefixes().List({.is_operator = true}, std::nullopt, 0, engine::kMaxPrefixes);
  return page.ok() ? std::move(page->prefixes) : std::vector<engine::PrefixInfo>();
}

v1::GetCacheMapResponse ToProto(const engine::CacheMap& map, const engine::Engine& engine,
                                const std::vector<engine::PrefixInfo>& prefixes,
                                const CacheMapLimits& limits) {
  v1::GetCacheMapResponse out;
  out.set_block_size(static_cast<uint32_t>(map.block_size));
  out.set_num_blocks(ToWireCount(map.num_blocks));
  out.set_num_prefixes(ToWireCount(std::ssize(prefixes)));
  out.set_num_sessions(ToWireCount(engine.stats().sessions.num_open));
  AddCells(map, limits.cells, out);
  std::unordered_map<uint64_t, std::string_view> names;
  std::vector<const engine::PrefixInfo*> sorted;
  for (const engine::PrefixInfo& prefix : prefixes) {
    names[prefix.pin] = prefix.display_name.empty() ? prefix.name : prefix.display_name;
    sorted.push_back(&prefix);
  }
  AddNodes(map, names, limits.nodes, out);
  const auto saved = [](const engine::PrefixInfo* info) {
    return info->use ? info->use->saved_tokens : 0;
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto* a, const auto* b) { return saved(a) > saved(b); });
  sorted.resize(std::min(sorted.size(), static_cast<size_t>(limits.prefixes)));
  const absl::Time now = absl::Now();
  for (const engine::PrefixInfo* info : sorted) {
    v1::CachePrefix& prefix = *out.add_prefixes();
    prefix.set_name(info->name);
    prefix.set_display_name(info->display_name);
    prefix.set_tenant(info->tenant);
    prefix.set_num_tokens(ToWireCount(info->num_tokens));
    prefix.set_num_blocks(ToWireCount(info->num_blocks));
    prefix.set_hits(info->use ? info->use->hits : 0);
    prefix.set_saved_tokens(saved(info));
    prefix.set_expires_in_seconds(std::max(0.0, absl::ToDoubleSeconds(info->expire_time - now)));
    AddUsers(map, info->pin, prefix);
  }
  return out;
}

std::string CacheMapJson(engine::Engine& engine, std::chrono::milliseconds patience) {
  const std::shared_ptr<const engine::CacheMap> map = WaitForMap(engine, patience);
  if (map == nullptr) return "";
  const std::vector<engine::PrefixInfo> prefixes = AllPrefixes(engine);
  for (CacheMapLimits limits; limits.cells > 0;
       limits = {limits.cells / 2, limits.nodes / 2, limits.prefixes / 2}) {
    std::string json = Json(ToProto(*map, engine, prefixes, limits));
    if (json.size() <= kMostCacheJsonBytes) return json;
  }
  return "";
}

}  // namespace quire::server
