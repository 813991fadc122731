// The CPU quota of the cgroups that a process is in, version 2 and 1. Reads files only; callable
// from any thread.
#pragma once

#include <string>

namespace halfstep {

// CPUs granted to the process whose cgroups are listed in `membership`, rounded up; 0 where there
// is no quota. A quota binds everything below it, so each cgroup counts up to the root of `mount`.
// Inside a container the listed path may not exist under the mount, and its root is the
// container's.
int cgroup_cpus(const std::string& membership = "/proc/self/cgroup",
                const std::string& mount = "/sys/fs/cgroup");

}  // namespace halfstep
