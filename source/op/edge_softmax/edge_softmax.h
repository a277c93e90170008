// Weights of an atom's edges: a softmax of products of both ends, in each of H heads of S channels. For an
// edge e from atom i(e) to j(e), with a fade u_e that is squared, and z_h > 0, the weight of no edge:
//
//   x_eh = scale q_ih . k_jh + b_eh
//   y_eh = u_e^2 exp(x_eh) / (z_h + sum of the same over the edges of i)
//          0 if u_e^2 is not a normal number
//
// Backward, for the gradient g by y:
//
//   by x_eh = y_eh (g_eh - sum of y g over the edges of i)     by b the same
//   by u_e = 2 / u_e sum_h by x_eh
//   by q_ih = scale sum over i's edges of by x_eh k_jh         by k_jh the same over the edges to j
#pragma once

#include <cmath>
#include <limits>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct EdgeSoftmaxArgs {
  int64_t edges, atoms, nodes, heads, width;  // E, N, M, H, H S
  T scale;
  const T *q, *k, *bias, *fades, *nothing;  // (N, H S), (M, H S), (E, H), (E), (H)
  const int32_t* offsets;                   // (N + 1): where an atom's edges begin
  const int32_t *atom_of, *node_of, *order,
      *ends;                      // i (E), j (E); (E) or null and (M + 1): the edges to a node
  const T* grad;                  // (E, H), or null
  T *y, *by_fades, *by_q, *by_k;  // (E, H), y or the gradient by b; the others of backward passes

  // Head of a column. With one head, nothing is divided.
  MDOPS_HD int64_t head_of(int64_t c) const { return heads == 1 ? 0 : c / (width / heads); }
  MDOPS_HD bool fits(const int32_t* begin) const {
    return begin[0] >= 0 && begin[0] <= begin[1] && begin[1] <= edges;
  }
};

// The workers on an atom are a `Team`: `each(begin, end, f)` calls f(k) for all k between, each k always in
// the same member; `sum` and `max` return the total over members to all; `dot` is the product of two rows;
// `columns(args, rows, begin, end, find, write)` calls write(c, sum over k of `term_of` find(k)) for all
// columns; after `meet` all see what any of them has written.

// An edge in a column's sum, and the node that it leads to, -1 if wrong.
struct EdgeEnd {
  int32_t edge, node;
};

// What an edge adds to columns from c on, of head h: as many as `load` reads from rows of nodes.
template <class T, class Load>
MDOPS_HD auto term_of(const EdgeSoftmaxArgs<T>& args, const T* rows, const EdgeEnd& of, int64_t h, int64_t c,
                      const Load& load) {
  using V = decltype(load(rows));
  if (of.node < 0) return V{} + std::numeric_limits<T>::quiet_NaN();
  return args.y[of.edge * args.heads + h] * load(rows + of.node * args.width + c);
}

// Logit of an edge of atom i.
template <class T, class Team>
MDOPS_HD T logit_of(const EdgeSoftmaxArgs<T>& args, int64_t i, int64_t e, int64_t h, const Team& team) {
  const int32_t j = args.node_of[e];
  if (args.atom_of[e] != i || j < 0 || j >= args.nodes) return std::numeric_limits<T>::quiet_NaN();
  const int64_t size = args.width / args.heads;
  const T *const q = args.q + i * args.width + h * size, *const k = args.k + j * args.width + h * size;
  return args.scale * team.dot(q, k, size) + args.bias[e * args.heads + h];
}

// Writes the weights of an atom's edges in one head to `args.y`.
template <class T, class Team>
MDOPS_HD void weigh_edges(const EdgeSoftmaxArgs<T>& args, int64_t n, int64_t h, const Team& team) {
  const int64_t begin = args.offsets[n], end = args.offsets[n + 1];
  const T least = std::numeric_limits<T>::min();
  T most = std::log(args.nothing[h]);
  team.each(begin, end, [&](int64_t e) {
    const T mass = args.fades[e] * args.fades[e], x = logit_of(args, n, e, h, team);
    args.y[e * args.heads + h] = x;
    if (!(mass <= least)) {
      const T seen = x + std::log(mass);
      most = seen > most ? seen : most;
    }
  });
  most = team.max(most);
  T total = 0;
  team.each(begin, end, [&](int64_t e) {
    const T mass = args.fades[e] * args.fades[e];
    T& y = args.y[e * args.heads + h];
    y = mass <= least ? T(0) : std::exp(y - most) * mass;
    total += y;
  });
  const T share = T(1) / (team.sum(total) + args.nothing[h] * std::exp(-most));
  team.each(begin, end, [&](int64_t e) { args.y[e * args.heads + h] *= share; });
}

// Writes `value` to all existing rows in [begin, end).
template <class T, class Team>
MDOPS_HD void fill_rows(const EdgeSoftmaxArgs<T>& args, int64_t begin, int64_t end, T value,
                        const Team& team) {
  team.each(begin < 0 ? 0 : begin, end < args.edges ? end : args.edges, [&](int64_t e) {
    for (int64_t h = 0; h < args.heads; ++h) args.y[e * args.heads + h] = value;
    if (args.grad) args.by_fades[e] = value;
  });
}

template <class T, class Team>
MDOPS_HD void softmax_atom(const EdgeSoftmaxArgs<T>& args, int64_t n, const Team& team) {
  if (!args.fits(args.offsets + n)) {
    const T none = std::numeric_limits<T>::quiet_NaN();
    fill_rows(args, args.offsets[n], args.offsets[n + 1], none, team);
    if (args.grad) team.each(0, args.width, [&](int64_t c) { args.by_q[n * args.width + c] = none; });
    return;
  }
  const int64_t begin = args.offsets[n], end = args.offsets[n + 1];
  for (int64_t h = 0; h < args.heads; ++h) {
    weigh_edges(args, n, h, team);
    if (!args.grad) continue;
    T along = 0;
    team.each(begin, end,
              [&](int64_t e) { along += args.y[e * args.heads + h] * args.grad[e * args.heads + h]; });
    along = team.sum(along);
    team.each(begin, end, [&](int64_t e) {
      T& by_x = args.y[e * args.heads + h];
      by_x *= args.grad[e * args.heads + h] - along;
      const T by_fade = args.fades[e] == T(0) ? T(0) : T(2) * by_x / args.fades[e];
      args.by_fades[e] = h ? args.by_fades[e] + by_fade : by_fade;
    });
  }
  if (!args.grad) return;
  team.meet();
  team.columns(
      args, args.k, begin, end,
      [&](int64_t e) {
        const int32_t j = args.node_of[e];
        return EdgeEnd{static_cast<int32_t>(e), j < args.nodes ? j : -1};
      },
      [&](int64_t c, T sum) { args.by_q[n * args.width + c] = args.scale * sum; });
}

// The gradient by k of a node, after those by x.
template <class T, class Team>
MDOPS_HD void softmax_node(const EdgeSoftmaxArgs<T>& args, int64_t m, const Team& team) {
  const bool fits = args.fits(args.ends + m);
  const int64_t begin = fits ? args.ends[m] : 0, end = fits ? args.ends[m + 1] : 0;
  team.columns(
      args, args.q, begin, end,
      [&](int64_t place) {
        const int64_t e = args.order ? args.order[place] : place;
        const int32_t i = e < 0 || e >= args.edges || args.node_of[e] != m ? -1 : args.atom_of[e];
        return EdgeEnd{static_cast<int32_t>(e), i < args.atoms ? i : -1};
      },
      [&](int64_t c, T sum) {
        args.by_k[m * args.width + c] = fits ? args.scale * sum : std::numeric_limits<T>::quiet_NaN();
      });
}

// Clears rows after the last edge; before the first there are none.
template <class T, class Team>
MDOPS_HD void clear_rest(const EdgeSoftmaxArgs<T>& args, const Team& team) {
  fill_rows(args, 0, args.offsets[0], std::numeric_limits<T>::quiet_NaN(), team);
  fill_rows(args, args.offsets[args.atoms], args.edges, T(0), team);
}

// For some atoms (the last also clears the remaining rows), or nodes.
MDOPS_DECLARE_KERNELS(void softmax_atoms(const EdgeSoftmaxArgs<T>& args, int64_t begin, int64_t end))
MDOPS_DECLARE_KERNELS(void softmax_nodes(const EdgeSoftmaxArgs<T>& args, int64_t begin, int64_t end))

}  // namespace mdops
