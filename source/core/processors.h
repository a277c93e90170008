// How many processors a process may use.
#pragma once

#include <string>

namespace mdops::core {

// Those that it may run on, or fewer where its control groups (containers, batch jobs) have a quota of time,
// of which a part of a processor does not count; 1 at least. `groups` lists them, as /proc/self/cgroup;
// `mounts` is where they are, as /sys/fs/cgroup.
int processors(const std::string& groups, const std::string& mounts);

}  // namespace mdops::core
