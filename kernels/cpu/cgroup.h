#pragma once

// Reads how many processors and how much memory this process may use, from cgroup v2 or v1.

#include <cstdint>
#include <string>

namespace quire::kernels::cpu {

// Returns the number of processors that the CPU quota allows, rounded up; 0 without a quota.
int CgroupCpuLimit();

// Returns the bytes that this process may still use before its group, or a parent of the group,
// reaches its memory limit; 0 without a limit. Cached files do not count as used, because Linux can
// drop them. `root` is the mount point of the cgroup file system.
int64_t CgroupAvailableMemory(const std::string& root = "/sys/fs/cgroup");

// Returns the number of physical cores within the affinity mask and the CPU quota; at least 1.
int UsablePhysicalCores();

}  // namespace quire::kernels::cpu
