// The edges of a graph of atoms: which slots of a pair list are edges, their order, reverse edges and angles.
//
// An edge is a slot whose neighbour is within the cutoff. The edges of an atom i follow each other, the
// nearest neighbour first; atoms follow each other. The nearest `edge_sel` neighbours within the cutoff take
// places, also those of masked pairs of types, which are no edges. Angles are made of the neighbours in the
// first `angle_sel` places that are within the cutoff of angles: the first edges of the atom. An angle is an
// ordered pair of them (j, k), and k may be j: m^2 angles of m edges.
#pragma once

#include "common/pairs.h"
#include "neighbor_rows/neighbor_rows.h"

namespace mdops {

// Why a graph is refused if values were not checked before: needed[0] is -code, needed[1] the atom.
constexpr int64_t kWrongRow = 1, kWrongNeighbor = 2;

// A neighbour within the cutoff. Equal distances are ordered by atom, image and slot.
template <class T>
struct Candidate {
  T r2;  // squared distance; -1 if NaN, to keep it
  int32_t neighbor, image, slot;

  MDOPS_HD bool before(const Candidate& other) const {
    if (r2 != other.r2) return r2 < other.r2;
    if (neighbor != other.neighbor) return neighbor < other.neighbor;
    return image != other.image ? image < other.image : slot < other.slot;
  }
};

template <class T>
struct EdgeListArgs {
  SlotArgs<T> list;
  const int32_t *neighbors, *images;  // (N, K)
  const bool* pair_mask;              // (ntypes, ntypes)
  T cutoff2, angle_cutoff2;
  int64_t edge_sel, angle_sel, nodes, capacity;
  // Results. Per edge (capacity,): the atom, its neighbour, the image and the slot n K + k, -1 after the
  // last. Also where the edges of each atom begin (N + 1,); the edge of each slot or -1 (N, K); each atom's
  // number of edges that make angles (N,); its number of neighbours within both cutoffs (N, 2); and the
  // number of edges.
  int32_t *i, *j, *edge_images, *slots, *offsets, *edge_of_slot, *angle_neighbors, *within;
  int64_t* needed;

  MDOPS_HD T squared_distance(int64_t slot) const {
    const T r2 = squared_length(list.displacements + 3 * slot);
    return r2 == r2 ? r2 : T(-1);
  }
  MDOPS_HD Candidate<T> candidate(int64_t slot) const {
    return {squared_distance(slot), neighbors[slot], images[slot], static_cast<int32_t>(slot)};
  }
  // Edges at the cutoff of angles make none, as in DeePMD-kit.
  MDOPS_HD bool within_angle_cutoff(T r2) const { return r2 < angle_cutoff2; }
  MDOPS_HD bool makes_angles(int64_t place, T r2) const {
    return place < angle_sel && within_angle_cutoff(r2);
  }
  MDOPS_HD void write_edge(int64_t e, int64_t atom, int64_t slot) const {
    i[e] = static_cast<int32_t>(atom), slots[e] = static_cast<int32_t>(slot);
    j[e] = neighbors[slot], edge_images[e] = images[slot];
    edge_of_slot[slot] = static_cast<int32_t>(e);
  }
  MDOPS_HD void write_no_edge(int64_t e) const {
    i[e] = j[e] = slots[e] = -1;
    edge_images[e] = 0;
  }
};

// The edge from j to i through the opposite image, or -1: `offsets` gives the edges of each of `atoms`.
struct ReverseArgs {
  const int32_t *i, *j, *images, *offsets;
  int64_t edges, atoms;
  int32_t* reverse;

  MDOPS_HD bool opposite(int32_t a, int32_t b) const {
    for (int axis = 0; axis < 3; ++axis)
      if (image_shift(a, axis) != -image_shift(b, axis)) return false;
    return true;
  }
  MDOPS_HD void run(int64_t e) const {
    reverse[e] = -1;
    const int64_t to = j[e];
    if (to < 0 || to >= atoms || i[e] < 0) return;
    const int64_t begin = offsets[to], end = offsets[to + 1];
    if (begin < 0 || end > edges) return;
    for (int64_t k = begin; k < end; ++k)
      if (j[k] == i[e] && opposite(images[e], images[k])) {
        reverse[e] = static_cast<int32_t>(k);
        return;
      }
  }
};

// Sorts edges by an index, and finds where those of each value begin; omits -1.
struct OrderArgs {
  const int32_t* index;  // (edges,)
  int64_t edges, rows;
  int32_t *order, *offsets;  // (edges,), -1 after the last; (rows + 1,)
};

// Angles of the first `counts` edges of each atom.
struct EdgeAngleArgs {
  const int32_t *offsets, *counts;  // (atoms + 1,), (atoms,)
  int64_t atoms, edges, capacity;
  // Per angle (capacity,): its two edges and the angle of the same two in reverse order, -1 after the last.
  // Also where the angles of each first edge begin (edges + 1,), and the number of angles.
  int32_t *first, *second, *mirror, *angle_offsets;
  int64_t* needed;

  MDOPS_HD bool fits(int64_t atom) const {
    const int64_t begin = offsets[atom], end = offsets[atom + 1], count = counts[atom];
    return begin >= 0 && begin <= end && end <= edges && count >= 0 && count <= end - begin;
  }
  MDOPS_HD void write_angle(int64_t atom, int64_t base, int64_t q) const {
    const int64_t edge = offsets[atom], count = counts[atom], a = q / count, b = q % count;
    first[base + q] = static_cast<int32_t>(edge + a), second[base + q] = static_cast<int32_t>(edge + b);
    mirror[base + q] = static_cast<int32_t>(base + b * count + a);
  }
  // Where the angles of the atom's edge number `a` begin.
  MDOPS_HD int32_t angles_before(int64_t atom, int64_t base, int64_t a) const {
    const int64_t count = counts[atom];
    return static_cast<int32_t>(base + (a < count ? a : count) * count);
  }
  MDOPS_HD void write_no_angle(int64_t a) const { first[a] = second[a] = mirror[a] = -1; }
};

}  // namespace mdops
