// Rows of an atom times gates; the first row also gets a product of the atom's scalars, if there are any:
//
//   y_rc = x_rc sigmoid(g_c) + silu(a_c) b_c in row 0          silu(a) = a sigmoid(a)
//
// Backward, for the gradient h by y:
//
//   by x_rc = h_rc sigmoid(g_c)       by g_c = sigmoid(g_c) (1 - sigmoid(g_c)) sum_r h_rc x_rc
//   by a_c = h_0c b_c sigmoid(a_c) (1 + a_c (1 - sigmoid(a_c)))       by b_c = h_0c silu(a_c)
//
// Backward of these, for the gradients U, u_g, u_a, u_b by them, with f', f'' for the derivatives of sigmoid
// at g and s for silu at a:
//
//   by h_rc = U_rc f + u_g f' x_rc + u_a b s' + u_b s in row 0        by x_rc = u_g f' h_rc
//   by g_c = f' sum_r U_rc h_rc + u_g f'' sum_r h_rc x_rc
//   by a_c = h_0c (u_a b s'' + u_b s')                                by b_c = h_0c u_a s'
#pragma once

#include <cmath>
#include <type_traits>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct ScalarGateArgs {
  int64_t atoms, rows, channels;  // N, R, C
  const T *x, *gate, *scalars,
      *grad;                    // (N, R, C), g (N, C), a and b side by side (N, 2 C) or null, h or null
  T *y, *by_gate, *by_scalars;  // (N, R, C), y or the gradient by x; the others of backward passes
  // U, u_g, u_a and u_b side by side, or null; and the gradient by h.
  const T *along_x, *along_gate, *along_scalars;
  T* by_grad;
};

// A `Lanes` loads and stores a V, numbers of adjacent channels, and has a sigmoid for it. Here V is one
// number.
template <class T>
struct OneChannel {
  MDOPS_HD T load(const T* from) const { return *from; }
  MDOPS_HD void store(T* to, T value) const { *to = value; }
  MDOPS_HD T sigmoid(T x) const { return T(1) / (T(1) + std::exp(-x)); }
};

// The scalars' term, and their gradients.
template <class T, class V, class Lanes>
struct AddedScalars {
  const Lanes& lanes;
  V a, b, s;

  MDOPS_HD AddedScalars(const ScalarGateArgs<T>& args, int64_t at, const Lanes& of)
      : lanes(of),
        a(lanes.load(args.scalars + at)),
        b(lanes.load(args.scalars + at + args.channels)),
        s(lanes.sigmoid(a)) {}

  MDOPS_HD V added() const { return a * s * b; }
  MDOPS_HD void backward(const V& h, T* by_a, T* by_b) const {
    lanes.store(by_a, h * b * s * (T(1) + a * (T(1) - s)));
    lanes.store(by_b, h * a * s);
  }
  // The term of the gradient by h, for gradients by those of a and b.
  MDOPS_HD V twice(const V& h, const V& along_a, const V& along_b, T* by_a, T* by_b) const {
    const V fall = s * (T(1) - s);
    const V first = s + a * fall, second = fall * (T(2) + a * (T(1) - T(2) * s));
    lanes.store(by_a, h * (along_a * b * second + along_b * first));
    lanes.store(by_b, h * along_a * first);
    return along_a * b * first + along_b * a * s;
  }
};

// Some rows of some channels from `from` on, with zeros after the last row.
template <int kRows, class V>
struct GatedRows {
  V of[kRows];

  template <class T, class Lanes>
  MDOPS_HD GatedRows(const T* from, int64_t rows, int64_t channels, const Lanes& lanes) {
    for (int i = 0; i < kRows; ++i) of[i] = i < rows ? lanes.load(from + i * channels) : V{};
  }
};

// The channels of an atom from c on in `lanes`, some rows at a time.
template <int kRows, class T, class Lanes>
MDOPS_HD void gate_channels(const ScalarGateArgs<T>& args, int64_t n, int64_t c, const Lanes& lanes) {
  const int64_t channels = args.channels, of_atom = n * channels + c, of_scalars = 2 * n * channels + c;
  const int64_t at = n * args.rows * channels + c;
  const auto factor = lanes.sigmoid(lanes.load(args.gate + of_atom));
  using V = std::remove_const_t<decltype(factor)>;
  using Added = AddedScalars<T, V, Lanes>;
  if (!args.grad) {
    const V added = args.scalars ? Added(args, of_scalars, lanes).added() : V{};
    for (int64_t r = 0; r < args.rows; r += kRows) {
      const int64_t from = at + r * channels;
      const GatedRows<kRows, V> x(args.x + from, args.rows - r, channels, lanes);
      for (int i = 0; i < kRows && r + i < args.rows; ++i) {
        const V own = x.of[i] * factor;
        lanes.store(args.y + from + i * channels, r + i ? own : own + added);
      }
    }
    return;
  }
  T* const by_a = args.by_scalars + of_scalars;
  if (args.scalars)
    Added(args, of_scalars, lanes).backward(lanes.load(args.grad + at), by_a, by_a + channels);
  V sum{};
  for (int64_t r = 0; r < args.rows; r += kRows) {
    const int64_t from = at + r * channels;
    const GatedRows<kRows, V> x(args.x + from, args.rows - r, channels, lanes);
    const GatedRows<kRows, V> h(args.grad + from, args.rows - r, channels, lanes);
    for (int i = 0; i < kRows && r + i < args.rows; ++i) {
      sum += h.of[i] * x.of[i];
      lanes.store(args.y + from + i * channels, h.of[i] * factor);
    }
  }
  lanes.store(args.by_gate + of_atom, factor * (T(1) - factor) * sum);
}

// The same for the second backward pass.
template <class T, class Lanes>
MDOPS_HD void gate_channels_twice(const ScalarGateArgs<T>& args, int64_t n, int64_t c, const Lanes& lanes) {
  const int64_t channels = args.channels, of_atom = n * channels + c, of_scalars = 2 * n * channels + c;
  const int64_t at = n * args.rows * channels + c;
  const auto factor = lanes.sigmoid(lanes.load(args.gate + of_atom));
  using V = std::remove_const_t<decltype(factor)>;
  const V slope = lanes.load(args.along_gate + of_atom) * factor * (T(1) - factor);
  V added{}, grads{}, rows{};
  if (args.scalars) {
    T *const by_a = args.by_scalars + of_scalars, *const by_b = by_a + channels;
    const T* const along = args.along_scalars + of_scalars;
    const AddedScalars<T, V, Lanes> scalars(args, of_scalars, lanes);
    added = scalars.twice(lanes.load(args.grad + at), lanes.load(along), lanes.load(along + channels), by_a,
                          by_b);
  }
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t own = at + r * channels;
    const V u = lanes.load(args.along_x + own), h = lanes.load(args.grad + own), x = lanes.load(args.x + own);
    const V grad = u * factor + slope * x;
    lanes.store(args.by_grad + own, r ? grad : grad + added);
    lanes.store(args.y + own, slope * h);
    grads += u * h, rows += h * x;
  }
  lanes.store(args.by_gate + of_atom,
              factor * (T(1) - factor) * grads + slope * (T(1) - T(2) * factor) * rows);
}

// Either pass.
template <int kRows, class T, class Lanes>
MDOPS_HD void pass_channels(const ScalarGateArgs<T>& args, int64_t n, int64_t c, const Lanes& lanes) {
  if (args.along_x)
    gate_channels_twice(args, n, c, lanes);
  else
    gate_channels<kRows>(args, n, c, lanes);
}

MDOPS_DECLARE_KERNELS(void gate_atoms(const ScalarGateArgs<T>& args, int64_t begin, int64_t end))

}  // namespace mdops
