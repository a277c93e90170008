#include "degree_norm/ops.h"

namespace mdops {

namespace {

constexpr int64_t kAtoms = 16;  // a piece of work, at least

struct Alone {
  template <class F>
  void each(int64_t count, const F& f) const {
    for (int64_t k = 0; k < count; ++k) f(k);
  }
  template <class T>
  T sum(T value) const {
    return value;
  }
};

}  // namespace

template <class T>
static void run_norm(const Op&, const NormArgs<T>& args) {
  parallel(args.atoms, kAtoms, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) norm_atom(args, n, Alone());
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::DegreeNormOps<mdops::OnCpu>::implement(m);
}
