// Invariants on a GPU: a block has some atoms, whose numbers lie in shared memory. A warp has a run of sums
// that follow each other, about as many terms as others have. A lane has an atom, or where a block has fewer
// of them every so manieth term of one. All lanes read the same terms: each prepares one of 32, which wait in
// shared memory. Sums go in one order whatever runs when.
#pragma once

#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops {

namespace gpu_invariants {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;

// What is computed after another, and what a row of it takes beside its terms, in terms.
enum Phase { kMixtures, kMade, kFeatures, kByMade, kByMixtures, kByNumbers, kPhases };
constexpr int kTermsOfRow = 4;

// Terms that wait for a warp: where their numbers are, in bytes from an atom's first, and their factors.
template <class T>
struct WaitingTerms {
  struct alignas(16) Places {
    int32_t of[kFactors];
  };
  Places places[kWarp];
  T factor[kWarp];
};

// A run of terms, read by a warp 32 at a time and once. A number from `limit` on is wrong: NaN.
template <class T>
class TermReader {
 public:
  __device__ TermReader(const TermArgs<T>& terms, int64_t limit, int bytes, WaitingTerms<T>* waiting)
      : terms_(terms), limit_(static_cast<int>(limit)), bytes_(bytes), waiting_(waiting) {}

  // sum + the terms [begin, end) of an atom whose numbers begin at `numbers`; of every kSplit-th from `split`
  // on.
  template <int kSplit>
  __device__ T add(T sum, int begin, int end, const char* numbers, int split) {
    for (int t = begin; t < end;) {
      if (t < first_ || t >= first_ + kWarp) prepare(t);
      const int in = t - first_, alike = __shfl_sync(kAllLanes, alike_, in), factors = alike / kWarp;
      const int run = min(min(end, first_ + kWarp) - t, alike % kWarp + 1);
      if (factors == 0)
        sum = run_sum<0, kSplit>(sum, in, run, numbers, split);
      else if (factors == 1)
        sum = run_sum<1, kSplit>(sum, in, run, numbers, split);
      else if (factors == 2)
        sum = run_sum<2, kSplit>(sum, in, run, numbers, split);
      else if (factors == 3)
        sum = run_sum<3, kSplit>(sum, in, run, numbers, split);
      else
        sum = run_sum<4, kSplit>(sum, in, run, numbers, split);
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
      waiting_->places[lane].of[f] = more ? number * bytes_ : 0;
    }
    waiting_->factor[lane] = factor;
    unsigned others = 0;
#pragma unroll
    for (int n = 0; n <= kFactors; ++n) {
      const unsigned mine = __ballot_sync(kAllLanes, factors == n);
      if (factors == n) others = ~mine >> lane;
    }
    const int after = others ? __ffs(others) - 2 : kWarp - 1 - lane;
    alike_ = factors * kWarp + after;
    __syncwarp();
    first_ = first;
    read(first + kWarp);  // on its way while these are summed
  }

  __device__ void read(int first) {
    next_first_ = first;
    const int64_t t = static_cast<int64_t>(first) + lane_index();
#pragma unroll
    for (int f = 0; f < kFactors; ++f)
      next_index_[f] = t < terms_.terms ? terms_.index[kFactors * t + f] : -1;
    next_factor_ = t < terms_.terms ? terms_.factor[t] : T(0);
  }

  template <int kNumbers, int kSplit>
  __device__ T run_sum(T sum, int in, int run, const char* numbers, int split) const {
#pragma unroll 4
    for (int u = split; u < run; u += kSplit) {
      const typename WaitingTerms<T>::Places place = waiting_->places[in + u];
      T product = waiting_->factor[in + u];
#pragma unroll
      for (int f = 0; f < kNumbers; ++f) product *= *reinterpret_cast<const T*>(numbers + place.of[f]);
      sum += product;
    }
    return sum;
  }

  const TermArgs<T>& terms_;
  const int limit_, bytes_;
  WaitingTerms<T>* const waiting_;
  int first_ = -kWarp - 1;  // of those that wait
  int alike_ = 0;           // the lane's factors times 32, and how many terms after it have as many
  int next_first_ = -1, next_index_[kFactors];  // of those that are read
  T next_factor_;
};

// The numbers of a block's atoms, of which the first is `first`.
template <class T, int kAtoms>
class Block {
  static constexpr int kStride = kAtoms + 1;  // from a number to the next
  static constexpr int kSplit = kWarp / kAtoms;
  struct Shared {
    WaitingTerms<T> waiting[kWarps];
    int cut[kPhases][kWarps + 1];
    T along[2][kWarps][kAtoms];
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

  // Bytes of so many numbers of each atom, and what a block has beside these.
  static int64_t bytes(const InvariantArgs<T>& args, int64_t numbers) {
    return sizeof(Shared) + offset_bytes(args) + numbers * kStride * sizeof(T);
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
    for (int k = threadIdx.x; k <= p.forth.rows; k += kThreads) offsets[k] = p.forth.offsets[k];
    for (int k = threadIdx.x; k <= p.back.rows; k += kThreads) of_back()[k] = p.back.offsets[k];
    read(p.scalars, channels + 2, channels + 2,
         [&](int column, int of) -> T& { return at(column < channels ? column : column + components, of); });
    read(p.others, components, components,
         [&](int column, int of) -> T& { return at(channels + column, of); });
    __syncthreads();
    const int64_t mixed = p.mixed, made = p.made;
    share(kMixtures, offsets, mixed), share(kMade, offsets + mixed, made);
    share(kFeatures, offsets + mixed + made, p.features()), share(kByMade, of_back(), made);
    share(kByMixtures, of_back() + made, mixed), share(kByNumbers, of_back() + made + mixed, p.raw());
    for (int w = group; w < 2; w += kGroups) at(sums() + w, atom) = divisor(at(sums() + w, atom));
    __syncthreads();
    for (int k = group; k < sums(); k += kGroups) at(k, atom) /= at(sums() + p.which(k), atom);
    __syncthreads();
    const int64_t raw = p.raw();
    each_sum(kMixtures, p.forth, offsets, raw, [&](int row, T sum) { at(raw + row, atom) = sum; });
    __syncthreads();
    each_sum(kMade, p.forth, offsets + mixed, raw + mixed,
             [&](int row, T sum) { at(raw + mixed + row, atom) = sum; });
    __syncthreads();
  }

  // f(row, the sum of its terms) for the rows that this warp has of those that begin at `starts`, of numbers
  // before `limit`; NaN where terms are wrong. Lanes of one atom have the same.
  template <class F>
  __device__ void each_sum(Phase phase, const TermArgs<T>& terms, const int32_t* starts, int64_t limit,
                           const F& f) const {
    const char* const of_atom = reinterpret_cast<const char*>(numbers + atom);
    TermReader<T> reader(terms, limit, kStride * sizeof(T), &shared.waiting[warp]);
    const int end_row = shared.cut[phase][warp + 1];
    for (int row = shared.cut[phase][warp]; row < end_row; ++row) {
      const int begin = starts[row], end = starts[row + 1];
      T sum = not_a_number<T>();
      if (begin >= 0 && begin <= end && end <= terms.terms)
        sum = reader.template add<kSplit>(T(0), begin, end, of_atom, split);
#pragma unroll
      for (int step = kAtoms; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      f(row, sum);
    }
  }

 private:
  // Where this warp's rows begin, so that all have about as many terms. Every row is some warp's, whatever
  // the offsets are.
  __device__ void share(Phase phase, const int32_t* starts, int64_t rows) const {
    const auto before = [&](int64_t row) { return int64_t{starts[row]} - starts[0] + kTermsOfRow * row; };
    const int64_t wanted = before(rows) * warp / kWarps;
    int64_t low = 0, high = warp == 0 ? 0 : rows;  // the place is among these
    while (low < high) {
      const int64_t step = (high - low + kWarp - 1) / kWarp, probe = low + lane_index() * step;
      const int below = __popc(__ballot_sync(kAllLanes, probe < high && before(probe) < wanted));
      const int64_t from = low;
      if (below > 0) low = from + (below - 1) * step + 1;
      if (below < kWarp && from + below * step < high) high = from + below * step;
    }
    if (lane_index() == 0) shared.cut[phase][warp] = static_cast<int>(low);
    if (threadIdx.x == 0) shared.cut[phase][kWarps] = static_cast<int>(rows);
  }

 public:
  static MDOPS_HD int64_t offset_bytes(const InvariantArgs<T>& args) {
    return (args.forth.rows + args.back.rows + 2 + 3) / 4 * 16;
  }
  __device__ int32_t* of_back() const { return offsets + p.forth.rows + 1; }

  const InvariantArgs<T>& p;
  Shared& shared;
  int32_t* const offsets;  // of the rows of both lists of terms
  T* const numbers;
  const int64_t first;
  const int atom, group, split, warp;
};

template <class T, int kAtoms>
__global__ void __launch_bounds__(kThreads) forward_kernel(InvariantArgs<T> args, T* out) {
  const Block<T, kAtoms> own(args);
  own.begin();
  const int features = static_cast<int>(args.features()), width = static_cast<int>(args.width());
  own.each_sum(kFeatures, args.forth, own.offsets + args.mixed + args.made, args.known(),
               [&](int row, T sum) { own.at(args.known() + row, own.atom) = sum; });
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
  const int64_t all = args.all(), made = args.made;
  own.each_sum(kByMade, args.back, own.of_back(), all,
               [&](int row, T sum) { own.at(all + row, atom) = sum; });
  __syncthreads();
  own.each_sum(kByMixtures, args.back, own.of_back() + made, all + made,
               [&](int row, T sum) { own.at(all + made + row, atom) = sum; });
  __syncthreads();
  const int64_t i = own.first + atom, columns = args.channels + 2, limit = args.all_backward();
  const int32_t type = own.is_there() ? args.types[i] : 0;
  const T wrong = type >= -1 && type < args.ntypes ? T(0) : not_a_number<T>();
  T along[2] = {0, 0};
  const int64_t sums = own.sums();
  own.each_sum(kByNumbers, args.back, own.of_back() + made + args.mixed, limit, [&](int k, T g) {
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
    for (int g = 0; g < kWarps; ++g) sum += own.shared.along[w][g][atom];
    const T d = own.at(sums + w, atom), g = own.at(limit + w, atom);
    by_scalars[i * columns + args.channels + w] = (g - sum / d) / (T(2) * d) + wrong;
  }
}

}  // namespace gpu_invariants

}  // namespace mdops
