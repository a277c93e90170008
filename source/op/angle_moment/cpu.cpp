#include "angle_moment/ops.h"
#include "common/scratch.h"

namespace mdops {

namespace {

constexpr int64_t kAngleGrain = kAngleBlock;  // atoms a piece of work, at least

struct AngleScratch;

// work(begin, end, scratch) for all atoms, in threads.
template <class T, class Work>
void for_atoms(const Op& op, const AngleArgs<T>& args, int64_t atoms, int channels, const Work& work) {
  const int64_t numbers = MDOPS_RUN(angle_scratch_size, args, channels);
  parallel(atoms, kAngleGrain, [&](int64_t begin, int64_t end) {
    const ScratchMemory<AngleScratch> scratch(op, numbers * static_cast<int64_t>(sizeof(T)));
    work(begin, end, static_cast<T*>(scratch.data()));
  });
}

}  // namespace

template <class T>
static void run_angle_moments(const Op& op, const AngleArgs<T>& args, int64_t atoms, T* moments,
                              int32_t* within, T* nearest) {
  for_atoms(op, args, atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
    MDOPS_RUN(angle_forward, args, begin, end, scratch, moments, within, nearest);
  });
}

template <class T>
static void run_angle_moment_tangents(const Op& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent,
                                      T* out) {
  for_atoms(op, args, atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
    MDOPS_RUN(angle_jvp, args, tangent, begin, end, scratch, out);
  });
}

template <class T>
static void run_angle_moment_pulls(const Op& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent,
                                   const T* grad, T* out) {
  for_atoms(op, args, atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
    MDOPS_RUN(angle_pull, args, tangent, grad, begin, end, scratch, out);
  });
}

template <class T>
static void make_angle_features(const Op& op, const AngleArgs<T>& args, const AngleTables<T>& tables,
                                int64_t atoms, T* features, int32_t* within, T* nearest) {
  for_atoms(op, args, atoms, tables.channels, [&](int64_t begin, int64_t end, T* scratch) {
    MDOPS_RUN(angle_features, args, tables, begin, end, scratch, features, within, nearest);
  });
}

template <class T>
static void make_angle_gradients(const Op& op, const AngleArgs<T>& args, const AngleTables<T>& tables,
                                 int64_t atoms, const T* grad, T* out) {
  for_atoms(op, args, atoms, tables.channels, [&](int64_t begin, int64_t end, T* scratch) {
    MDOPS_RUN(angle_features_backward, args, tables, grad, begin, end, scratch, out);
  });
}

}  // namespace mdops

MDOPS_ON_CPU(AngleMomentOps, AngleFeatureOps)
