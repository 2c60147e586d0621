#pragma once

// What the container leaves this process: processors and memory, cgroup v2 or v1.

#include <cstdint>
#include <string>

namespace quire::kernels::cpu {

// Processors the quota allows, rounded up; 0 without a quota.
int CgroupCpuLimit();

// Bytes below the nearest memory limit of this process's groups, files that the kernel can read
// again not counted; 0 without a limit. `root` is where the groups are mounted.
int64_t CgroupAvailableMemory(const std::string& root = "/sys/fs/cgroup");

// Physical cores within the affinity mask and the cgroup's quota; at least 1.
int UsablePhysicalCores();

}  // namespace quire::kernels::cpu
