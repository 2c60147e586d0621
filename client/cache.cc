// quire cache: one picture of a server's KV cache.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "client/action.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

constexpr int kColumns = 64;

// Returns the mark of what most of the cell's blocks are.
const char* MarkOf(const v1::CacheCell& cell) {
  const uint32_t most = std::max({cell.held(), cell.cached(), cell.free()});
  if (cell.free() == most) return "░";
  if (cell.cached() == most) return "▒";
  return cell.pinned() * 2 > cell.held() ? "▓" : "█";
}

std::string Cells(const v1::GetCacheMapResponse& map) {
  std::string out = absl::StrFormat(
      "%d blocks of %d tokens, %d prefixes, %d sessions   █ held  ▓ pinned  ▒ cached  ░ free\n",
      map.num_blocks(), map.block_size(), map.num_prefixes(), map.num_sessions());
  for (int i = 0; i < map.cells_size(); ++i) {
    absl::StrAppend(&out, MarkOf(map.cells(i)),
                    (i + 1) % kColumns == 0 || i + 1 == map.cells_size() ? "\n" : "");
  }
  return out;
}

// Returns a line of a node, indented by its depth.
std::string Line(const v1::CacheNode& node, int depth) {
  constexpr int kDeepest = 30;  // deeper nodes are not indented further
  std::string line(static_cast<size_t>(2 * std::min(depth, kDeepest)), ' ');
  absl::StrAppendFormat(&line, "%d tokens", node.num_tokens());
  if (node.num_sequences() > 0) absl::StrAppend(&line, ", ", node.num_sequences(), " running");
  if (node.num_pinned() > 0) absl::StrAppend(&line, ", pinned");
  if (node.num_held() == 0) absl::StrAppend(&line, ", cached");
  if (!node.has_parent() || depth == 0) {
    absl::StrAppend(&line, ", of ", node.tenant().empty() ? "all callers" : node.tenant());
    if (!node.part().empty()) absl::StrAppend(&line, " / ", node.part());
  }
  for (const std::string& pin : node.pins()) absl::StrAppend(&line, "  <", pin, ">");
  if (node.num_hidden() > 0) absl::StrAppend(&line, "  and ", node.num_hidden(), " more");
  return ForTerminal(line) + "\n";
}

std::string Tree(const v1::GetCacheMapResponse& map) {
  std::vector<std::vector<int>> children(static_cast<size_t>(map.nodes_size()));
  // The nodes to print, the next one last, with their depths.
  std::vector<std::pair<int, int>> next;
  for (int i = map.nodes_size(); i-- > 0;) {
    const v1::CacheNode& node = map.nodes(i);
    if (!node.has_parent()) {
      next.emplace_back(i, 0);
    } else if (node.parent() < static_cast<uint32_t>(i)) {  // else it is no tree
      children[node.parent()].push_back(i);
    }
  }
  std::string out;
  while (!next.empty()) {
    const auto [i, depth] = next.back();
    next.pop_back();
    out += Line(map.nodes(i), depth);
    for (const int child : children[static_cast<size_t>(i)]) next.emplace_back(child, depth + 1);
  }
  if (map.num_hidden_roots() > 0) {
    absl::StrAppend(&out, "and ", map.num_hidden_roots(), " trees more\n");
  }
  return out;
}

}  // namespace

int RunCache(const Args& args, Interrupt& interrupt) {
  v1::GetCacheMapRequest request;
  std::optional<uint64_t> cells = 512, max_nodes = 64;
  Action action("quire cache [flags]",
                "Shows what the KV cache holds: its blocks, in the order of their ids, and the "
                "prefix tree, with the tenants and named prefixes that its blocks belong to. "
                "Needs the role operator.");
  action.flags().Section("Picture");
  action.flags().Add("cells", "N", "show the blocks as N marks at most, 1..4096 (default 512)",
                     &cells);
  action.flags().Add("max_nodes", "N", "show N nodes of the tree at most, 0..512 (default 64)",
                     &max_nodes);
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    request.set_cells(Clamped(*cells));
    request.set_max_nodes(Clamped(*max_nodes));
    v1::GetCacheMapResponse map;
    RETURN_IF_ERROR(connection.GetCacheMap(request, &map));
    Print(action.json() ? ToJsonLine(map) : Cells(map) + Tree(map));
    return absl::OkStatus();
  });
}

}  // namespace quire::client
