#include "core/weights.h"

namespace mdops::core {

template <class T>
DescriptorWeights<T>::DescriptorWeights(const File& file, const Json& about, const std::string& prefix,
                                        const std::string& precision, int64_t types)
    : ntypes(static_cast<int>(types)),
      mixed(about.at("mixed").as_bool()),
      gated(about.at("gated").as_bool()),
      width(about.at("width").as_integer()),
      axis(about.at("axis").as_integer()),
      cutoff(about.at("cutoff").as_number()),
      smooth(about.at("cutoff_smooth").as_number()),
      protection(about.at("protection").as_number()) {
  const Json& grid = about.at("grids").at(precision);
  s_max = grid.at("s_max").as_number(), grading = grading_of(grid), shortest = grid.at("r_min").as_number();
  check_cutoff("load", cutoff, smooth, protection);
  check_knots("load", s_max, grading);
  const std::string problem = shape_refusal(width, axis, {1}, 0);
  if (!problem.empty()) damaged(problem);
  const std::string name = prefix + precision + ".tables";
  const std::vector<int64_t>& shape = file.array(name).shape;
  basis = shape.size() == 4 ? shape[2] : 0;
  const int64_t rows = (types + gated) * basis, padded = table_width(width);
  const std::string refusal =
      types < kMostRows ? rows_refusal(types + gated, basis) : "its types are too many";
  if (!refusal.empty()) damaged(refusal);
  const std::vector<T> values = file.numbers<T>(name, {types, types + gated, basis, width});
  tables.resize(types * rows * padded);
  for (int64_t row = 0; row < types * rows; ++row)
    std::copy_n(values.data() + row * width, width, tables.data() + row * padded);
  mean = file.numbers<T>(prefix + "mean", {types});
  std = file.numbers<T>(prefix + "std", {types, 2});
  for (const T x : std)
    if (!(x > T(0))) damaged("its standard deviations are not positive");
  for (const T x : mean)
    if (mixed && types > 1 && !gated && x != T(0))
      damaged("its types share places, and its mean is not zero");
  pair_mask = bools(file.flags(prefix + "pair_mask", {types, types}));
  zeroed = bools(file.flags(prefix + "zeroed", {types, types}));
  sel = file.integers(prefix + "sel", {mixed ? 1 : types});
  for (const int32_t places : sel)
    if (places < 0) damaged("its numbers of places are negative");
}

void Parameters::read(const File& file, const std::string& prefix, const std::string& name) {
  average = file.numbers<double>(prefix + name + ".average", {-1});
  inverse = file.numbers<double>(prefix + name + ".inverse", {-1});
  const std::string given = prefix + name + ".default";
  if (file.has(given)) own = file.numbers<double>(given, {-1});
  if (inverse.size() != size() || (!own.empty() && own.size() != size()))
    damaged("its parameters do not fit together");
}

template <class T>
void ExtraInputs<T>::read(const File& file, const Json& about, const std::string& prefix, int64_t ntypes) {
  fparam.read(file, prefix, "fparam");
  aparam.read(file, prefix, "aparam");
  constants = file.numbers<T>(prefix + "case", {-1});
  marks = about.at("marks").as_bool() ? ntypes : 0;
}

template <class T>
void ExtraInputs<T>::fill(const double* frame, const double* atomic, const int32_t* types, int64_t atoms,
                          std::vector<T>& to, int64_t before) const {
  const int64_t columns = before + width();
  to.assign(atoms * columns, T(0));
  if (!width()) return;
  const auto normalised = [](const Parameters& of, const double* values, T* at) {
    for (size_t k = 0; k < of.size(); ++k)
      at[k] = (static_cast<T>(values[k]) - static_cast<T>(of.average[k])) * static_cast<T>(of.inverse[k]);
    return at + of.size();
  };
  for (int64_t i = 0; i < atoms; ++i) {
    T* at = to.data() + i * columns + before;
    if (marks && types[i] >= 0) at[types[i]] = T(1);
    at = normalised(fparam, frame ? frame : fparam.own.data(), at + marks);
    at = normalised(aparam, atomic + i * static_cast<int64_t>(aparam.size()), at);
    std::copy(constants.begin(), constants.end(), at);
  }
}

template <class T>
FittingNets<T>::FittingNets(const File& file, const Json& about, const std::string& prefix,
                            const DescriptorWeights<T>& sums, int64_t extra, bool of_columns) {
  const int64_t nets = about.at("nets").as_integer(), layers = about.at("layers").as_integer();
  if (nets != 1 && nets != sums.ntypes) damaged("its nets are not one a type, or one for all");
  if (layers < 2 || layers > kMaxLayers) damaged("its nets have too few layers, or too many");
  const std::string problem = shape_refusal(sums.width, sums.axis, {1}, extra);
  if (!problem.empty()) damaged(problem);
  const auto part = [&](int64_t net, int64_t layer, const char* name) {
    return prefix + "net." + std::to_string(net) + "." + std::to_string(layer) + "." + name;
  };
  std::vector<int64_t> neurons, residual;
  for (const Json& adds : about.at("residual").as_list()) residual.push_back(adds.as_bool());
  const int64_t hidden = of_columns ? layers : layers - 1;
  if (of_columns) residual.push_back(false);
  for (int64_t n = 0; n < hidden; ++n) {
    const std::vector<int64_t>& dims = file.array(part(0, n, "weight")).shape;
    neurons.push_back(dims.size() == 2 ? dims[1] : 0);
  }
  shape = fitting_shape("load", sums.width, sums.axis, neurons, extra);
  set_layers("load", residual, about.at("activation").as_integer(), about.at("threshold").as_number(), shape);
  if (of_columns) {
    if (shape.plain || neurons.back() != sums.width) damaged("its nets do not give a number for each column");
    shape.activation[hidden - 1] = Activation::linear;
  }
  count = static_cast<int>(nets);
  for (int64_t k = 0; k < nets; ++k) {
    for (int64_t n = 0, inputs = shape.features + extra; n < layers; ++n) {
      const int64_t outputs = n < hidden ? neurons[n] : 1;
      numbers_.push_back(file.numbers<T>(part(k, n, "weight"), {inputs, outputs}));
      numbers_.push_back(file.numbers<T>(part(k, n, "bias"), {outputs}));
      numbers_.push_back(file.numbers<T>(part(k, n, "timestep"), {outputs}));
      inputs = outputs;
    }
    if (of_columns) numbers_.insert(numbers_.end(), {std::vector<T>(neurons.back()), {T(0)}, {T(0)}});
  }
  scale = file.numbers<double>(prefix + "scale", {nets});
  shift = file.numbers<double>(prefix + "shift", {sums.ntypes});
}

template <class T>
std::vector<DenseLayer<T>> FittingNets<T>::layers(int net) const {
  std::vector<DenseLayer<T>> dense;
  for (int n = 0; n <= shape.layers; ++n)
    dense.push_back({numbers(net, n, 0).data(), numbers(net, n, 1).data(), numbers(net, n, 2).data()});
  return dense;
}

MDOPS_INSTANTIATE_CLASSES(DescriptorWeights, ExtraInputs, FittingNets)

}  // namespace mdops::core
