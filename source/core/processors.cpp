#include "core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace mdops::core {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

int allowed_by_affinity() {
  // The kernel refuses a set that is smaller than its own.
  for (size_t sets = 1; sets <= 1024; sets *= 2) {
    std::vector<cpu_set_t> may(sets);
    const size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, may.data()) == 0) return CPU_COUNT_S(bytes, may.data());
    if (errno != EINVAL) return 1;
  }
  return 1;
}

// Quota over period, in processors: both in one file of version 2, or in two files of version 1. "max", -1
// and missing files mean no limit.
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::ifstream(folder + "/cpu.max") >> quota >> period) return period > 0 ? quota / period : kNoLimit;
  std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

// The least limit of a group and its parents. A container may see its own group as the root, under its
// outside name.
double quota_of(const std::string& root, std::string group) {
  double least = quota_in(root);
  for (; group.size() > 1; group.resize(group.rfind('/'))) least = std::min(least, quota_in(root + group));
  return least;
}

double allowed_by_groups(const std::string& groups, const std::string& mounts) {
  double least = kNoLimit;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // number:controllers:/group
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || line.find('/', second) != second + 1)
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, quota_of(mounts, group));
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');)
      if (name == "cpu")
        for (const std::string& folder : {controllers, name})
          least = std::min(least, quota_of(mounts + "/" + folder, group));
  }
  return least;
}

}  // namespace

int processors(const std::string& groups, const std::string& mounts) {
  const double quota = allowed_by_groups(groups, mounts);
  const int may = std::max(1, allowed_by_affinity());
  return quota < may ? std::max(1, static_cast<int>(quota)) : may;
}

}  // namespace mdops::core
