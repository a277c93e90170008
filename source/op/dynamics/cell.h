// Atoms in a cell that follows a pressure: G. J. Martyna, D. J. Tobias and M. L. Klein, J. Chem. Phys. 101,
// 4177 (1994), with that paper's factorisation of a step. The cell strains at the symmetric rate P / W; its
// momentum P and the atoms' obey
//   dx/dt = p/m + x P/W,  dp/dt = F - p (P + tr(P)/g) / W,  dh/dt = h P/W,
//   dP/dt = virial + sum p p^T/m + 2K/g - pressure V,
// and both have chains of thermostats. When the volume alone may change, P is a multiple of 1.
#pragma once

#include "dynamics/dynamics.h"

namespace mdops {

// A symmetric matrix: xx, yy, zz, yz, xz, xy.
struct Symmetric {
  double v[6];

  static MDOPS_HD Symmetric diagonal(double d) { return {{d, d, d, 0, 0, 0}}; }

  static MDOPS_HD Symmetric load(const double* from) {
    Symmetric m;
    for (int k = 0; k < 6; ++k) m.v[k] = from[k];
    return m;
  }

  // The symmetric part of a 3 x 3 matrix.
  static MDOPS_HD Symmetric part_of(const double* m) {
    return {{m[0], m[4], m[8], (m[5] + m[7]) / 2, (m[2] + m[6]) / 2, (m[1] + m[3]) / 2}};
  }

  MDOPS_HD void store(double* to) const {
    for (int k = 0; k < 6; ++k) to[k] = v[k];
  }

  MDOPS_HD double trace() const { return v[0] + v[1] + v[2]; }

  // The sum of the squares of all nine entries.
  MDOPS_HD double squares() const {
    return v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + 2 * (v[3] * v[3] + v[4] * v[4] + v[5] * v[5]);
  }

  MDOPS_HD Symmetric plus(double factor, const Symmetric& other) const {
    Symmetric sum;
    for (int k = 0; k < 6; ++k) sum.v[k] = v[k] + factor * other.v[k];
    return sum;
  }

  MDOPS_HD Symmetric times(double factor) const { return diagonal(0).plus(factor, *this); }

  // The product with a matrix that commutes with this one.
  MDOPS_HD Symmetric times(const Symmetric& m) const {
    const double* w = m.v;
    return {{v[0] * w[0] + v[5] * w[5] + v[4] * w[4], v[5] * w[5] + v[1] * w[1] + v[3] * w[3],
             v[4] * w[4] + v[3] * w[3] + v[2] * w[2], v[5] * w[4] + v[1] * w[3] + v[3] * w[2],
             v[0] * w[4] + v[5] * w[3] + v[4] * w[2], v[0] * w[5] + v[5] * w[1] + v[4] * w[3]}};
  }

  // out += factor x, for a row x of three.
  MDOPS_HD void add_product(const double* x, double factor, double* out) const {
    out[0] += factor * (v[0] * x[0] + v[5] * x[1] + v[4] * x[2]);
    out[1] += factor * (v[5] * x[0] + v[1] * x[1] + v[3] * x[2]);
    out[2] += factor * (v[4] * x[0] + v[3] * x[1] + v[2] * x[2]);
  }
};

// exp(x) and (exp(x) - 1) / x, which integrate linear equations of motion. Strains of a step are small: if
// all entries are below a half the series is exact to rounding, else the result is NaN.
struct Exponential {
  Symmetric whole, mean;

  explicit MDOPS_HD Exponential(const Symmetric& x) {
    constexpr int kTerms = 15;
    const Symmetric one = Symmetric::diagonal(1);
    mean = one;
    for (int k = kTerms; k > 1; --k) mean = one.plus(1.0 / k, x.times(mean));
    whole = one.plus(1, x.times(mean));
    if (!(x.squares() < 0.25)) whole = mean = Symmetric{{NAN, NAN, NAN, NAN, NAN, NAN}};
  }
};

// The determinant of a 3 x 3 matrix, and its adjugate.
MDOPS_HD double adjugate(const double* m, double* out) {
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      const int a = (j + 1) % 3, b = (j + 2) % 3, c = (i + 1) % 3, d = (i + 2) % 3;
      out[3 * i + j] = m[3 * a + c] * m[3 * b + d] - m[3 * a + d] * m[3 * b + c];
    }
  return m[0] * out[0] + m[1] * out[3] + m[2] * out[6];
}

MDOPS_HD double volume_of(const double* cell) {
  double ignored[9];
  return std::fabs(adjugate(cell, ignored));
}

// The strain of a cell h since the neighbour list was made in the cell h0: x0 -> x0 (1 + D), D = h0^-1 (h
// - h0).
struct Strain {
  double d[9];

  MDOPS_HD Strain(const double* reference, const double* cell) {
    double adjoint[9];
    const double inverse = 1 / adjugate(reference, adjoint);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) {
        double sum = 0;
        for (int k = 0; k < 3; ++k) sum += adjoint[3 * i + k] * (cell[3 * k + j] - reference[3 * k + j]);
        d[3 * i + j] = inverse * sum;
      }
  }

  // The squared distance of an atom from its strained position.
  MDOPS_HD double moved2(const double* x, const double* x0) const {
    double sum = 0;
    for (int j = 0; j < 3; ++j) {
      const double way = x[j] - x0[j] - (x0[0] * d[j] + x0[1] * d[3 + j] + x0[2] * d[6 + j]);
      sum += way * way;
    }
    return sum;
  }

  // No less than the part of its length that any vector lost. The squared length of u (1 + D) is at least
  // 1 + 2 e times that of u, with e the smallest eigenvalue of D's symmetric part E; and e is at least
  // tr(E)/3 - sqrt(2/3) |E - tr(E)/3|, which is e itself where the volume alone has changed.
  MDOPS_HD double shrinkage() const {
    const Symmetric e = Symmetric::part_of(d);
    const double mean = e.trace() / 3, spread = e.plus(-mean, Symmetric::diagonal(1)).squares();
    const double least = mean - std::sqrt(2 * spread / 3);
    if (least >= 0) return 0;
    return least > -0.5 ? -2 * least / (1 + std::sqrt(1 + 2 * least)) : (least <= -0.5 ? 1.0 : least);
  }
};

// A system's numbers that move its atoms in a step: the matrices of p -> p A + F B over half a step and
// x -> x C + (p/m) E over a step, and the thermostats' initial factor of p.
struct Moves {
  static constexpr int kCount = 25;
  const double* from;

  MDOPS_HD Symmetric matrix(int k) const { return Symmetric::load(from + 6 * k); }
  MDOPS_HD double factor() const { return from[24]; }

  MDOPS_HD void kick(const double* p, double factor, const double* force, double* new_p) const {
    for (int c = 0; c < 3; ++c) new_p[c] = 0;
    matrix(0).add_product(p, factor, new_p);
    matrix(1).add_product(force, 1, new_p);
  }

  MDOPS_HD void drift(const double* x, const double* p, double inverse_mass, double* new_x) const {
    for (int c = 0; c < 3; ++c) new_x[c] = 0;
    matrix(2).add_product(x, 1, new_x);
    matrix(3).add_product(p, inverse_mass, new_x);
  }
};

// The first half of a step of atoms in a moving cell.
struct CellFirstHalf {
  const double *positions, *momenta, *forces, *inverse_mass, *moves;
  double *new_positions, *new_momenta;

  MDOPS_HD void move(int64_t i, int64_t system) const {
    const Moves own{moves + Moves::kCount * system};
    double p[3], x[3];
    own.kick(momenta + 3 * i, own.factor(), forces + 3 * i, p);
    own.drift(positions + 3 * i, p, inverse_mass[i], x);
    for (int c = 0; c < 3; ++c) new_momenta[3 * i + c] = p[c], new_positions[3 * i + c] = x[c];
  }
};

// Measures of atoms in a moving cell, with sum p p^T/m in place of the kinetic energy.
struct CellMeasures {
  Measures of_atoms;
  Symmetric flow;

  static MDOPS_HD CellMeasures none() { return {Measures::none(), Symmetric::diagonal(0)}; }

  MDOPS_HD void add(const CellMeasures& other) {
    of_atoms.add(other.of_atoms);
    flow = flow.plus(1, other.flow);
  }

  MDOPS_HD void spoil() { flow = Symmetric::diagonal(NAN); }
};

// The second half of a step of atoms in a moving cell.
template <class Real>
struct CellSecondHalf {
  using Measured = CellMeasures;
  SecondHalf<Real> atoms;
  const double *moves, *cell, *reference_cell;
  const int32_t* batch;
  int64_t systems;

  MDOPS_HD void spoil(int64_t i) const { atoms.spoil(i); }

  // A kick of atom i; discarded if it has no system.
  MDOPS_HD CellMeasures kick(int64_t i) const {
    const int64_t system = batch[i] < 0 || batch[i] >= systems ? 0 : batch[i];
    double* p = atoms.new_momenta + 3 * i;
    Moves{moves + Moves::kCount * system}.kick(atoms.momenta + 3 * i, 1, atoms.forces + 3 * i, p);
    const Strain strain(reference_cell + 9 * system, cell + 9 * system);
    const double moved2 = strain.moved2(atoms.positions + 3 * i, atoms.reference + 3 * i);
    const Symmetric pp = {{p[0] * p[0], p[1] * p[1], p[2] * p[2], p[1] * p[2], p[0] * p[2], p[0] * p[1]}};
    return {atoms.measured(i, 0, moved2), pp.times(atoms.inverse_mass[i])};
  }
};

}  // namespace mdops
