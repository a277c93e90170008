// The data in a file of models of several descriptors, of several models, and of pair tables.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/limits.h"
#include "core/weights.h"
#include "hybrid_potential/shape.h"
#include "pair_table/pair_table.h"

namespace mdops::core {

// A standard model: its descriptors of sums, and the nets, which also read other descriptors' features.
template <class T>
struct StandardWeights {
  std::vector<std::unique_ptr<DescriptorWeights<T>>> sums;
  std::vector<FittingShape> shapes;  // of each, and of the nets' layers
  int widest = 0;
  ExtraInputs<T> inputs;
  NetShape net{};
  int count = 0;  // of nets: one a type, or one for all
  std::vector<T> nets;
  std::vector<double> scale, shift;
  std::vector<Limit> limits;

  StandardWeights(const File& file, const Json& about, const std::string& prefix,
                  const std::string& precision, int64_t ntypes, int64_t extra_features);

  // The layers of a net, the output layer last. The first takes all features in DeePMD-kit's order; `first`
  // gets its weights.
  std::vector<DenseLayer<T>> layers(int net, std::vector<T>& first) const;
};

struct TableData {
  std::unique_ptr<bool[]> mask;
  std::vector<double> coefficients, bias;
  TableArgs table{};  // of these arrays
  std::vector<Limit> limits;

  TableData(const File& file, const Json& about, const std::string& prefix, int64_t ntypes);
};

// The whole, without its members.
struct CombinedData {
  double cutoff, shortest, closest;  // A; closest: nearer atoms have no energy
  std::vector<double> bias;
  std::vector<uint8_t> has_energy;
  bool all_have_energy;
  std::vector<double> factors;  // of the members
  // A blend's weights: of a model and a table.
  bool blends = false;
  std::unique_ptr<bool[]> near_mask;
  NearArgs near{};

  CombinedData(const File& file, const Json& about, const std::string& precision, int64_t ntypes);
  // For one model alone.
  CombinedData(double cutoff, double shortest, int64_t ntypes);
};

// The parameters of a model with these members: theirs, which must be the same if present; null: none.
const Parameters& common_parameters(const std::vector<const Parameters*>& members);

// The members of a model, from make(about, prefix, whether it is a table); returns their frame and atomic
// parameters.
template <class Part, class Make>
std::array<const Parameters*, 2> read_members(const Json& about, const Make& make,
                                              std::vector<std::unique_ptr<Part>>& parts) {
  std::vector<const Parameters*> parameters[2];
  for (const Json& member : about.at("members").as_list()) {
    const std::string prefix = "core." + std::to_string(parts.size()) + ".";
    parts.push_back(make(member, prefix, member.at("is_table").as_bool()));
    for (int k = 0; k < 2; ++k) parameters[k].push_back(parts.back()->parameters[k]);
  }
  return {&common_parameters(parameters[0]), &common_parameters(parameters[1])};
}

// The atoms of a call, on the CPU or a GPU, for the kernels of pair tables.
ListArgs list_of(const auto& call, int ntypes) {
  ListArgs list{};
  list.positions = call.positions, list.cell = call.cell, list.batch = call.systems, list.types = call.types;
  list.neighbors = call.rows.neighbors.data(), list.images = call.rows.images.data();
  list.counts = call.rows.counts.data(), list.atoms = call.all, list.systems = 1;
  list.list_width = call.rows.width, list.ntypes = ntypes;
  return list;
}

// The number, which must be above zero.
double positive(const Json& about, const char* name);

}  // namespace mdops::core
