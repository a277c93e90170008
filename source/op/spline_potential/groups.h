// The groups of features in which a net on the CPU takes D (features.h), and their weights.
#pragma once

#include "spline_potential/spline_potential.h"

namespace mdops {

// Rows [first, last) of D.
struct Group {
  int first, last;
  int64_t features;
};

// The group that begins with row `first`: of `limit` features at most, if one row has no more; all in the
// head or none.
MDOPS_HD Group group_from(const FittingShape& net, int first, int64_t limit) {
  Group group{first, first, 0};
  const int end = first < net.axis ? net.axis : net.width;
  while (group.last < end && (group.last == first || group.features + net.row_features(group.last) <= limit))
    group.features += net.row_features(group.last++);
  return group;
}

// Calls work(group, number of features before it) for all of D.
MDOPS_HD void each_group(const FittingShape& net, int64_t limit, const auto& work) {
  int64_t before = 0;
  for (int first = 0; first < net.width;) {
    const Group group = group_from(net, first, limit);
    work(group, before);
    before += group.features;
    first = group.last;
  }
}

constexpr int64_t kGroup = 128;  // features at once: their weights and they stay in cache
MDOPS_HD int64_t most_features(const FittingShape& net, int64_t limit) {
  return net.axis > limit ? net.axis : limit;
}

// The weights of a group's features, (features, neurons[0]).
template <class T>
MDOPS_HD const T* group_weights(const FittingShape& net, const NetWeights<T>& weights, const Group& group) {
  const int64_t k = group.first, cols = net.neurons[0];
  return k < net.axis ? weights.head + k * (k + 1) / 2 * cols : weights.layer[0].weight + k * net.axis * cols;
}

}  // namespace mdops
