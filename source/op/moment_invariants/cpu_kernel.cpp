#include <vector>

#include "common/vectors.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops::MDOPS_ISA {

namespace {

// As many atoms as a vector has lanes, interleaved by number.
template <class T>
class Atoms {
  static constexpr int kLanes = kVectorBytes / sizeof(T);
  using V = Vector<T>;

 public:
  explicit Atoms(const InvariantArgs<T>& args) : p_(args), numbers_(args.all_backward() * kLanes) {}

  static constexpr int lanes() { return kLanes; }

  // r and v of atoms first to first + count.
  void begin(int64_t first, int count) {
    first_ = first, count_ = count;
    const int64_t raw = p_.raw(), sums = raw - 2, columns = p_.channels + 2;
    for (int k = 0; k < kLanes; ++k) {
      const int64_t atom = first + (k < count ? k : 0);
      const T *s = p_.scalars + atom * columns, *x = p_.others + atom * p_.components;
      for (int w = 0; w < 2; ++w) lane(sums + w, k) = divisor(s[p_.channels + w]);
      for (int64_t c = 0; c < p_.channels; ++c) lane(c, k) = s[c] / lane(sums, k);
      for (int64_t c = 0; c < p_.components; ++c) lane(p_.channels + c, k) = x[c] / lane(sums + 1, k);
    }
    for (int64_t k = 0; raw + k < p_.known(); ++k) set(raw + k, sum(p_.forth, k));
  }

  void write_features(T* out) {
    const int64_t width = p_.width(), features = p_.features(), before = p_.forth.rows - features;
    for (int64_t k = 0; k < features; ++k) set(p_.known() + k, sum(p_.forth, before + k));
    for (int n = 0; n < count_; ++n) {
      T* const to = out + (first_ + n) * width;
      for (int64_t k = 0; k < features; ++k) to[k] = lane(p_.known() + k, n);
      const int32_t type = p_.types[first_ + n];
      for (int64_t k = 0; k < p_.extra; ++k)
        to[features + k] = type < 0 ? T(0) : p_.behind[type * p_.extra + k];
    }
  }

  void write_gradients(const T* grad, T* by_scalars, T* by_others) {
    const int64_t features = p_.features(), sums = p_.raw() - 2, columns = p_.channels + 2;
    for (int n = 0; n < kLanes; ++n) {
      const T* const from = grad + (first_ + (n < count_ ? n : 0)) * p_.width();
      for (int64_t k = 0; k < features; ++k) lane(p_.known() + k, n) = from[k];
    }
    const int64_t made = p_.forth.rows - features;
    for (int64_t k = 0; k < made; ++k) set(p_.all() + k, sum(p_.back, k));
    V along[2] = {};
    for (int64_t r = 0; r < sums; ++r) {
      const int w = p_.which(r);
      const V g = sum(p_.back, made + r), found = g / number(sums + w);
      along[w] += g * number(r);
      for (int n = 0; n < count_; ++n)
        (r < p_.channels ? by_scalars + (first_ + n) * columns + r
                         : by_others + (first_ + n) * p_.components + r - p_.channels)[0] = found[n];
    }
    for (int w = 0; w < 2; ++w) {
      const V d = number(sums + w), g = sum(p_.back, made + sums + w);
      const V found = (g - along[w] / d) / (d * T(2));
      for (int n = 0; n < count_; ++n) by_scalars[(first_ + n) * columns + p_.channels + w] = found[n];
    }
  }

 private:
  T& lane(int64_t number, int k) { return numbers_[number * kLanes + k]; }
  V number(int64_t k) const { return load<V>(numbers_.data() + k * kLanes); }
  void set(int64_t k, V value) { store(numbers_.data() + k * kLanes, value); }
  V sum(const TermArgs<T>& terms, int64_t row) const {
    return term_sum<V>(terms, row, [&](int32_t k) { return number(k); });
  }

  const InvariantArgs<T>& p_;
  std::vector<T> numbers_;
  int64_t first_ = 0;
  int count_ = 0;
};

template <class T, class Work>
void each_group(const InvariantArgs<T>& args, int64_t begin, int64_t end, const Work& work) {
  Atoms<T> atoms(args);
  for (int64_t first = begin; first < end; first += Atoms<T>::lanes()) {
    const int64_t left = end - first;
    atoms.begin(first, left < Atoms<T>::lanes() ? static_cast<int>(left) : Atoms<T>::lanes());
    work(atoms);
  }
}

}  // namespace

template <class T>
void invariants_forward(const InvariantArgs<T>& args, int64_t begin, int64_t end, T* out) {
  each_group(args, begin, end, [&](Atoms<T>& atoms) { atoms.write_features(out); });
}

template <class T>
void invariants_backward(const InvariantArgs<T>& args, int64_t begin, int64_t end, const T* grad,
                         T* by_scalars, T* by_others) {
  each_group(args, begin, end, [&](Atoms<T>& atoms) { atoms.write_gradients(grad, by_scalars, by_others); });
}

MDOPS_INSTANTIATE(invariants_forward, invariants_backward)

}  // namespace mdops::MDOPS_ISA
