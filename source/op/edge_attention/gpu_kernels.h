// The kernels of attention among edges: a block has an atom, a warp one query at a time with keys in its
// lanes, for `kHeads` heads at once. Sums by keys follow after the tile's queries, so that all sums have a
// fixed order.
#pragma once

#include <math_constants.h>

#include <type_traits>

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_attention/gpu_tensor.h"
#include "gemm/gpu_memory.h"

namespace mdops::gpu_edge_attention {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kHeads = 4;
constexpr int64_t kBlocks = 16;  // per multiprocessor, if most have nothing to do
constexpr int64_t kUsual = 48;   // edges of an atom that allow several blocks per multiprocessor

enum class Pass { forward, backward, second };

template <class T>
using Heads = T[kHeads];

template <class T>
MDOPS_D void load_heads(const T* from, Heads<T>& to) {
#pragma unroll
  for (int k = 0; k < kHeads; k += kVectorSize<T>) {
    const Vector<T, kVectorSize<T>> some(from + k);
    unrolled<kVectorSize<T>>([&](int c) { to[k + c] = some[c]; });
  }
}
template <class T>
MDOPS_D void store_heads(T* to, const Heads<T>& from) {
#pragma unroll
  for (int k = 0; k < kHeads; k += kVectorSize<T>) {
    Vector<T, kVectorSize<T>> some;
    unrolled<kVectorSize<T>>([&](int c) { some[c] = from[k + c]; });
    some.store(to + k);
  }
}

// Where the arrays of a block begin, in numbers. Rows are padded with zeros to whole vectors.
template <class T>
struct Layout {
  int64_t most, keys, values, row;  // edges; K and V padded; row stride of x
  int64_t x, along_x, by_x, edge, along_edge, by_edge, by_query, q, along_q, g, scores, pairs, size = 0;
  int arrays;  // of scores

  Layout(const EdgeAttentionArgs<T>& args, int64_t most_) : most(most_) {
    const bool back = args.grad, second = args.along_q;
    constexpr int64_t v = kVectorSize<T>;
    keys = (args.keys + v - 1) / v * v, values = (args.values + v - 1) / v * v;
    row = values / v % 2 ? values : values + v;  // the lanes of a column read different banks
    arrays = second ? 4 : back ? 2 : 1;
    x = take(most * row), along_x = take(second * most * row), by_x = take(back * most * row);
    edge = take(4 * most), along_edge = take(second * 4 * most);
    by_edge = take(back * 4 * most), by_query = take(back * 4 * most);
    q = take(kWarps * kHeads * keys), along_q = take(second * kWarps * kHeads * keys);
    g = take(back * kWarps * kHeads * values);
    scores = take(arrays * kWarps * kHeads * most), pairs = take(back * arrays * kWarps * most);
  }
  int64_t bytes() const { return size * static_cast<int64_t>(sizeof(T)); }

 private:
  int64_t take(int64_t count) {
    const int64_t begin = size;
    size += (count + 3) / 4 * 4;
    return begin;
  }
};

template <class T, Pass pass>
struct AtomWork {
  static constexpr int kThreads = gpu_edge_attention::kThreads, kBlocks = 0;  // as many as fit
  using Layout = gpu_edge_attention::Layout<T>;
  static constexpr bool kBack = pass != Pass::forward, kSecond = pass == Pass::second;
  using Pair = EdgePair<T>;

  const EdgeAttentionArgs<T>& args;
  const Layout& at;
  T* const memory;
  const int64_t first, n;
  const T absent;
  int64_t tile = 0, head = 0;  // the first query and head

  __device__ void run() {
    read();
    __syncthreads();
    for (tile = 0; tile < n; tile += kWarps)
      for (head = 0; head < args.heads; head += kHeads) {
        read_tile();
        __syncthreads();
        if (query() < n) run_query();
        __syncthreads();
        if constexpr (kBack) {
          sum_by_keys();
          __syncthreads();
        }
      }
    if constexpr (kBack) write();
    __syncthreads();
  }

 private:
  __device__ int warp() const { return threadIdx.x / kWarp; }
  __device__ int64_t query() const { return tile + warp(); }
  __device__ T* edge(int64_t l) const { return memory + at.edge + 4 * l; }
  __device__ T* along_edge(int64_t l) const { return memory + at.along_edge + 4 * l; }
  // Scores, or what replaces them, of the heads of a pair.
  __device__ T* score(int array, int64_t query, int64_t key) const {
    return memory + at.scores + ((array * kWarps + query) * at.most + key) * kHeads;
  }
  __device__ T* pair_sums(int64_t query, int64_t key) const {
    return memory + at.pairs + (query * at.most + key) * at.arrays;
  }

  __device__ void rows(const T* from, int64_t width, int64_t padded, int64_t stride, T* to) const {
    for (int64_t k = threadIdx.x; k < n * padded; k += kThreads) {
      const int64_t l = k / padded, v = k % padded;
      to[l * stride + v] = v < width ? from[(first + l) * width + v] : T(0);
    }
  }
  __device__ void read() const {
    rows(args.x, args.values, at.values, at.row, memory + at.x);
    rows(args.r, 3, 3, 4, memory + at.edge), rows(args.w, 1, 1, 4, memory + at.edge + 3);
    if constexpr (kSecond) {
      rows(args.along_x, args.values, at.values, at.row, memory + at.along_x);
      rows(args.along_r, 3, 3, 4, memory + at.along_edge);
      rows(args.along_w, 1, 1, 4, memory + at.along_edge + 3);
    }
    if constexpr (kBack) {
      for (int64_t k = threadIdx.x; k < n * at.row; k += kThreads) memory[at.by_x + k] = 0;
      for (int64_t k = threadIdx.x; k < 4 * n; k += kThreads)
        memory[at.by_edge + k] = memory[at.by_query + k] = 0;
    }
  }
  // Loads the rows of the tile's queries, for these heads.
  __device__ void heads(const T* from, int64_t width, int64_t padded, T* to) const {
    for (int64_t k = threadIdx.x; k < kWarps * kHeads * padded; k += kThreads) {
      const int64_t j = tile + k / (kHeads * padded), h = head + k / padded % kHeads, v = k % padded;
      const bool there = j < n && h < args.heads && v < width;
      to[k] = there ? from[((first + j) * args.heads + h) * width + v] : T(0);
    }
  }
  __device__ void read_tile() const {
    heads(args.q, args.keys, at.keys, memory + at.q);
    if constexpr (kBack) heads(args.grad, args.values, at.values, memory + at.g);
    if constexpr (kSecond) heads(args.along_q, args.keys, at.keys, memory + at.along_q);
  }

  // Adds the products of this warp's rows of the tile with a row.
  __device__ void dots(int64_t of_tile, int64_t width, const T* x, Heads<T>& sums) const {
    const T* from = memory + of_tile + warp() * kHeads * width;
    for (int64_t k = 0; k < width; k += kVectorSize<T>) {
      const Vector<T, kVectorSize<T>> right(x + k);
      unrolled<kHeads>([&](int h) {
        const Vector<T, kVectorSize<T>> left(from + h * width + k);
        unrolled<kVectorSize<T>>([&](int c) { sums[h] += left[c] * right[c]; });
      });
    }
  }

  // c and a of this warp's query and a key; and their changes.
  __device__ Pair pair(int64_t l) const {
    const T *j = edge(query()), *k = edge(l);
    return {T(0), j[0] * k[0] + j[1] * k[1] + j[2] * k[2], j[3] * k[3]};
  }
  __device__ EdgePairChange<T> change(int64_t l) const {
    const T *j = edge(query()), *k = edge(l), *uj = along_edge(query()), *uk = along_edge(l);
    EdgePairChange<T> by{};
    unrolled<3>([&](int c) { by.c += uj[c] * k[c] + j[c] * uk[c]; });
    by.a = uj[3] * k[3] + j[3] * uk[3];
    return by;
  }

  __device__ void run_query() const {
    Heads<T> top, sum{}, weighed{}, changed{}, both{};
    unrolled<kHeads>([&](int h) { top[h] = absent != T(0) ? T(0) : static_cast<T>(-CUDART_INF_F); });
    for (int64_t l = lane_index(); l < n; l += kWarp) products(l, top);
    unrolled<kHeads>([&](int h) { top[h] = warp_largest(top[h]); });
    for (int64_t l = lane_index(); l < n; l += kWarp) {
      Pair of = pair(l);
      EdgePairChange<T> by{};
      if constexpr (kSecond) by = change(l);
      Heads<T> s, t, ds, dt;
      load_heads(score(0, warp(), l), s);
      if constexpr (kBack) load_heads(score(1, warp(), l), t);
      if constexpr (kSecond) load_heads(score(2, warp(), l), ds), load_heads(score(3, warp(), l), dt);
      unrolled<kHeads>([&](int h) {
        of.s = s[h];
        const T e = exp(of.logit(args.shift, args.gated) - top[h]), m = of.c * of.a;
        sum[h] += e;
        if constexpr (kBack) weighed[h] += e * m * t[h];
        if constexpr (kSecond) {
          by.s = ds[h], by.t = dt[h];
          const T dz = by.logit(of, args.shift, args.gated);
          changed[h] += e * dz;
          both[h] += e * (by.factor(of) * t[h] + m * by.t + dz * m * t[h]);
        }
        if constexpr (!kBack) s[h] = e * m;
      });
      if constexpr (!kBack) store_heads(score(0, warp(), l), s);
    }
    unrolled<kHeads>([&](int h) {
      sum[h] = 1 / (warp_sum(sum[h]) + (absent != T(0) ? absent * exp(-top[h]) : T(0)));
      if constexpr (kBack) weighed[h] = sum[h] * warp_sum(weighed[h]);
      if constexpr (kSecond) {
        changed[h] = sum[h] * warp_sum(changed[h]);
        both[h] = sum[h] * warp_sum(both[h]) - changed[h] * weighed[h];
      }
    });
    if constexpr (kBack) gradients(top, sum, weighed, changed, both);
    __syncwarp();
    if constexpr (!kBack)
      columns(0, at.x, 0, 0, args.values, sum, args.out);
    else {
      const Heads<T> one{1, 1, 1, 1};
      columns(kSecond ? 2 : 0, at.x, 0, at.along_x, args.keys, one, args.by_q);
      if constexpr (kSecond) columns(3, at.x, 1, at.along_x, args.values, one, args.out);
    }
  }

  // A key's products, and the largest logits.
  __device__ void products(int64_t l, Heads<T>& top) const {
    Heads<T> s{}, t{};
    const T* const x = memory + at.x + l * at.row;
    dots(at.q, at.keys, x, s);
    Pair of = pair(l);
    unrolled<kHeads>([&](int h) {
      of.s = s[h];
      const T z = of.logit(args.shift, args.gated);
      top[h] = z > top[h] ? z : top[h];
    });
    store_heads(score(0, warp(), l), s);
    if constexpr (kBack) {
      dots(at.g, at.values, x, t);
      store_heads(score(1, warp(), l), t);
    }
    if constexpr (kSecond) {
      Heads<T> ds{}, dt{};
      const T* const u = memory + at.along_x + l * at.row;
      dots(at.along_q, at.keys, x, ds), dots(at.q, at.keys, u, ds), dots(at.g, at.values, u, dt);
      store_heads(score(2, warp(), l), ds), store_heads(score(3, warp(), l), dt);
    }
  }

  // Replaces scores by gradients, and sums those by r and w of the query.
  __device__ void gradients(const Heads<T>& top, const Heads<T>& inverse, const Heads<T>& delta,
                            const Heads<T>& mean, const Heads<T>& delta_change) const {
    Heads<T> of_query{};
    for (int64_t l = lane_index(); l < n; l += kWarp) {
      Pair of = pair(l);
      EdgePairChange<T> by{};
      if constexpr (kSecond) by = change(l);
      Heads<T> s, t, ds, dt;
      load_heads(score(0, warp(), l), s), load_heads(score(1, warp(), l), t);
      if constexpr (kSecond) load_heads(score(2, warp(), l), ds), load_heads(score(3, warp(), l), dt);
      T by_c = 0, by_a = 0, by_dc = 0, by_da = 0;
      unrolled<kHeads>([&](int h) {
        of.s = s[h];
        const T p = exp(of.logit(args.shift, args.gated) - top[h]) * inverse[h];
        EdgePairGradients<T> found;
        if constexpr (kSecond) {
          by.s = ds[h], by.t = dt[h];
          const T dp = p * (by.logit(of, args.shift, args.gated) - mean[h]);
          const auto both =
              edge_pair_seconds(of, by, p, dp, t[h], delta[h], delta_change[h], args.shift, args.gated);
          found = both.first;
          ds[h] = both.second.s, dt[h] = both.second.share;
          by_dc += both.second.c, by_da += both.second.a;
        } else {
          found = edge_pair_gradients(of, p, t[h], delta[h], args.shift, args.gated);
        }
        s[h] = found.s, t[h] = found.share;
        by_c += found.c, by_a += found.a;
      });
      store_heads(score(0, warp(), l), s), store_heads(score(1, warp(), l), t);
      T* const sums = pair_sums(warp(), l);
      sums[0] = by_c, sums[1] = by_a;
      if constexpr (kSecond) {
        store_heads(score(2, warp(), l), ds), store_heads(score(3, warp(), l), dt);
        sums[2] = by_dc, sums[3] = by_da;
      }
      add_pair(sums, l, of_query);
    }
    unrolled<4>([&](int c) {
      const T sum = warp_sum(of_query[c]);
      if (lane_index() == 0) memory[at.by_query + 4 * query() + c] += sum;
    });
  }

  // Adds a pair's part of the gradient by r and w of one of its edges; `other` is the other one.
  __device__ void add_pair(const T* sums, int64_t other, Heads<T>& to) const {
    const T* const e = edge(other);
    unrolled<4>([&](int c) {
      const int kind = c == 3;
      to[c] += sums[kSecond ? 2 + kind : kind] * e[c];
      if constexpr (kSecond) to[c] += sums[kind] * along_edge(other)[c];
    });
  }

  // Writes the query's rows: the sum over keys of scores times x, and in the second pass of other scores
  // times u_x.
  __device__ void columns(int array, int64_t x, int other, int64_t along, int64_t width,
                          const Heads<T>& scale, T* out) const {
    for (int64_t v = lane_index(); v < width; v += kWarp) {
      Heads<T> sums{};
      for (int64_t l = 0; l < n; ++l) {
        Heads<T> weights;
        load_heads(score(array, warp(), l), weights);
        const T number = memory[x + l * at.row + v];
        unrolled<kHeads>([&](int h) { sums[h] += weights[h] * number; });
        if constexpr (kSecond) {
          load_heads(score(other, warp(), l), weights);
          const T change = memory[along + l * at.row + v];
          unrolled<kHeads>([&](int h) { sums[h] += weights[h] * change; });
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        if (head + h < args.heads)
          out[((first + query()) * args.heads + head + h) * width + v] = sums[h] * scale[h];
    }
  }

  // The gradients by x, r and w of keys, over the tile's queries.
  __device__ void sum_by_keys() const {
    constexpr int kAtOnce = 4;
    const int64_t left = n - tile, queries = left < kWarps ? left : kWarps;
    for (int64_t l = kAtOnce * warp(); l < n; l += kAtOnce * kWarps)
      for (int64_t v = lane_index(); v < at.values; v += kWarp) {
        T sums[kAtOnce] = {};
        for (int64_t j = 0; j < queries; ++j) {
          add_rows(kSecond ? 2 : 0, at.q, at.keys, j, l, v, sums);
          if constexpr (kSecond) add_rows(0, at.along_q, at.keys, j, l, v, sums);
          add_rows(kSecond ? 3 : 1, at.g, at.values, j, l, v, sums);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (l + k < n) memory[at.by_x + (l + k) * at.row + v] += sums[k];
      }
    for (int64_t l = threadIdx.x; l < n; l += kThreads) {
      Heads<T> sums;
      load_heads(memory + at.by_edge + 4 * l, sums);
      for (int64_t j = 0; j < queries; ++j) add_pair(pair_sums(j, l), tile + j, sums);
      store_heads(memory + at.by_edge + 4 * l, sums);
    }
  }
  template <int count>
  __device__ void add_rows(int array, int64_t of_tile, int64_t width, int64_t j, int64_t l, int64_t v,
                           T (&sums)[count]) const {
    if (v >= width) return;
    Heads<T> row;
    unrolled<kHeads>([&](int h) { row[h] = memory[of_tile + (j * kHeads + h) * width + v]; });
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (l + k >= n) break;
      Heads<T> weights;
      load_heads(score(array, j, l + k), weights);
      unrolled<kHeads>([&](int h) { sums[k] += weights[h] * row[h]; });
    }
  }

  __device__ void write() const {
    for (int64_t k = threadIdx.x; k < n * args.values; k += kThreads)
      args.by_x[first * args.values + k] = memory[at.by_x + k / args.values * at.row + k % args.values];
    for (int64_t k = threadIdx.x; k < 4 * n; k += kThreads) {
      const T sum = memory[at.by_edge + k] + memory[at.by_query + k];
      const int64_t l = first + k / 4, c = k % 4;
      (c < 3 ? args.by_r[3 * l + c] : args.by_w[l]) = sum;
    }
  }
};

// Sets all results of the rows [begin, end) to one value.
template <class T>
__device__ void fill_rows(const EdgeAttentionArgs<T>& args, int64_t begin, int64_t end, T value,
                          int64_t thread, int64_t step) {
  const auto fill = [&](T* rows, int64_t width) {
    for (int64_t k = begin * width + thread; rows && k < end * width; k += step) rows[k] = value;
  };
  fill(args.out, args.heads * args.values), fill(args.by_q, args.heads * args.keys);
  fill(args.by_x, args.values), fill(args.by_r, 3), fill(args.by_w, 1);
}

// Atoms with more than `above` edges, up to `at.most`. Without `memory` arrays are in shared memory. The
// first kernel of a call (`above` -1) also writes rows that belong to no atom, or to one with wrong offsets.
template <class Work, class T>
__global__ void __launch_bounds__(Work::kThreads, Work::kBlocks)
    attention_kernel(EdgeAttentionArgs<T> args, typename Work::Layout at, int64_t above, T* memory) {
  const bool in_shared = memory == nullptr;
  const int64_t first = min(static_cast<int64_t>(args.offsets[0]), args.rows);
  const int64_t last = min(static_cast<int64_t>(args.offsets[args.atoms]), args.rows);
  for (int64_t i = blockIdx.x; i < args.atoms; i += gridDim.x) {
    const int64_t begin = args.offsets[i], end = args.offsets[i + 1], n = end - begin;
    if (begin < 0 || n < 0 || end > args.rows || n > args.longest) {
      const int64_t low = max(min(begin, end), int64_t{0}), high = min(max(begin, end), max(last, low));
      if (above < 0) fill_rows(args, low, high, not_a_number<T>(), threadIdx.x, blockDim.x);
    } else if (n > 0 && n > above && n <= at.most) {
      T* const own = in_shared ? reinterpret_cast<T*>(net_memory()) : memory + blockIdx.x * at.size;
      Work{args, at, own, begin, n, args.absent[i]}.run();
    }
  }
  if (above >= 0) return;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  if (first > 0) fill_rows(args, 0, min(first, max(last, int64_t{0})), not_a_number<T>(), thread, step);
  const bool wrong = last < 0 || last < first;  // the offsets decrease
  fill_rows(args, max(last, int64_t{0}), args.rows, wrong ? not_a_number<T>() : T(0), thread, step);
}

template <class T>
struct Plan {
  Layout<T> usual, rare;
  bool has_rare, in_shared;
  int64_t rare_blocks;

  Plan(const Gpu& gpu, const EdgeAttentionArgs<T>& args)
      : usual(args, usual_edges(gpu, args)), rare(args, args.longest) {
    has_rare = args.longest > usual.most;
    in_shared = rare.bytes() <= gpu.limits().shared_bytes;
    const int64_t most = 2 * gpu.limits().multiprocessors;
    rare_blocks = args.atoms < most ? args.atoms : most;
  }
  // Size of the memory for rare atoms, if there may be any.
  int64_t memory() const { return has_rare && !in_shared ? rare_blocks * rare.size : 0; }

 private:
  static int64_t usual_edges(const Gpu& gpu, const EdgeAttentionArgs<T>& args) {
    int64_t edges = args.longest < kUsual ? args.longest : kUsual;
    while (edges > 0 && Layout<T>(args, edges).bytes() > gpu.limits().shared_bytes) edges /= 2;
    return edges;
  }
};

// Atoms with more than `above` edges, up to `most`, by the tensor cores.
template <int kMost, bool kBack>
void launch_tensor(const Gpu& gpu, const EdgeAttentionArgs<float>& args, int64_t above, int64_t most) {
  using Work = TensorWork<kMost, kBack>;
  // With few atoms, each has more warps.
  const int parts = args.heads >= 4 && args.atoms <= gpu.limits().multiprocessors ? 4 : 2;
  const int64_t all = std::max<int64_t>(args.atoms, 1), some = kBlocks * gpu.limits().multiprocessors;
  gpu.launch(attention_kernel<Work, float>, above < 0 ? all : std::min(all, some), 2 * parts * kWarp,
             Work::bytes(parts), args, TensorLayout{most, 0, parts}, above, static_cast<float*>(nullptr));
}
// The most edges of atoms that these kernels have handled.
template <class T, Pass pass>
int64_t launch_tensor(const Gpu& gpu, const EdgeAttentionArgs<T>& args) {
  if constexpr (std::is_same_v<T, float> && pass != Pass::second) {
    constexpr bool kBack = pass == Pass::backward;
    if (!by_tensor_cores(gpu, args) || TensorWork<6, kBack>::bytes(4) > gpu.limits().shared_bytes) return -1;
    // Few atoms need only one launch.
    const bool at_once = args.longest > 32 && args.atoms <= 2 * gpu.limits().multiprocessors;
    if (!at_once) launch_tensor<4, kBack>(gpu, args, -1, 32);
    if (args.longest > 32) launch_tensor<6, kBack>(gpu, args, at_once ? -1 : 32, 48);
    return 48;
  }
  return -1;
}

template <class T, Pass pass>
void launch(const Gpu& gpu, const EdgeAttentionArgs<T>& args, const Plan<T>& plan, T* memory) {
  const auto kernel = attention_kernel<AtomWork<T, pass>, T>;
  const int64_t usual = plan.usual.bytes(), rare = plan.in_shared ? plan.rare.bytes() : 0;
  const bool fits = usual <= gpu.limits().shared_bytes;
  const int64_t done = launch_tensor<T, pass>(gpu, args);
  if (done < plan.usual.most)
    gpu.launch(kernel, args.atoms > 0 ? args.atoms : 1, kThreads, fits ? usual : 0, args, plan.usual, done,
               static_cast<T*>(nullptr));
  if (args.longest > std::max(done, plan.usual.most))
    gpu.launch(kernel, plan.rare_blocks, kThreads, rare, args, plan.rare, std::max(done, plan.usual.most),
               plan.in_shared ? nullptr : memory);
}

template <class T>
void run(const Gpu& gpu, const EdgeAttentionArgs<T>& args, const Plan<T>& plan, T* memory) {
  if (args.along_q) return launch<T, Pass::second>(gpu, args, plan, memory);
  if (args.grad) return launch<T, Pass::backward>(gpu, args, plan, memory);
  launch<T, Pass::forward>(gpu, args, plan, memory);
}

}  // namespace mdops::gpu_edge_attention
