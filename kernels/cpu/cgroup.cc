#include "kernels/cpu/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/math.h"

namespace quire::kernels::cpu {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the number at the start of a file, or -1 if there is none ("max", an absent file).
int64_t ReadNumber(const std::string& path) {
  std::istringstream line(FirstLine(path));
  int64_t value = -1;
  return line >> value ? value : -1;
}

// Returns the bytes of cached files that Linux would drop when the group needs memory. `prefix` is
// the start of the names in memory.stat: empty for cgroup v2, "total_" for v1. In v1, the names
// without "total_" do not include child groups.
int64_t CachedFiles(const std::string& path, const std::string& prefix) {
  std::ifstream file(path + "/memory.stat");
  std::string key;
  int64_t value = 0, sum = 0;
  while (file >> key >> value) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file") sum += value;
  }
  return sum;
}

// Returns the paths, under `root`, of this process's group and of all its parent groups, innermost
// first.
std::vector<std::string> GroupPaths(const std::string& root, const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",," ? controller.empty()
                            : controllers.find("," + controller + ",") != std::string::npos) {
      path = line.substr(second + 1);
    }
  }
  std::vector<std::string> paths;
  while (path.size() > 1) {
    paths.push_back(root + path);
    path.resize(path.rfind('/'));
  }
  paths.push_back(root);
  return paths;
}

}  // namespace

int CgroupCpuLimit() {
  int limit = 0;
  const auto apply = [&limit](int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0) return;
    const int cores = static_cast<int>(base::CeilDiv(quota, period));
    limit = limit == 0 ? cores : std::min(limit, cores);
  };
  for (const std::string& path : GroupPaths("/sys/fs/cgroup", "")) {
    std::istringstream line(FirstLine(path + "/cpu.max"));
    int64_t quota = 0, period = 0;
    if (line >> quota >> period) apply(quota, period);
  }
  for (const std::string& path : GroupPaths("/sys/fs/cgroup/cpu", "cpu")) {
    apply(ReadNumber(path + "/cpu.cfs_quota_us"), ReadNumber(path + "/cpu.cfs_period_us"));
  }
  return limit;
}

int64_t CgroupAvailableMemory(const std::string& root) {
  int64_t available = 0;
  const auto apply = [&available](int64_t limit, int64_t used, int64_t files) {
    // v1 writes "no limit" as a number near 2^63.
    if (limit < 0 || limit > (int64_t{1} << 60) || used < 0) return;
    const int64_t left = std::max<int64_t>(1, limit - std::max<int64_t>(0, used - files));
    available = available == 0 ? left : std::min(available, left);
  };
  for (const std::string& path : GroupPaths(root, "")) {
    apply(ReadNumber(path + "/memory.max"), ReadNumber(path + "/memory.current"),
          CachedFiles(path, ""));
  }
  for (const std::string& path : GroupPaths(root + "/memory", "memory")) {
    apply(ReadNumber(path + "/memory.limit_in_bytes"), ReadNumber(path + "/memory.usage_in_bytes"),
          CachedFiles(path, "total_"));
  }
  return available;
}

int UsablePhysicalCores() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  if (sched_getaffinity(0, sizeof(affinity), &affinity) != 0) return 1;
  std::set<std::pair<int64_t, int64_t>> cores;  // package, core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &affinity)) continue;
    const std::string topology = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/");
    const int64_t core = ReadNumber(topology + "core_id");
    // If the topology is hidden, every processor counts as a core.
    cores.insert(
        core < 0 ? std::pair<int64_t, int64_t>{-1, cpu}
                 : std::pair<int64_t, int64_t>{ReadNumber(topology + "physical_package_id"), core});
  }
  int count = std::max(1, static_cast<int>(cores.size()));
  if (const int quota = CgroupCpuLimit(); quota > 0) count = std::min(count, quota);
  return count;
}

}  // namespace quire::kernels::cpu
