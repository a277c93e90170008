#include "env_mat/cpu_loops.h"

#include "common/instantiate.h"
#include "common/parallel.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 32;  // minimum atoms per piece

// Calls work(slot, norm, present) for every slot of every row; `present` says whether it has a neighbour that
// counts.
template <class T, class Work>
void for_slots(const EnvMatArgs<T>& a, const Work& work) {
  const T cutoff2 = a.cutoff.cutoff * a.cutoff.cutoff;
  parallel_each(a.atoms, kGrain, [&](int64_t i) {
    const int32_t type = a.types[i];
    const Normalisation<T> norm = a.normalisation(type);
    int64_t slot = i * a.width;
    const auto row = [&](int64_t count, bool present) {
      for (int64_t last = slot + count; slot < last; ++slot)
        work(slot, norm, present && within_cutoff(squared_length(a.displacements + 3 * slot), cutoff2));
    };
    for (int t = 0; type >= 0 && t < a.ntypes; ++t)
      row(a.counts[i * a.ntypes + t], !a.pair_mask[static_cast<int64_t>(type) * a.ntypes + t]);
    row((i + 1) * a.width - slot, false);
  });
}

}  // namespace

template <class T>
void env_mat_rows(const EnvMatArgs<T>& a, T* out) {
  for_slots(a, [&](int64_t slot, const Normalisation<T>& norm, bool present) {
    T row[4];
    env_slot(a.displacements + 3 * slot, present, a.cutoff, norm, row);
    for (int c = 0; c < a.columns; ++c) out[a.columns * slot + c] = row[c];
  });
}

template <class T>
void env_mat_gradients(const EnvMatArgs<T>& a, const T* grad, T* out) {
  for_slots(a, [&](int64_t slot, const Normalisation<T>& norm, bool present) {
    if (present)
      env_slot_backward(grad + a.columns * slot, a.columns, a.displacements + 3 * slot, a.cutoff, norm,
                        out + 3 * slot);
  });
}

template <class T>
void env_mat_second(const EnvMatArgs<T>& a, const T* tangents, const T* grad, T* by_grad, T* by_vectors) {
  for_slots(a, [&](int64_t slot, const Normalisation<T>& norm, bool present) {
    if (!present) return;
    T row[4];
    env_slot_second(tangents + 3 * slot, grad + a.columns * slot, a.columns, a.displacements + 3 * slot,
                    a.cutoff, norm, row, by_vectors + 3 * slot);
    for (int c = 0; c < a.columns; ++c) by_grad[a.columns * slot + c] = row[c];
  });
}

MDOPS_INSTANTIATE(env_mat_rows, env_mat_gradients, env_mat_second)

}  // namespace mdops
