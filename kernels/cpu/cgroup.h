#pragma once

// The processors and memory that the container grants this process, by cgroup v2 or v1.

#include <cstdint>
#include <string>

namespace quire::kernels::cpu {

// Processors that the quota allows, rounded up; 0 without a quota.
int CgroupCpuLimit();

// Bytes left below the tightest memory limit of this process's groups; cached files, which the
// kernel can drop, do not count as used. 0 without a limit. `root` is the mount point of the
// groups.
int64_t CgroupAvailableMemory(const std::string& root = "/sys/fs/cgroup");

// Physical cores within the affinity mask and the cgroup's quota; at least 1.
int UsablePhysicalCores();

}  // namespace quire::kernels::cpu
