// The fitting net over a block of atoms, for one instruction set.
//
// D = T^T T_< is symmetric in its first M2 x M2 entries, so the first layer sees only the features D[l][k]
// with k >= l, l < M2, the weights of the two equal ones added. D is never whole: it is formed from T in
// groups of rows l, each multiplied at once into the first layer; the same backwards.
#pragma once

#include "common/gemm.h"
#include "spline_potential/spline_potential.h"

namespace mdops {
namespace MDOPS_ISA {

constexpr int kGroup = 4;  // rows l of D at once

// Features of the rows [l, l + kGroup) of D.
inline int64_t group_features(const FittingShape& net, int l) {
  int64_t sum = 0;
  for (int k = l; k < l + kGroup && k < net.axis; ++k) sum += net.width - k;
  return sum;
}

// Where the parts of a packed net stand: for each group of D and for `extra`, the weights and their
// transpose, then for each layer its weights and transpose (not of the first), bias and timestep, then the
// output layer.
template <class T>
struct NetLayout {
  int64_t size = 0;

  int64_t take(int64_t elements) {
    const int64_t at = size;
    size += elements;
    return at;
  }
  int64_t take_matrix(int64_t depth, int64_t cols) { return take(depth * padded<T>(cols)); }
};

template <class T>
struct PackedNet {
  int64_t group[64], group_back[64], extra;
  int64_t weight[kMaxLayers], weight_back[kMaxLayers], bias[kMaxLayers], timestep[kMaxLayers];
  int64_t out_weight, out_bias, size;

  explicit PackedNet(const FittingShape& net) {
    NetLayout<T> at;
    const int64_t first = net.neurons[0];
    for (int l = 0, g = 0; l < net.axis; l += kGroup, ++g) {
      group[g] = at.take_matrix(group_features(net, l), first);
      group_back[g] = at.take_matrix(first, group_features(net, l));
    }
    extra = at.take_matrix(net.extra, first);
    for (int n = 0; n < net.layers; ++n) {
      if (n > 0) {
        weight[n] = at.take_matrix(net.neurons[n - 1], net.neurons[n]);
        weight_back[n] = at.take_matrix(net.neurons[n], net.neurons[n - 1]);
      }
      bias[n] = at.take(net.neurons[n]);
      timestep[n] = at.take(net.neurons[n]);
    }
    out_weight = at.take(net.neurons[net.layers - 1]);
    out_bias = at.take(1);
    size = at.size;
  }
};

// Packs the rows of the weights that part `part` of `parts` has to, so that threads can share the work.
template <class T>
struct Packing {
  const FittingShape& net;
  const PackedNet<T> at;
  T* packed;
  int64_t part, parts, row = 0;

  Packing(const FittingShape& net_, T* packed_, int64_t part_, int64_t parts_)
      : net(net_), at(net_), packed(packed_), part(part_), parts(parts_) {}

  bool mine() { return row++ / 16 % parts == part; }

  // Row k of a matrix into itself and its transpose.
  void both(int64_t rows, int64_t cols, int64_t k, const T* from, const T* second, int64_t to, int64_t back) {
    if (!mine()) return;
    pack_row(rows, cols, k, from, second, packed + to);
    pack_column(cols, rows, k, from, second, packed + back);
  }

  // Features (l, k), k >= l, of DeePMD-kit's order k * M2 + l, the two equal ones added.
  void features(const T* weight) {
    const int64_t cols = net.neurons[0];
    for (int first = 0, g = 0; first < net.axis; first += kGroup, ++g) {
      const int64_t rows = group_features(net, first);
      int64_t f = 0;
      for (int l = first; l < first + kGroup && l < net.axis; ++l)
        for (int64_t k = l; k < net.width; ++k) {
          const T* equal = k < net.axis && k != l ? weight + (l * int64_t(net.axis) + k) * cols : nullptr;
          both(rows, cols, f++, weight + (k * net.axis + l) * cols, equal, at.group[g], at.group_back[g]);
        }
    }
  }

  void layers(const DenseLayer<T>* given) {
    features(given[0].weight);
    const T* extra = given[0].weight + static_cast<int64_t>(net.width) * net.axis * net.neurons[0];
    for (int64_t k = 0; k < net.extra; ++k)
      if (mine())
        pack_row<T>(net.extra, net.neurons[0], k, extra + k * net.neurons[0], nullptr, packed + at.extra);
    for (int n = 0; n < net.layers; ++n) {
      const int64_t cols = net.neurons[n], rows = n ? net.neurons[n - 1] : 0;
      for (int64_t k = 0; k < rows; ++k)
        both(rows, cols, k, given[n].weight + k * cols, nullptr, at.weight[n], at.weight_back[n]);
      if (part) continue;
      for (int64_t c = 0; c < cols; ++c) packed[at.bias[n] + c] = given[n].bias[c];
      for (int64_t c = 0; c < cols; ++c) packed[at.timestep[n] + c] = given[n].timestep[c];
    }
    if (part) return;
    for (int64_t c = 0; c < net.neurons[net.layers - 1]; ++c)
      packed[at.out_weight + c] = given[net.layers].weight[c];
    packed[at.out_bias] = given[net.layers].bias[0];
  }
};

// The widest hidden layer, in whole vectors.
template <class T>
inline int64_t widest_layer(const FittingShape& net) {
  int64_t widest = 0;
  for (int n = 0; n < net.layers; ++n)
    if (padded<T>(net.neurons[n]) > widest) widest = padded<T>(net.neurons[n]);
  return widest;
}

// A block's rows: T and its gradient as [atom][4][t_width], the layers' values and slopes as [atom][stride].
template <class T>
struct NetBlock {
  int64_t rows, t_width, stride;  // t_width, stride: in elements, whole vectors
  T *t, *grad_t;
  T* value[kMaxLayers];  // after activation, timestep and residual
  T* slope[kMaxLayers];  // timestep * f'
  T* work;               // [atom][max(stride, group width)]
  int64_t work_stride;

  T* t_row(T* base, int64_t atom) const { return base + atom * 4 * t_width; }
};

// Row l of D for one atom, D[k] = sum_a c[a] t[a][k] for l <= k < width, with c[a] = T[a][l], added to what
// is there if `accumulate`. Writes whole vectors: what stands beyond the end is garbage.
template <class T>
inline void form_row(const FittingShape& net, const T* t, int64_t t_width, const T* c, int l, T* out,
                     bool accumulate = false) {
  using V = Vector<T>;
  for (int k = l; k < net.width; k += kLanes<T>) {
    const auto at = [&](int a) { return *reinterpret_cast<const V*>(t + a * t_width + k); };
    V sum = c[0] * at(0) + c[1] * at(1) + c[2] * at(2) + c[3] * at(3);
    V* to = reinterpret_cast<V*>(out + k - l);
    *to = accumulate ? *to + sum : sum;
  }
}

// T[a][l] for the four a.
template <class T>
struct Column {
  T c[4];
  Column(const T* t, int64_t t_width, int l)
      : c{t[l], t[t_width + l], t[2 * t_width + l], t[3 * t_width + l]} {}
};

// Rows [first, first + kGroup) of D = T^T T for one atom, each overwriting what is beyond the end of the one
// before.
template <class T>
inline void form_group(const FittingShape& net, const T* t, int64_t t_width, int first, T* out) {
  for (int l = first; l < first + kGroup && l < net.axis; ++l) {
    form_row(net, t, t_width, Column<T>(t, t_width, l).c, l, out);
    out += net.width - l;
  }
}

// The same of its derivative along `dt`.
template <class T>
inline void form_group_tangent(const FittingShape& net, const T* t, const T* dt, int64_t t_width, int first,
                               T* out) {
  for (int l = first; l < first + kGroup && l < net.axis; ++l) {
    form_row(net, t, t_width, Column<T>(dt, t_width, l).c, l, out);
    form_row(net, dt, t_width, Column<T>(t, t_width, l).c, l, out, true);
    out += net.width - l;
  }
}

// The lanes of four vectors summed: (sum v0, sum v1, sum v2, sum v3).
template <class T>
inline void four_sums(const Vector<T>* v, T* out) {
  if constexpr (kLanes<T> >= 4) {
    typedef T V4 __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
    V4 part[4];
    for (int a = 0; a < 4; ++a) {
      part[a] = *reinterpret_cast<const V4*>(v + a);
      for (int q = 1; q < kLanes<T> / 4; ++q) part[a] += reinterpret_cast<const V4*>(v + a)[q];
    }
    const V4 a = __builtin_shufflevector(part[0], part[1], 0, 4, 2, 6) +
                 __builtin_shufflevector(part[0], part[1], 1, 5, 3, 7);
    const V4 b = __builtin_shufflevector(part[2], part[3], 0, 4, 2, 6) +
                 __builtin_shufflevector(part[2], part[3], 1, 5, 3, 7);
    *reinterpret_cast<V4*>(out) =
        __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  } else {
    for (int a = 0; a < 4; ++a) out[a] = v[a][0] + v[a][kLanes<T> - 1];
  }
}

// The first `count` lanes of the vector at p, zero in the others.
template <class T>
MDOPS_HD Vector<T> first_lanes(const T* p, int count) {
  using Lanes = decltype(Vector<T>{} < Vector<T>{});
  Lanes lane;
  for (int k = 0; k < kLanes<T>; ++k) lane[k] = k;
  const Lanes keep = lane < count;
  return reinterpret_cast<Vector<T>>(reinterpret_cast<Lanes>(*reinterpret_cast<const Vector<T>*>(p)) & keep);
}

// Adds to the gradient of T what the same rows of D give it:  dT[a][k] += dD[l][k] T[a][l],
// dT[a][l] += dD[l] . T[a].
template <class T>
inline void unform_group(const FittingShape& net, const T* t, int64_t t_width, int first, const T* grad,
                         T* grad_t) {
  using V = Vector<T>;
  for (int l = first; l < first + kGroup && l < net.axis; ++l) {
    const Column<T> column(t, t_width, l);
    V dot[4] = {};
    int k = l;
    const auto step = [&](V d) {
      for (int a = 0; a < 4; ++a) {
        V* out = reinterpret_cast<V*>(grad_t + a * t_width + k);
        *out += column.c[a] * d;
        dot[a] += d * *reinterpret_cast<const V*>(t + a * t_width + k);
      }
    };
    for (; k + kLanes<T> <= net.width; k += kLanes<T>) step(*reinterpret_cast<const V*>(grad + k - l));
    if (k < net.width) step(first_lanes<T>(grad + k - l, net.width - k));
    T sums[4];
    four_sums<T>(dot, sums);
    for (int a = 0; a < 4; ++a) grad_t[a * t_width + l] += sums[a];
    grad += net.width - l;
  }
}

// value = f(value + bias) * timestep + residual, slope = f' * timestep, for one layer of the block.
template <class T>
inline void activate_layer(const FittingShape& net, const PackedNet<T>& at, const T* packed,
                           const NetBlock<T>& block, int n) {
  const int64_t cols = net.neurons[n], before = n ? net.neurons[n - 1] : 0;
  const T *bias = packed + at.bias[n], *timestep = packed + at.timestep[n];
  const T threshold = static_cast<T>(net.threshold);
  with_activation(net.activation, [&]<Activation kind>() {
    for (int64_t r = 0; r < block.rows; ++r) {
      T *value = block.value[n] + r * block.stride, *slope = block.slope[n] + r * block.stride;
#pragma GCC ivdep
      for (int64_t c = 0; c < cols; ++c) {
        T y, dy;
        activate<kind>(value[c] + bias[c], threshold, &y, &dy);
        value[c] = y * timestep[c];
        slope[c] = dy * timestep[c];
      }
    }
  });
  if (!net.residual[n] || n == 0) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    T* value = block.value[n] + r * block.stride;
    const T* input = block.value[n - 1] + r * block.stride;
    for (int64_t half = 0; half < cols; half += before)
      for (int64_t c = 0; c < before; ++c) value[half + c] += input[c];
  }
}

// The product of D with the first layer's weights, for `rows` rows of D that `form(row, first, out)` makes a
// group at a time in `work`.
template <class T, class Form>
inline void first_product(const FittingShape& net, const PackedNet<T>& at, const T* packed, int64_t rows,
                          const Form& form, T* work, int64_t work_stride, T* out, int64_t stride) {
  for (int first = 0, g = 0; first < net.axis; first += kGroup, ++g) {
    for (int64_t r = 0; r < rows; ++r) form(r, first, work + r * work_stride);
    gemm<T>(rows, group_features(net, first), net.neurons[0], work, work_stride, packed + at.group[g], out,
            stride, g > 0);
  }
}

// Room for a row of a group: whole vectors are written from any feature on.
template <class T>
inline int64_t group_stride(const FittingShape& net) {
  return padded<T>(group_features(net, 0)) + kLanes<T>;
}

// Fills the block's values and slopes from T and `extra` (row by row, net.extra apart).
template <class T>
inline void net_forward(const FittingShape& net, const PackedNet<T>& at, const T* packed, NetBlock<T>& block,
                        const T* extra) {
  const auto form = [&](int64_t r, int first, T* out) {
    form_group<T>(net, block.t_row(block.t, r), block.t_width, first, out);
  };
  first_product(net, at, packed, block.rows, form, block.work, block.work_stride, block.value[0],
                block.stride);
  if (net.extra)
    gemm<T>(block.rows, net.extra, net.neurons[0], extra, net.extra, packed + at.extra, block.value[0],
            block.stride, true);
  activate_layer(net, at, packed, block, 0);
  for (int n = 1; n < net.layers; ++n) {
    gemm<T>(block.rows, net.neurons[n - 1], net.neurons[n], block.value[n - 1], block.stride,
            packed + at.weight[n], block.value[n], block.stride, false);
    activate_layer(net, at, packed, block, n);
  }
}

// The net's output for one row.
template <class T>
inline double net_output(const FittingShape& net, const PackedNet<T>& at, const T* packed,
                         const NetBlock<T>& block, int64_t row) {
  const T* value = block.value[net.layers - 1] + row * block.stride;
  double sum = packed[at.out_bias];
  for (int64_t c = 0; c < net.neurons[net.layers - 1]; ++c)
    sum += static_cast<double>(value[c]) * packed[at.out_weight + c];
  return sum;
}

// grad_t = scale * d(output)/dT. Uses up the block's values: value[n] becomes the gradient of layer n.
template <class T>
inline void net_backward(const FittingShape& net, const PackedNet<T>& at, const T* packed, NetBlock<T>& block,
                         T scale) {
  const int last = net.layers - 1;
  for (int64_t r = 0; r < block.rows; ++r)
    for (int64_t c = 0; c < net.neurons[last]; ++c)
      block.value[last][r * block.stride + c] = scale * packed[at.out_weight + c];
  for (int n = last; n >= 0; --n) {
    const int64_t cols = net.neurons[n], before = n ? net.neurons[n - 1] : 0;
    for (int64_t r = 0; r < block.rows; ++r) {
      const T *grad = block.value[n] + r * block.stride, *slope = block.slope[n] + r * block.stride;
      T* out = block.slope[n] + r * block.stride;  // the gradient before the activation
      if (n && net.residual[n])
        for (int64_t c = 0; c < before; ++c) {
          T sum = 0;
          for (int64_t half = 0; half < cols; half += before) sum += grad[half + c];
          block.value[n - 1][r * block.stride + c] = sum;
        }
      for (int64_t c = 0; c < cols; ++c) out[c] = grad[c] * slope[c];
    }
    if (n)
      gemm<T>(block.rows, cols, before, block.slope[n], block.stride, packed + at.weight_back[n],
              block.value[n - 1], block.stride, net.residual[n]);
  }
  for (int64_t k = 0; k < block.rows * 4 * block.t_width; ++k) block.grad_t[k] = 0;
  for (int first = 0, g = 0; first < net.axis; first += kGroup, ++g) {
    gemm<T>(block.rows, net.neurons[0], group_features(net, first), block.slope[0], block.stride,
            packed + at.group_back[g], block.work, block.work_stride, false);
    for (int64_t r = 0; r < block.rows; ++r)
      unform_group<T>(net, block.t_row(block.t, r), block.t_width, first, block.work + r * block.work_stride,
                      block.t_row(block.grad_t, r));
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops
