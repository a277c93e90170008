// Invariants on a GPU: a block has some atoms, whose numbers lie in shared memory. Each warp has a run of
// consecutive sums, with about equally many terms. A lane has an atom or, if the block has fewer atoms than
// lanes, a strided part of an atom's terms. All lanes read the same terms: each prepares one of 32, which
// wait in shared memory. The order of sums is fixed.
#pragma once

#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops::gpu_invariants {

// What is computed: mixtures of r and polynomials of these; then, backward, the gradients, else y. And the
// cost of a row beside its terms, in terms.
enum Phase { kMixtures, kMade, kByMade, kByMixtures, kByNumbers, kFeatures, kPhases };
constexpr int kTermsOfRow = 4;

// Terms that wait for a warp: the byte offsets of their numbers from an atom's first one, and their factors.
template <class T>
struct WaitingTerms {
  struct alignas(16) Places {
    int32_t of[kFactors];
  };
  Places places[kWarp];
  T factor[kWarp];
};

// A run of terms, read by a warp 32 at a time and once. A number from `limit` on is wrong: NaN. A term
// without factors reads the one at `one`.
template <class T, int kSplit>
class TermReader {
 public:
  __device__ TermReader(WaitingTerms<T>* waiting, int bytes, int one)
      : bytes_(bytes), one_(one * bytes), waiting_(waiting) {}

  // Reads the first terms.
  __device__ void start(const TermArgs<T>& terms, int first, int64_t limit) {
    terms_ = &terms, limit_ = static_cast<int>(limit), first_ = -kWarp - 1;
    read(first);
  }

  // The sum of the terms [begin, end) of an atom whose numbers begin at `numbers`; of every kSplit-th from
  // `split` on.
  __device__ T sum(int begin, int end, const char* numbers, int split) {
    T sum = 0;
    for (int t = begin; t < end;) {
      if (t < first_ || t >= first_ + kWarp) prepare(t);
      const int in = t - first_, alike = __shfl_sync(kAllLanes, alike_, in), factors = alike / kWarp;
      const int run = min(min(end, first_ + kWarp) - t, alike % kWarp + 1);
      if (factors == 1)
        sum += run_sum<1>(in, run, numbers, split);
      else if (factors == 2)
        sum += run_sum<2>(in, run, numbers, split);
      else if (factors == 3)
        sum += run_sum<3>(in, run, numbers, split);
      else
        sum += run_sum<kFactors>(in, run, numbers, split);
      t += run;
    }
    return sum;
  }

 private:
  __device__ void prepare(int first) {
    if (first != next_first_) read(first);
    __syncwarp();
    const int lane = lane_index();
    T factor = next_factor_;
    int factors = 0;
    bool more = true;
#pragma unroll
    for (int f = 0; f < kFactors; ++f) {
      int number = next_index_[f];
      more = more && number >= 0;
      if (more && number >= limit_) factor = not_a_number<T>(), number = 0;
      factors += more;
      waiting_->places[lane].of[f] = more ? number * bytes_ : one_;
    }
    waiting_->factor[lane] = factor;
    factors = factors < 1 ? 1 : factors;
    unsigned others = 0;
#pragma unroll
    for (int n = 1; n <= kFactors; ++n) {
      const unsigned mine = __ballot_sync(kAllLanes, factors == n);
      if (factors == n) others = ~mine >> lane;
    }
    const int after = others ? __ffs(others) - 2 : kWarp - 1 - lane;
    alike_ = factors * kWarp + after;
    __syncwarp();
    first_ = first;
    read(first + kWarp);  // loads while these are summed
  }

  __device__ void read(int first) {
    next_first_ = first;
    const int64_t t = static_cast<int64_t>(first) + lane_index();
    const bool is_there = t >= 0 && t < terms_->terms;
#pragma unroll
    for (int f = 0; f < kFactors; ++f) next_index_[f] = is_there ? terms_->index[kFactors * t + f] : -1;
    next_factor_ = is_there ? terms_->factor[t] : T(0);
  }

  // Four terms at once; those after the last are not read.
  template <int kNumbers>
  MDOPS_D T run_sum(int in, int run, const char* numbers, int split) const {
    constexpr int kAtOnce = 4;
    T sum[kAtOnce] = {};
    for (int from = split; from < run; from += kAtOnce * kSplit) {
      typename WaitingTerms<T>::Places place[kAtOnce];
      T product[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        product[k] = 0;
        if (from + k * kSplit < run)
          place[k] = waiting_->places[in + from + k * kSplit],
          product[k] = waiting_->factor[in + from + k * kSplit];
      }
      unrolled<kNumbers, kAtOnce>([&](int f, int k) {
        if (from + k * kSplit < run) product[k] *= *reinterpret_cast<const T*>(numbers + place[k].of[f]);
      });
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum[k] += product[k];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  const TermArgs<T>* terms_ = nullptr;
  int limit_ = 0;
  const int bytes_, one_;
  WaitingTerms<T>* const waiting_;
  int first_ = -kWarp - 1;  // of those that wait, the first
  int alike_ = 0;           // the lane's factors times 32, and how many terms after it have as many
  int next_first_ = -1, next_index_[kFactors];  // of those that are read
  T next_factor_;
};

// The numbers of a block's atoms, of which the first is `first`.
template <class T, int kAtoms, int kThreads>
class Block {
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kStride = kAtoms + 1;  // from a number to the next
  static constexpr int kSplit = kWarp / kAtoms;
  struct Rows {
    int start, count, limit, to;  // the rows in both lists' offsets; the numbers before; the sums' place
  };
  struct Shared {
    WaitingTerms<T> waiting[kWarps];
    T along[2][kWarps][kAtoms];
    Rows rows[kPhases];
    int cut[kPhases][kWarps + 1];
  };

 public:
  static constexpr int kGroups = kThreads / kAtoms;

  __device__ explicit Block(const InvariantArgs<T>& args)
      : p(args),
        shared(*reinterpret_cast<Shared*>(net_memory())),
        offsets(reinterpret_cast<int32_t*>(net_memory() + sizeof(Shared))),
        numbers(reinterpret_cast<T*>(net_memory() + sizeof(Shared) + offset_bytes(args))),
        first(static_cast<int64_t>(blockIdx.x) * kAtoms),
        atom(threadIdx.x % kAtoms),
        group(threadIdx.x / kAtoms),
        split(lane_index() / kAtoms),
        warp(warp_index()) {}

  // Bytes of the numbers and a one of each atom, and the block's other memory.
  static int64_t bytes(const InvariantArgs<T>& args, int64_t numbers) {
    return sizeof(Shared) + offset_bytes(args) + (numbers + 1) * kStride * sizeof(T);
  }

  __device__ T& at(int64_t number, int of) const { return numbers[number * kStride + of]; }
  __device__ int64_t sums() const { return p.raw() - 2; }
  __device__ bool is_there() const { return first + atom < p.atoms; }

  // to(column, atom) = rows of `from`, of the first `used` of `columns`.
  __device__ void read(const T* from, int columns, int used, const auto& to) const {
    for (int k = threadIdx.x; k < kAtoms * used; k += kThreads) {
      const int of = k / used, column = k % used;
      to(column, of) = first + of < p.atoms ? from[(first + of) * columns + column] : T(0);
    }
  }

  // r, and the one after `numbers` of an atom.
  __device__ void begin(int64_t numbers_of_atom) const {
    const int channels = static_cast<int>(p.channels), components = static_cast<int>(p.components);
    const int of_forth = static_cast<int>(p.forth.rows) + 1;
    for (int k = threadIdx.x; k < of_forth; k += kThreads) offsets[k] = p.forth.offsets[k];
    for (int k = threadIdx.x; k <= p.back.rows; k += kThreads) offsets[of_forth + k] = p.back.offsets[k];
    if (threadIdx.x == 0) {
      const int raw = static_cast<int>(p.raw()), mixed = static_cast<int>(p.mixed),
                made = static_cast<int>(p.made);
      const int known = static_cast<int>(p.known()), all = static_cast<int>(p.all());
      shared.rows[kMixtures] = {0, mixed, raw, raw};
      shared.rows[kMade] = {mixed, made, raw + mixed, raw + mixed};
      shared.rows[kFeatures] = {mixed + made, all - known, known, known};
      shared.rows[kByMade] = {of_forth, made, all, all};
      shared.rows[kByMixtures] = {of_forth + made, mixed, all + made, all + made};
      shared.rows[kByNumbers] = {of_forth + made + mixed, raw, all + made + mixed, 0};
    }
    if (group == 0) at(numbers_of_atom, atom) = T(1);
    read(p.scalars, channels + 2, channels + 2,
         [&](int column, int of) -> T& { return at(column < channels ? column : column + components, of); });
    read(p.others, components, components,
         [&](int column, int of) -> T& { return at(channels + column, of); });
    __syncthreads();
    for (int w = group; w < 2; w += kGroups) at(sums() + w, atom) = divisor(at(sums() + w, atom));
    for (int phase = 0; phase < kPhases; ++phase) share(phase);
    __syncthreads();
    for (int k = group; k < sums(); k += kGroups) at(k, atom) /= at(sums() + p.which(k), atom);
    __syncthreads();
  }

  // v, and then the sums of the phases from `first` to `last`; f(row, sum) receives those by r. NaN if terms
  // are wrong. Lanes of one atom get the same.
  __device__ void run(int first, int last, int64_t one, const auto& f) const {
    const char* const of_atom = reinterpret_cast<const char*>(numbers + atom);
    TermReader<T, kSplit> reader(&shared.waiting[warp], kStride * sizeof(T), static_cast<int>(one));
    for (int phase = 0; phase <= last; phase = phase == kMade ? first : phase + 1) {
      const Rows rows = shared.rows[phase];
      const TermArgs<T>& terms = rows.start <= p.forth.rows ? p.forth : p.back;
      const int begin_row = shared.cut[phase][warp], end_row = shared.cut[phase][warp + 1];
      reader.start(terms, offsets[rows.start + begin_row], rows.limit);
      __syncthreads();
      for (int row = begin_row; row < end_row; ++row) {
        const int begin = offsets[rows.start + row], end = offsets[rows.start + row + 1];
        T sum = not_a_number<T>();
        if (begin >= 0 && begin <= end && end <= terms.terms) sum = reader.sum(begin, end, of_atom, split);
#pragma unroll
        for (int step = kAtoms; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        if (phase == kByNumbers)
          f(row, sum);
        else
          at(rows.to + row, atom) = sum;
      }
    }
    __syncthreads();
  }

 private:
  // The first row of this warp, so that all have about as many terms. Each row belongs to one warp for any
  // offsets.
  __device__ void share(int phase) const {
    const Rows rows = shared.rows[phase];
    const int32_t* const starts = offsets + rows.start;
    const auto before = [&](int row) {
      return static_cast<int>(static_cast<unsigned>(starts[row]) - starts[0]) + kTermsOfRow * row;
    };
    const int wanted = static_cast<int>(int64_t{before(rows.count)} * warp / kWarps);
    int low = 0, high = warp == 0 ? 0 : rows.count;  // the row is among these
    while (low < high) {
      const int step = (high - low + kWarp - 1) / kWarp, probe = low + lane_index() * step;
      const int below = __popc(__ballot_sync(kAllLanes, probe < high && before(probe) < wanted));
      const int from = low;
      if (below > 0) low = from + (below - 1) * step + 1;
      if (below < kWarp && from + below * step < high) high = from + below * step;
    }
    if (lane_index() == 0) shared.cut[phase][warp] = low;
    if (threadIdx.x == 0) shared.cut[phase][kWarps] = rows.count;
  }

 public:
  static MDOPS_HD int64_t offset_bytes(const InvariantArgs<T>& args) {
    return (args.forth.rows + args.back.rows + 2 + 3) / 4 * 16;
  }

  const InvariantArgs<T>& p;
  Shared& shared;
  int32_t* const offsets;  // of the rows of both lists of terms
  T* const numbers;
  const int64_t first;
  const int atom, group, split, warp;
};

template <class T, int kAtoms, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) forward_kernel(InvariantArgs<T> args, T* out) {
  const Block<T, kAtoms, kThreads> own(args);
  const int features = static_cast<int>(args.features()), width = static_cast<int>(args.width());
  own.begin(args.all());
  own.run(kFeatures, kFeatures, args.all(), [](int, T) {});
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

template <class T, int kAtoms, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    backward_kernel(InvariantArgs<T> args, const T* grad, T* by_scalars, T* by_others) {
  const Block<T, kAtoms, kThreads> own(args);
  const int features = static_cast<int>(args.features()), atom = own.atom;
  own.read(grad, static_cast<int>(args.width()), features,
           [&](int column, int of) -> T& { return own.at(args.known() + column, of); });
  own.begin(args.all_backward() + 2);
  const int64_t i = own.first + atom, columns = args.channels + 2, limit = args.all_backward();
  const int32_t type = own.is_there() ? args.types[i] : 0;
  const T wrong = type >= -1 && type < args.ntypes ? T(0) : not_a_number<T>();
  T along[2] = {0, 0};
  const int64_t sums = own.sums();
  own.run(kByMade, kByNumbers, limit + 2, [&](int k, T g) {
    if (k >= sums) {
      own.at(limit + k - sums, atom) = g;
      return;
    }
    const int w = args.which(k);
    const T more = g * own.at(k, atom);
    along[0] += w == 0 ? more : T(0), along[1] += w == 0 ? T(0) : more;
    if (own.split == 0 && own.is_there()) {
      T* const to = k < args.channels ? by_scalars + i * columns + k
                                      : by_others + i * args.components + k - args.channels;
      *to = g / own.at(sums + w, atom) + wrong;
    }
  });
  for (int w = 0; w < 2; ++w)
    if (own.split == 0) own.shared.along[w][own.warp][atom] = along[w];
  __syncthreads();
  if (own.group < 2 && own.is_there()) {
    const int w = own.group;
    T sum = 0;
    for (int g = 0; g < kThreads / kWarp; ++g) sum += own.shared.along[w][g][atom];
    const T d = own.at(sums + w, atom), g = own.at(limit + w, atom);
    by_scalars[i * columns + args.channels + w] = (g - sum / d) / (T(2) * d) + wrong;
  }
}

}  // namespace mdops::gpu_invariants
