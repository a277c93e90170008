// How many processors a process may use.
#pragma once

#include <string>

namespace mdops::core {

// Those that it may run on, or fewer if its control groups (containers, batch jobs) have a time quota,
// rounded down; at least 1. `groups` lists them, as /proc/self/cgroup; `mounts` is their folder, as
// /sys/fs/cgroup.
int processors(const std::string& groups, const std::string& mounts);

}  // namespace mdops::core
