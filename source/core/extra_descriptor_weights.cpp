#include "core/extra_descriptor_weights.h"

#include <algorithm>

#include "attention_layer/attention_layer.h"

namespace mdops::core {

namespace {

int64_t positive_integer(const Json& about, const char* name) {
  const int64_t value = about.at(name).as_integer();
  if (value < 1 || value > kMostNumbers) damaged(std::string("its `") + name + "` is out of range");
  return value;
}

}  // namespace

template <class T>
ExtraDescriptorWeights<T>::ExtraDescriptorWeights(const File& file, const Json& about,
                                                  const std::string& prefix, const std::string& precision,
                                                  int64_t types)
    : ntypes(static_cast<int>(types)),
      reach(about.at("cutoff").as_number()),
      shortest(about.at("grids").at(precision).at("r_min").as_number()),
      mixed(about.at("mixed").as_bool()) {
  const double smooth = about.at("cutoff_smooth").as_number(),
               protection = about.at("protection").as_number();
  check_cutoff("load", reach, smooth, protection);
  cutoff = {static_cast<T>(reach), static_cast<T>(smooth), static_cast<T>(protection)};
  std = file.numbers<T>(prefix + "std", {types, 2});
  for (const T x : std)
    if (!(x > T(0))) damaged("its standard deviations are not positive");
  pair_mask = bools(file.flags(prefix + "pair_mask", {types, types}));
  sel = file.integers(prefix + "sel", {mixed ? 1 : types});
  for (const int32_t places : sel)
    if (places < 0) damaged("its numbers of places are negative");
  constants = file.numbers<T>(prefix + "constants", {types, -1});
  constant_count = types ? static_cast<int64_t>(constants.size()) / types : 0;
}

template <class T>
AngleData<T>::AngleData(const File& file, const Json& about, const std::string& prefix,
                        const std::string& precision, int64_t types)
    : ExtraDescriptorWeights<T>(file, about, prefix, precision, types), gated(about.at("gated").as_bool()) {
  const Json& knots = about.at("grids").at(precision);
  const int64_t exponent = knots.at("exponent").as_integer(), octaves = knots.at("octaves").as_integer();
  const int64_t fineness = knots.at("fineness").as_integer();
  const std::string refusal = angle_grid_refusal(exponent, octaves, fineness);
  if (!refusal.empty()) damaged(refusal);
  if (types > kMostAngleTypes) damaged("its types are too many");
  grid = {static_cast<int>(exponent), static_cast<int>(octaves), static_cast<int>(fineness)};
  this->channels = positive_integer(about, "width");
  tables = file.numbers<T>(prefix + precision + ".tables",
                           {1 + gated, types * (types + 1) / 2, grid.pieces(), this->channels, kAngleRow});
}

template <class T>
AttentionData<T>::AttentionData(const File& file, const Json& about, const std::string& prefix,
                                const std::string& precision, int64_t types)
    : ExtraDescriptorWeights<T>(file, about, prefix, precision, types),
      gated(about.at("gated").as_bool()),
      smooth(about.at("smooth").as_bool()),
      by_angles(about.at("by_angles").as_bool()),
      features(positive_integer(about, "width")),
      axis(positive_integer(about, "axis")),
      columns(features),
      attention(0),
      shift(static_cast<T>(about.at("shift").as_number())) {
  const Json& knots = about.at("grids").at(precision);
  const double s_max = knots.at("s_max").as_number(), grading = grading_of(knots);
  check_knots("load", s_max, grading);
  const std::string refusal = shape_refusal(features, axis, {1}, 0);
  if (!refusal.empty()) damaged(refusal);
  this->channels = features * axis;
  const std::string name = prefix + precision + ".tables";
  const std::vector<int64_t>& shape = file.array(name).shape;
  const int64_t basis = shape.size() == 4 ? shape[2] : 0;
  if (types >= kMostRows || !rows_refusal(types + gated, basis).empty())
    damaged("its splines are none, or too many");
  grid = spline_grid<T>(basis - 5, s_max, grading);
  mean.assign(types, T(0));
  zeroed = bools(file.flags(prefix + "zeroed", {types, types}));
  const std::vector<Json>& found = about.at("layers").as_list();
  if (found.empty() || found.size() > 1000) damaged("its layers of attention are none, or too many");
  if (!this->mixed || this->sel[0] < 1) damaged("its neighbours have no places of all types");
  for (size_t l = 0; l < found.size(); ++l) {
    const std::string name = "layer." + std::to_string(l) + ".", own = prefix + precision + "." + name;
    // Version 3 had unpacked layers, for both precisions.
    layers.push_back(layer_of(file, found[l], file.has(own + "out") ? own : prefix + name, l == 0));
    attention = std::max(attention, layers[l].width);
  }
  if (layers[0].project.empty()) {
    const int64_t least = features + 3 * layers[0].width;
    columns = shape.size() == 4 ? shape[3] : 0;
    if (columns < least || columns > least + kLayerLanes)
      damaged("its splines have other columns than its layers");
  }
  table = file.numbers<T>(name, {types, types + gated, basis, columns});
}

template <class T>
typename AttentionData<T>::Layer AttentionData<T>::layer_of(const File& file, const Json& about,
                                                            const std::string& at, bool first) const {
  const std::vector<int64_t>& shape = file.array(at + "out").shape;
  Layer layer;
  layer.width = shape.empty() ? 0 : shape[0];
  if (layer.width < 1 || layer.width > kMostNumbers) damaged("its attention has no width, or too much");
  if (!first || file.has(at + "project")) {
    layer.project = file.numbers<T>(at + "project", {features, 3 * layer.width});
    layer.project_bias = file.numbers<T>(at + "project_bias", {3 * layer.width});
  } else if (layer.width % kLayerLanes) {
    damaged("its attention has a width that is no multiple of " + std::to_string(kLayerLanes));
  }
  layer.out = file.numbers<T>(at + "out", {layer.width, features});
  layer.out_bias = file.numbers<T>(at + "out_bias", {features});
  layer.norm = file.numbers<T>(at + "norm", {features});
  layer.norm_bias = file.numbers<T>(at + "norm_bias", {features});
  if (file.has(at + "factors")) layer.factors = file.numbers<T>(at + "factors", {layer.width});
  layer.scale = static_cast<T>(about.at("scale").as_number());
  layer.eps = static_cast<T>(about.at("eps").as_number());
  layer.normalize = about.at("normalize").as_bool();
  return layer;
}

const std::vector<Json>& extra_descriptors_of(const Json& about) {
  static const std::vector<Json> none;
  const Json* const found = about.find("others");
  return found ? found->as_list() : none;
}

MDOPS_INSTANTIATE_CLASSES(ExtraDescriptorWeights, AngleData, AttentionData)

}  // namespace mdops::core
