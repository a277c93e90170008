// The checked data in a file of descriptors whose features are further inputs of the nets: those of angles
// between neighbours, and DPA-1 with layers of attention.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "angle_moment/shape.h"
#include "core/weights.h"

namespace mdops::core {

template <class T>
struct ExtraDescriptorWeights {
  int ntypes = 0;
  double reach = 0, shortest = 0;  // the cutoff, and the least distance in the splines, A
  bool mixed = false;              // places are of all types together
  std::vector<int32_t> sel;
  int64_t channels = 0;      // features of neighbours
  std::vector<T> constants;  // (ntypes, E), which follow them
  int64_t constant_count = 0;
  Cutoff<T> cutoff{};
  std::vector<T> std;
  std::unique_ptr<bool[]> pair_mask;

  int64_t width() const { return channels + constant_count; }

  ExtraDescriptorWeights(const File& file, const Json& about, const std::string& prefix,
                         const std::string& precision, int64_t types);
};

template <class T>
struct AngleData : ExtraDescriptorWeights<T> {
  AngleGrid<T> grid{};
  bool gated;
  std::vector<T> tables;  // (1 or 2, pairs, pieces, channels, kAngleRow)

  AngleData(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
            int64_t types);

  // Like `tables`, in any memory.
  AngleTables<T> functions(const T* at) const {
    return {at, gated ? at + tables.size() / 2 : nullptr, static_cast<int>(this->channels)};
  }
};

// Rows of neighbours by splines, layers of attention, T^T T_<.
template <class T>
struct AttentionData : ExtraDescriptorWeights<T> {
  // The layout of attention_layer.h; vectors are empty where that has null.
  struct Layer {
    int64_t width;
    std::vector<T> project, project_bias, out, out_bias, norm, norm_bias, factors;
    T scale, eps;
    bool normalize;
  };

  bool gated, smooth, by_angles;
  int64_t features, axis, columns, attention;  // M and M2; of the splines; width of the widest layer
  SplineGrid<T> grid{};
  T shift;
  std::vector<T> table, mean;
  std::unique_ptr<bool[]> zeroed;
  std::vector<Layer> layers;

  AttentionData(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
                int64_t types);

 private:
  Layer layer_of(const File& file, const Json& about, const std::string& at, bool first) const;
};

// The descriptions in a standard model's file.
const std::vector<Json>& extra_descriptors_of(const Json& about);
inline std::string extra_prefix(const std::string& prefix, size_t k) {
  return prefix + "other." + std::to_string(k) + ".";
}

}  // namespace mdops::core
