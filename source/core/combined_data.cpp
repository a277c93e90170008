#include "core/combined_data.h"

#include <algorithm>

namespace mdops::core {

template <class T>
StandardWeights<T>::StandardWeights(const File& file, const Json& about, const std::string& prefix,
                                    const std::string& precision, int64_t ntypes, int64_t extra_features) {
  std::vector<int64_t> neurons, residual;
  for (const Json& n : about.at("neurons").as_list()) neurons.push_back(n.as_integer());
  for (const Json& adds : about.at("residual").as_list()) residual.push_back(adds.as_bool());
  const std::vector<Json>& parts = about.at("descriptors").as_list();
  if ((parts.empty() && !extra_features) || parts.size() > kMostParts)
    damaged("it has no descriptor, or too many");
  for (size_t p = 0; p < parts.size(); ++p) {
    sums.push_back(std::make_unique<DescriptorWeights<T>>(file, parts[p], prefix + std::to_string(p) + ".",
                                                          precision, ntypes));
    shapes.push_back(fitting_shape("load", sums[p]->width, sums[p]->axis, neurons, 0));
    if (sums[p]->cutoff > sums[widest]->cutoff) widest = static_cast<int>(p);
    add_limits(sums[p]->mixed, sums[p]->sel, static_cast<int64_t>(p) * ntypes, static_cast<int>(ntypes),
               limits);
  }
  inputs.read(file, about, prefix, ntypes);
  FittingShape layers = shapes.empty() ? fitting_shape("load", 1, 1, neurons, 0) : shapes[0];
  set_layers("load", residual, about.at("activation").as_integer(), about.at("threshold").as_number(),
             layers);
  const int64_t extra = extra_features + inputs.width();
  const std::string problem = shape_refusal(1, 1, neurons, extra);
  if (!problem.empty()) damaged(problem);
  net = net_behind(shapes, layers, extra);
  if (net.features == 0 && net.residual[0] && net.neurons[0] != extra && net.neurons[0] != 2 * extra)
    damaged("its nets' first layer is not as wide as its inputs, or twice");
  const std::vector<int64_t>& dims = file.array(prefix + "nets").shape;
  const int64_t found = dims.empty() ? 0 : dims[0];
  if (found != 1 && found != ntypes) damaged("its nets are not one a type, or one for all");
  count = static_cast<int>(found);
  nets = file.numbers<T>(prefix + "nets", {found, net_size(net)});
  scale = file.numbers<double>(prefix + "scale", {found});
  shift = file.numbers<double>(prefix + "shift", {ntypes});
}

template <class T>
std::vector<DenseLayer<T>> StandardWeights<T>::layers(int k, std::vector<T>& first) const {
  std::vector<DenseLayer<T>> found = packed_layers(net, nets.data() + k * net_size(net));
  first = unfolded_weights(shapes, net, found[0].weight);
  found[0].weight = first.data();
  return found;
}

TableData::TableData(const File& file, const Json& about, const std::string& prefix, int64_t ntypes)
    : mask(bools(file.flags(prefix + "pair_mask", {ntypes, ntypes}))),
      coefficients(file.numbers<double>(prefix + "coefficients", {ntypes, ntypes, -1, 4})),
      bias(file.numbers<double>(prefix + "bias", {ntypes})) {
  table = {mask.get(),
           coefficients.data(),
           file.array(prefix + "coefficients").shape[2],
           about.at("first").as_number(),
           positive(about, "step"),
           positive(about, "cutoff")};
  if (table.intervals < 1 || !(table.first >= 0)) damaged("its pair table has no rows, or begins below 0");
  limits.push_back({0, ntypes, about.at("sel").as_integer(), -1});
}

CombinedData::CombinedData(const File& file, const Json& about, const std::string& precision, int64_t ntypes)
    : cutoff(positive(about, "cutoff")),
      shortest(about.at("grids").at(precision).at("r_min").as_number()),
      closest(about.at("closest").as_number()),
      bias(file.numbers<double>("core.bias", {ntypes})),
      has_energy(file.flags("core.has_energy", {ntypes})),
      all_have_energy(std::count(has_energy.begin(), has_energy.end(), 0) == 0) {
  const std::vector<Json>& members = about.at("members").as_list();
  if (members.empty()) damaged("it has no members");
  for (const Json& member : members) factors.push_back(member.at("factor").as_number());
  const Json* const found = about.find("near");
  if (!found) return;
  blends = true;
  near_mask = bools(file.flags("core.near_mask", {ntypes, ntypes}));
  near = {near_mask.get(), positive(*found, "cutoff"), positive(*found, "decay"),
          found->at("low").as_number(), found->at("high").as_number()};
  if (!(near.low < near.high)) damaged("its blend has no range");
  if (members.size() != 2 || !members[1].at("is_table").as_bool())
    damaged("its blend is not of a model and a table");
}

CombinedData::CombinedData(double cutoff_, double shortest_, int64_t ntypes)
    : cutoff(cutoff_),
      shortest(shortest_),
      closest(0),
      bias(ntypes, 0.0),
      has_energy(ntypes, 1),
      all_have_energy(true),
      factors{1.0} {}

const Parameters& common_parameters(const std::vector<const Parameters*>& members) {
  static const Parameters none;
  const Parameters* found = &none;
  for (const Parameters* const own : members) {
    if (!own || !own->size()) continue;
    if (found->size() && found->size() != own->size()) damaged("its parts take different parameters");
    if (!found->size() || own->needed()) found = own;
  }
  return *found;
}

double positive(const Json& about, const char* name) {
  const double value = about.at(name).as_number();
  if (!(value > 0)) damaged(std::string("its `") + name + "` is not positive");
  return value;
}

MDOPS_INSTANTIATE_CLASSES(StandardWeights)

}  // namespace mdops::core
