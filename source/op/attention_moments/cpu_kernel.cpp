#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_moments/attention_moments.h"

namespace mdops::MDOPS_ISA {

namespace {

// to (count,) += x A, A (depth, count) with rows `stride` numbers apart.
template <class T>
void add_row_product(const T* x, int64_t depth, const T* a, int64_t stride, int64_t count, T* to) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t c = 0; c < count; ++c) to[c] += x[k] * a[k * stride + c];
}

// to (count,) += A x, A (count, depth) with rows `stride` numbers apart.
template <class T>
void add_column_product(const T* x, int64_t depth, const T* a, int64_t stride, int64_t count, T* to) {
  for (int64_t c = 0; c < count; ++c) {
    T sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += a[c * stride + k] * x[k];
    to[c] += sum;
  }
}

template <class T>
T dot(const T* x, const T* y, int64_t count) {
  T sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += x[c] * y[c];
  return sum;
}

// Rows of an array, `stride` numbers apart.
template <class T>
struct Rows {
  T* first;
  int64_t stride;

  T* operator[](int64_t j) const { return first + j * stride; }
};

// One atom's passes.
template <class T>
struct AtomPasses {
  const AttentionMomentsArgs<T>& args;
  const JoinedSaved<T> saved;
  const int64_t atom, begin, n;

  AtomPasses(const AttentionMomentsArgs<T>& args_, int64_t atom_)
      : args(args_),
        saved(args_, args_.saved),
        atom(atom_),
        begin(args_.attention.offsets[atom_]),
        n(args_.attention.length(atom_)) {}

  Rows<T> rows_of(T* array, int64_t columns) const { return {array + begin * columns, columns}; }
  // q, k or v of a layer in attention's layout.
  Rows<const T> part(int l, int k) const {
    const int64_t width = args.layer[l].width;
    if (l) return {saved.layer[l].part[k] + begin * width, width};
    const int64_t columns = args.columns();
    return {args.rows + begin * columns + args.layer[0].columns + k * width, columns};
  }
  // x_l.
  Rows<const T> inner(int l) const {
    const int64_t columns = l ? args.layer[l].columns : args.columns();
    return {(l ? saved.layer[l - 1].x : args.rows) + begin * columns, columns};
  }

  // The numbers of the pair (j, l) besides q, k and v: a, c and the logit of attention.h.
  T a(int64_t j, int64_t l) const {
    const T* w = static_cast<const T*>(args.attention.in.switches);
    return w ? w[begin + j] * w[begin + l] : T(1);
  }
  const T* gate(int64_t j) const {
    const T* all = static_cast<const T*>(args.attention.in.gate);
    return all ? all + (begin + j) * args.attention.gates : nullptr;
  }
  T c(int64_t j, int64_t l) const { return gate(j) ? dot(gate(j), gate(l), args.attention.gates) : T(1); }
  T raised(int layer, int64_t j, int64_t l) const {
    const int64_t width = args.layer[layer].width;
    return args.layer[layer].scale * dot(part(layer, 0)[j], part(layer, 1)[l], width) + args.attention.shift;
  }
  T logit(T raised, T a) const {
    return args.attention.in.switches ? raised * a : raised - args.attention.shift;
  }

  void attend(int l) const {
    const int64_t width = args.layer[l].width;
    const Rows<T> o = rows_of(saved.layer[l].o, width);
    const T absent = args.attention.absent ? args.attention.absent[atom] : T(0);
    for (int64_t j = 0; j < n; ++j) {
      T top = absent > T(0) ? T(0) : -std::numeric_limits<T>::infinity(), sum = 0;
      for (int64_t k = 0; k < n; ++k) {
        const T z = logit(raised(l, j, k), a(j, k));
        top = z > top || z != z ? z : top;
      }
      sum = absent * std::exp(-top);
      std::fill(o[j], o[j] + width, T(0));
      for (int64_t k = 0; k < n; ++k) {
        const T p = std::exp(logit(raised(l, j, k), a(j, k)) - top), pm = p * a(j, k) * c(j, k);
        sum += p;
        for (int64_t i = 0; i < width; ++i) o[j][i] += pm * part(l, 2)[k][i];
      }
      for (int64_t i = 0; i < width; ++i) o[j][i] /= sum;
      saved.layer[l].logsumexp[begin + j] = top + std::log(sum);
    }
  }

  // x after a layer, of row j; returns its r.
  T join_row(int l, int64_t j, T* x) const {
    const JoinedLayer<T>& layer = args.layer[l];
    const int64_t columns = args.behind(l);
    std::copy(layer.bias, layer.bias + columns, x);
    add_row_product(inner(l)[j], layer.columns, layer.inner, columns, columns, x);
    add_row_product(saved.layer[l].o + (begin + j) * layer.width, layer.width, layer.out, columns, columns,
                    x);
    const T r = T(1) / std::sqrt(dot(x, x, columns) / static_cast<T>(args.features) + args.eps);
    for (int64_t i = 0; i < columns; ++i) x[i] *= r;
    return r;
  }
  void join(int l, const Rows<T>& x) const {
    for (int64_t j = 0; j < n; ++j) saved.layer[l].deviation[begin + j] = join_row(l, j, x[j]);
  }
  // The place of x after a layer; after the last one it is in scratch memory.
  Rows<T> behind(int l, const Rows<T>& last) const {
    return l + 1 < args.layers ? rows_of(saved.layer[l].x, args.behind(l)) : last;
  }

  // q, k and v of a layer other than the first.
  void project(int l) const {
    const JoinedLayer<T>& layer = args.layer[l];
    const int64_t width = layer.width;
    for (int k = 0; k < 3; ++k) {
      const Rows<T> to = rows_of(saved.layer[l].part[k], width);
      for (int64_t j = 0; j < n; ++j) {
        std::copy(layer.project_bias + k * width, layer.project_bias + (k + 1) * width, to[j]);
        add_row_product(inner(l)[j], layer.columns, layer.project + k * width, 3 * width, width, to[j]);
        const T shrink = args.normalize ? NormalizedRow<T>(dot(to[j], to[j], width)).inverse : T(1);
        saved.layer[l].shrink[k][begin + j] = shrink;
        for (int64_t i = 0; i < width; ++i) {
          to[j][i] *= shrink;
          if (k == 0) to[j][i] *= layer.factors[i];
        }
      }
    }
  }

  void forward(T* out, T* scratch) const {
    const Rows<T> x{scratch, args.features};  // after the last layer
    for (int l = 0; l < args.layers; ++l) {
      if (l) project(l);
      attend(l), join(l, behind(l, x));
    }
    std::fill(out, out + 4 * args.features, T(0));
    for (int64_t j = 0; j < n; ++j)
      for (int a = 0; a < 4; ++a) {
        const T r = args.environment[4 * (begin + j) + a];
        for (int64_t i = 0; i < args.features; ++i)
          out[a * args.features + i] += r * (args.norm[i] * x[j][i] + args.norm_bias[i]);
      }
  }

  // By o, q, k and v of a layer; also adds the gradients by gate and switch.
  struct Gradients {
    Rows<T> o, part[3];
  };

  void attend_backward(int l, const Gradients& d, const AttentionMomentsResults<T>& out) const {
    const int64_t width = args.layer[l].width;
    const T scale = args.layer[l].scale, *w = static_cast<const T*>(args.attention.in.switches);
    for (int k = 0; k < 3; ++k)
      for (int64_t j = 0; j < n; ++j) std::fill(d.part[k][j], d.part[k][j] + width, T(0));
    for (int64_t j = 0; j < n; ++j) {
      const T delta = dot(d.o[j], saved.layer[l].o + (begin + j) * width, width);
      for (int64_t k = 0; k < n; ++k) {
        const T a = this->a(j, k), c = this->c(j, k), raised = this->raised(l, j, k);
        const T t = dot(d.o[j], part(l, 2)[k], width);
        const T p = std::exp(logit(raised, a) - saved.layer[l].logsumexp[begin + j]);
        const T y = p * (c * a * t - delta), x = scale * y * a, pm = p * c * a;
        for (int64_t i = 0; i < width; ++i) {
          d.part[0][j][i] += x * part(l, 1)[k][i];
          d.part[1][k][i] += x * part(l, 0)[j][i];
          d.part[2][k][i] += pm * d.o[j][i];
        }
        const T b = y * raised + p * t * c, e = p * t * a;
        if (out.switches)
          out.switches[begin + j] += b * w[begin + k], out.switches[begin + k] += b * w[begin + j];
        for (int64_t i = 0; out.gate && i < args.attention.gates; ++i) {
          out.gate[(begin + j) * args.attention.gates + i] += e * gate(k)[i];
          out.gate[(begin + k) * args.attention.gates + i] += e * gate(j)[i];
        }
      }
    }
  }

  // Adds the part of q, k and v to the gradient by x after a layer, in place, for rows (n, columns).
  void project_backward(int l, const Gradients& d, const Rows<T>& dx) const {
    const JoinedLayer<T>& layer = args.layer[l];
    const int64_t width = layer.width;
    for (int k = 0; k < 3; ++k)
      for (int64_t j = 0; j < n; ++j) {
        T* const own = d.part[k][j];
        const T *x = saved.layer[l].part[k] + (begin + j) * width, *factors = k ? nullptr : layer.factors;
        // The vector of length 1: x without the factors, and the gradient by it.
        const auto unit = [&](int64_t i) { return factors ? x[i] / factors[i] : x[i]; };
        for (int64_t i = 0; factors && i < width; ++i) own[i] *= factors[i];
        const T shrink = saved.layer[l].shrink[k][begin + j];
        T along = 0;
        if (args.normalize && shrink < T(1 / kShortest))
          for (int64_t i = 0; i < width; ++i) along += own[i] * unit(i);
        for (int64_t i = 0; i < width; ++i) own[i] = (own[i] - along * unit(i)) * shrink;
        add_column_product(own, width, layer.project + k * width, 3 * width, layer.columns, dx[j]);
      }
  }

  // Turns dx after a layer, which becomes dy, into the gradients by x before it and by o.
  void join_backward(int l, const Rows<T>& x, const Rows<T>& dx, const Rows<T>& before,
                     const Rows<T>& o) const {
    const JoinedLayer<T>& layer = args.layer[l];
    const int64_t columns = args.behind(l);
    for (int64_t j = 0; j < n; ++j) {
      const T along = dot(dx[j], x[j], columns) / static_cast<T>(args.features);
      const T r = saved.layer[l].deviation[begin + j];
      for (int64_t i = 0; i < columns; ++i) dx[j][i] = r * (dx[j][i] - along * x[j][i]);
      std::fill(before[j], before[j] + layer.columns, T(0)), std::fill(o[j], o[j] + layer.width, T(0));
      add_column_product(dx[j], columns, layer.inner, columns, layer.columns, before[j]);
      add_column_product(dx[j], columns, layer.out, columns, layer.width, o[j]);
    }
  }

  void sums_backward(const T* grad, const Rows<T>& x, const Rows<T>& dx, T* environment) const {
    for (int64_t j = 0; j < n; ++j) {
      std::fill(dx[j], dx[j] + args.features, T(0));
      for (int a = 0; a < 4; ++a) {
        const T r = args.environment[4 * (begin + j) + a], *g = grad + a * args.features;
        T sum = 0;
        for (int64_t i = 0; i < args.features; ++i) {
          sum += g[i] * (args.norm[i] * x[j][i] + args.norm_bias[i]);
          dx[j][i] += r * g[i] * args.norm[i];
        }
        environment[4 * (begin + j) + a] = sum;
      }
    }
  }

  // Scratch memory per row: pieces as wide as the widest array.
  static constexpr int kPieces = 7;
  static int64_t scratch_columns(const AttentionMomentsArgs<T>& args) {
    int64_t most = args.features;
    for (int l = 0; l < args.layers; ++l) most = std::max({most, args.layer[l].columns, args.layer[l].width});
    return kPieces * most;
  }

  void backward(const AttentionMomentsResults<T>& out, T* scratch) const {
    const int64_t each = scratch_columns(args) / kPieces;
    const auto piece = [&](int k) { return Rows<T>{scratch + k * n * each, each}; };
    Rows<T> dx = piece(0), before = piece(1);
    const Rows<T> last = piece(6);
    for (int64_t j = 0; j < n; ++j) join_row(args.layers - 1, j, last[j]);
    if (out.switches) std::fill(out.switches + begin, out.switches + begin + n, T(0));
    if (out.gate) std::fill_n(out.gate + begin * args.attention.gates, n * args.attention.gates, T(0));
    sums_backward(args.grad + 4 * atom * args.features, last, dx, out.environment);
    for (int l = args.layers - 1; l >= 0; --l) {
      Gradients d{piece(2), {piece(3), piece(4), piece(5)}};
      if (l == 0) {
        before = rows_of(out.rows, args.columns());
        for (int k = 0; k < 3; ++k)
          d.part[k] = {before.first + args.layer[0].columns + k * args.layer[0].width, args.columns()};
      }
      join_backward(l, behind(l, last), dx, before, d.o);
      attend_backward(l, d, out);
      if (l) project_backward(l, d, before);
      std::swap(dx, before);
    }
  }
};

}  // namespace

template <class T>
int64_t attention_moments_scratch(const AttentionMomentsArgs<T>& args) {
  return AtomPasses<T>::scratch_columns(args);
}

template <class T>
void attention_moments_forward(const AttentionMomentsArgs<T>& args, int64_t atom, T* out, T* scratch) {
  AtomPasses<T>(args, atom).forward(out, scratch);
}

template <class T>
void attention_moments_backward(const AttentionMomentsArgs<T>& args, int64_t atom,
                                const AttentionMomentsResults<T>& out, T* scratch) {
  AtomPasses<T>(args, atom).backward(out, scratch);
}

MDOPS_INSTANTIATE(attention_moments_scratch, attention_moments_forward, attention_moments_backward)

}  // namespace mdops::MDOPS_ISA
