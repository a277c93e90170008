// Masses of elements.
#pragma once

#include <cmath>
#include <string>

namespace mdops::lammps {

// The mass of an element, u, or 0 for other names.
inline double standard_mass(const std::string& element) {
  static const struct {
    const char* name;
    double mass;
  } kMasses[] = {
      {"H", 1.008},    {"He", 4.0026},  {"Li", 6.94},    {"Be", 9.0122},  {"B", 10.81},    {"C", 12.011},
      {"N", 14.007},   {"O", 15.999},   {"F", 18.9984},  {"Ne", 20.1797}, {"Na", 22.9898}, {"Mg", 24.305},
      {"Al", 26.9815}, {"Si", 28.085},  {"P", 30.9738},  {"S", 32.06},    {"Cl", 35.45},   {"Ar", 39.948},
      {"K", 39.0983},  {"Ca", 40.078},  {"Sc", 44.9559}, {"Ti", 47.867},  {"V", 50.9415},  {"Cr", 51.9961},
      {"Mn", 54.938},  {"Fe", 55.845},  {"Co", 58.9332}, {"Ni", 58.6934}, {"Cu", 63.546},  {"Zn", 65.38},
      {"Ga", 69.723},  {"Ge", 72.63},   {"As", 74.9216}, {"Se", 78.971},  {"Br", 79.904},  {"Kr", 83.798},
      {"Rb", 85.4678}, {"Sr", 87.62},   {"Y", 88.9058},  {"Zr", 91.224},  {"Nb", 92.9064}, {"Mo", 95.95},
      {"Tc", 97.9072}, {"Ru", 101.07},  {"Rh", 102.906}, {"Pd", 106.42},  {"Ag", 107.868}, {"Cd", 112.414},
      {"In", 114.818}, {"Sn", 118.71},  {"Sb", 121.76},  {"Te", 127.6},   {"I", 126.904},  {"Xe", 131.293},
      {"Cs", 132.905}, {"Ba", 137.327}, {"La", 138.905}, {"Ce", 140.116}, {"Pr", 140.908}, {"Nd", 144.242},
      {"Pm", 144.913}, {"Sm", 150.36},  {"Eu", 151.964}, {"Gd", 157.25},  {"Tb", 158.925}, {"Dy", 162.5},
      {"Ho", 164.93},  {"Er", 167.259}, {"Tm", 168.934}, {"Yb", 173.054}, {"Lu", 174.967}, {"Hf", 178.49},
      {"Ta", 180.948}, {"W", 183.84},   {"Re", 186.207}, {"Os", 190.23},  {"Ir", 192.217}, {"Pt", 195.084},
      {"Au", 196.967}, {"Hg", 200.592}, {"Tl", 204.38},  {"Pb", 207.2},   {"Bi", 208.98},  {"Po", 208.982},
      {"At", 209.987}, {"Rn", 222.018}, {"Fr", 223.02},  {"Ra", 226.025}, {"Ac", 227.028}, {"Th", 232.038},
      {"Pa", 231.036}, {"U", 238.029},  {"Np", 237.048}, {"Pu", 244.064}, {"Am", 243.061}, {"Cm", 247.07},
      {"Bk", 247.07},  {"Cf", 251.08},  {"Es", 252.083}, {"Fm", 257.095}, {"Md", 258.098}, {"No", 259.101},
      {"Lr", 262.11},  {"Rf", 267.122}, {"Db", 268.126}, {"Sg", 271.134}, {"Bh", 270.133}, {"Hs", 269.134},
      {"Mt", 278.156}, {"Ds", 281.165}, {"Rg", 281.166}, {"Cn", 285.177}, {"Nh", 286.182}, {"Fl", 289.19},
      {"Mc", 289.194}, {"Lv", 293.204}, {"Ts", 293.208}, {"Og", 294.214}};
  for (const auto& known : kMasses)
    if (element == known.name) return known.mass;
  return 0;
}

// Whether the mass of a type that is `own` in pair_coeff is that of `other`.
inline bool has_mass_of(double mass, const std::string& own, const std::string& other) {
  const auto is_near = [mass](double of) { return std::abs(mass - of) < 0.01 * of; };
  return standard_mass(own) > 0 && !is_near(standard_mass(own)) && is_near(standard_mass(other));
}

}  // namespace mdops::lammps
