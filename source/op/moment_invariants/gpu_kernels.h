// Invariants on a GPU: a block has some atoms, whose numbers lie in shared memory, and a thread one atom and
// every so manieth sum. Threads side by side have different atoms and the same terms, which all of them read
// at once. Sums go in one order whatever runs when.
#pragma once

#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops {

namespace gpu_invariants {

constexpr int kThreads = 512;

// The numbers of a block's atoms, of which the first is `first`.
template <class T, int kAtoms>
class Block {
  static constexpr int kStride = kAtoms + 1;  // from a number to the next

 public:
  static constexpr int kGroups = kThreads / kAtoms;

  __device__ explicit Block(const InvariantArgs<T>& args)
      : p(args),
        numbers(reinterpret_cast<T*>(net_memory())),
        first(static_cast<int64_t>(blockIdx.x) * kAtoms),
        atom(threadIdx.x % kAtoms),
        group(threadIdx.x / kAtoms) {}

  // Bytes of so many numbers of each atom, and of each thread's two sums.
  static int64_t bytes(int64_t numbers, bool sums) {
    return (numbers * kStride + (sums ? 2 * kThreads : 0)) * sizeof(T);
  }

  __device__ T& at(int64_t number, int of) const { return numbers[number * kStride + of]; }
  __device__ int64_t sums() const { return p.raw() - 2; }
  __device__ bool is_there() const { return first + atom < p.atoms; }

  // to(column, atom) = rows of `from`, of the first `used` of `columns`.
  template <class To>
  __device__ void read(const T* from, int columns, int used, const To& to) const {
    for (int k = threadIdx.x; k < kAtoms * used; k += kThreads) {
      const int of = k / used, column = k % used;
      to(column, of) = first + of < p.atoms ? from[(first + of) * columns + column] : T(0);
    }
  }

  // r and v.
  __device__ void begin() const {
    const int channels = static_cast<int>(p.channels), components = static_cast<int>(p.components);
    read(p.scalars, channels + 2, channels + 2,
         [&](int column, int of) -> T& { return at(column < channels ? column : column + components, of); });
    read(p.others, components, components,
         [&](int column, int of) -> T& { return at(channels + column, of); });
    __syncthreads();
    for (int w = group; w < 2; w += kGroups) at(sums() + w, atom) = divisor(at(sums() + w, atom));
    __syncthreads();
    for (int k = group; k < sums(); k += kGroups) at(k, atom) /= at(sums() + p.which(k), atom);
    __syncthreads();
    for (int k = group; k < p.mixed; k += kGroups) at(p.raw() + k, atom) = sum(p.forth, k, p.raw());
    __syncthreads();
  }

  // A sum of numbers before `limit`; NaN where its terms are wrong.
  __device__ T sum(const TermArgs<T>& terms, int64_t row, int64_t limit) const {
    const int64_t begin = terms.offsets[row], end = terms.offsets[row + 1];
    if (begin < 0 || begin > end || end > terms.terms) return not_a_number<T>();
    return term_sum<T>(terms, row, [&](int32_t k) { return k < limit ? at(k, atom) : not_a_number<T>(); });
  }

  const InvariantArgs<T>& p;
  T* const numbers;
  const int64_t first;
  const int atom, group;
};

template <class T, int kAtoms>
__global__ void __launch_bounds__(kThreads) forward_kernel(InvariantArgs<T> args, T* out) {
  const Block<T, kAtoms> own(args);
  own.begin();
  const int features = static_cast<int>(args.features()), width = static_cast<int>(args.width());
  for (int k = own.group; k < features; k += own.kGroups)
    own.at(args.known() + k, own.atom) = own.sum(args.forth, args.mixed + k, args.known());
  __syncthreads();
  for (int k = threadIdx.x; k < kAtoms * width; k += kThreads) {
    const int of = k / width, column = k % width;
    const int64_t i = own.first + of;
    if (i >= args.atoms) break;
    T value;
    if (column < features) {
      value = own.at(args.known() + column, of);
    } else {
      const int32_t type = args.types[i];
      value = type >= 0 && type < args.ntypes ? args.behind[type * args.extra + column - features]
              : type == -1                    ? T(0)
                                              : not_a_number<T>();
    }
    out[i * width + column] = value;
  }
}

template <class T, int kAtoms>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(InvariantArgs<T> args, const T* grad, T* by_scalars, T* by_others) {
  const Block<T, kAtoms> own(args);
  own.begin();
  const int features = static_cast<int>(args.features()), atom = own.atom;
  own.read(grad, static_cast<int>(args.width()), features,
           [&](int column, int of) -> T& { return own.at(args.known() + column, of); });
  __syncthreads();
  for (int k = own.group; k < args.mixed; k += own.kGroups)
    own.at(args.all() + k, atom) = own.sum(args.back, k, args.all());
  __syncthreads();
  const int64_t i = own.first + atom, columns = args.channels + 2, limit = args.all_backward();
  const int32_t type = own.is_there() ? args.types[i] : 0;
  const T wrong = type >= -1 && type < args.ntypes ? T(0) : not_a_number<T>();
  T along[2] = {0, 0};
  for (int k = own.group; k < own.sums(); k += own.kGroups) {
    const int w = args.which(k);
    const T g = own.sum(args.back, args.mixed + k, limit);
    along[w] += g * own.at(k, atom);
    if (own.is_there()) {
      T* const to = k < args.channels ? by_scalars + i * columns + k
                                      : by_others + i * args.components + k - args.channels;
      *to = g / own.at(own.sums() + w, atom) + wrong;
    }
  }
  T* const of_threads = own.numbers + limit * (kAtoms + 1);
  for (int w = 0; w < 2; ++w) of_threads[w * kThreads + threadIdx.x] = along[w];
  __syncthreads();
  if (own.group < 2 && own.is_there()) {
    const int w = own.group;
    T sum = 0;
    for (int g = 0; g < own.kGroups; ++g) sum += of_threads[w * kThreads + g * kAtoms + atom];
    const T d = own.at(own.sums() + w, atom), g = own.sum(args.back, args.mixed + own.sums() + w, limit);
    by_scalars[i * columns + args.channels + w] = (g - sum / d) / (T(2) * d) + wrong;
  }
}

}  // namespace gpu_invariants

}  // namespace mdops
