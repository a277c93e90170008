// Where the members of a call's arguments lie in this library.
#include <cstdio>

#include "spline_potential/spline_potential.h"

template <class T>
void tell() {
  static mdops::PotentialArgs<T> args;
  static mdops::PotentialResults<T> results;
  const auto at = [](const auto& whole, const auto& member) {
    std::printf("%td ", reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&whole));
  };
  at(args, args.positions), at(args, args.places), at(args, args.extra), at(args, args.list_width);
  at(args, args.cutoff), at(args, args.grid), at(args, args.parts);
  const mdops::NetSizes& net = args.net;
  at(args, net), at(args, net.features), at(args, net.extra), at(args, net.threshold);
  at(results, results.bad_atom), at(results, results.atom_virial);
  std::printf("%zu %zu %zu\n", sizeof(args), sizeof(results), sizeof(mdops::NetWeights<T>));
}

int main() {
  tell<float>(), tell<double>();
}
