// Attention without tensor cores: every dtype, width and derivative. A block keeps 16 rows of one head of
// a sequence, and loops over the sequence in tiles of 16:
//
//   thread (r, c) of 16 x 16     the pair of own row r and other row c: its products over the width, in
//                                shared memory 32 columns at a time, and its coefficients
//   then, of own row r           columns c, c + 16, ... of sums over the other rows
//
// Own rows are queries or, for the gradients of k and v, keys. Sums have a fixed order: the same bits in
// every run.
#pragma once

#include "attention/gpu_args.h"

namespace mdops::gpu_attention {

constexpr int kSide = 16, kPlainThreads = kSide * kSide, kChunk = 32;
constexpr int kSubtiles = kPlanTile / kSide;
constexpr int kColumnsEach = kMostAttentionWidth / kSide;

enum class Side { queries, keys };

template <class A>
struct PlainMemory {
  A tile[4][kSide][kChunk + 1];
  A coefficient[4][kSide][kSide + 1];
};

// The work of a block of a plain kernel; none if `count` is 0.
struct PlainBlock {
  WorkItem item;
  int head, own, count;  // its rows within the sequence
};

// The `block`-th; all threads call it.
template <class T>
MDOPS_D PlainBlock plain_block(const TensorArgs<T>& p, int block = blockIdx.x) {
  const int head = block % p.heads, index = block / p.heads;
  if (is_bad(p.bad) || index / kSubtiles >= p.plan[0]) return {};
  const WorkItem item = work_item(p, index / kSubtiles);
  const int own = item.first + index % kSubtiles * kSide;
  return {item, head, own, max(0, min(kSide, item.length - own))};
}

template <class T, class A>
MDOPS_D void load_chunk(A (&to)[kSide][kChunk + 1], const T* from, int64_t stride, int rows, int columns) {
  for (int k = threadIdx.x; k < kSide * kChunk; k += kPlainThreads) {
    const int r = k / kChunk, c = k % kChunk;
    to[r][c] = r < rows && c < columns ? static_cast<A>(number(from[r * stride + c])) : A(0);
  }
}

// Rows of a sequence in a tile: the first, and how many.
struct TileRows {
  int first, count;
};

// The products of a pair, q_j.k_l or G_j.v_l, and with directions their change; one of them may be null, and
// counts as zero.
template <bool Second, class T, class A>
MDOPS_D void products(const TensorArgs<T>& p, const PlainBlock& b, bool of_values, const T* x, const T* y,
                      const T* x1, const T* y1, TileRows queries, TileRows keys, int j, int l,
                      PlainMemory<A>& memory, A* product, A* change) {
  const int first = b.item.begin + queries.first, first_key = b.item.begin + keys.first;
  const int width = of_values ? p.value_width : p.width;
  const int64_t query = of_values ? p.row(first, b.head, width) : p.key(first, b.head);
  const int64_t key = of_values ? p.value(first_key, b.head) : p.key(first_key, b.head);
  const int stride = of_values ? p.heads * width : p.key_stride,
            key_stride = of_values ? p.value_stride : p.key_stride;
  A sum = 0, sum1 = 0;
  for (int d0 = 0; d0 < width; d0 += kChunk) {
    const int columns = min(kChunk, width - d0);
    __syncthreads();
    load_chunk(memory.tile[0], x + query + d0, stride, queries.count, columns);
    load_chunk(memory.tile[1], y + key + d0, key_stride, keys.count, columns);
    if constexpr (Second) {
      if (x1) load_chunk(memory.tile[2], x1 + query + d0, stride, queries.count, columns);
      if (y1) load_chunk(memory.tile[3], y1 + key + d0, key_stride, keys.count, columns);
    }
    __syncthreads();
    for (int d = 0; d < columns; ++d) sum += memory.tile[0][j][d] * memory.tile[1][l][d];
    if constexpr (Second) {
      if (x1)
        for (int d = 0; d < columns; ++d) sum1 += memory.tile[2][j][d] * memory.tile[1][l][d];
      if (y1)
        for (int d = 0; d < columns; ++d) sum1 += memory.tile[0][j][d] * memory.tile[3][l][d];
    }
  }
  *product = sum;
  if constexpr (Second) *change = sum1;
}

// Rows j and l of the sequence in the formulas, after their products.
template <bool Second, class T, class A>
MDOPS_D void finish_inputs(const TensorArgs<T>& p, const Directions<T>& u, const PlainBlock& b, int j, int l,
                           PairInputs<A>* i) {
  i->s *= p.scale, i->s1 *= p.scale;
  const int64_t at = b.head * p.bias_size + b.item.bias + static_cast<int64_t>(j) * b.item.length + l;
  const int64_t row_j = b.item.begin + j, row_l = b.item.begin + l;
  if (p.bias) i->s += number(p.bias[at]);
  if (Second && u.bias) i->s1 += number(u.bias[at]);
  i->a = i->c = 1, i->a1 = i->c1 = 0;
  if (p.switches) {
    const A w_j = number(p.switches[row_j]), w_l = number(p.switches[row_l]);
    i->a = w_j * w_l;
    if (Second && u.switches) i->a1 = number(u.switches[row_j]) * w_l + w_j * number(u.switches[row_l]);
  }
  if (p.gate) {
    A sum = 0, sum1 = 0;
    for (int k = 0; k < p.gates; ++k) {
      const A g_j = number(p.gate[row_j * p.gates + k]), g_l = number(p.gate[row_l * p.gates + k]);
      sum += g_j * g_l;
      if (Second && u.gate)
        sum1 += number(u.gate[row_j * p.gates + k]) * g_l + g_j * number(u.gate[row_l * p.gates + k]);
    }
    i->c = sum, i->c1 = sum1;
  }
}

// sum[] += c y over the rows of a tile, with c of this thread's own row.
template <class T, class A>
MDOPS_D void add_rows(const A (&c)[kSide + 1], const T* y, int64_t stride, int rows, int width,
                      A (&sum)[kColumnsEach]) {
  const int column = threadIdx.x % kSide;
  for (int k = 0; k < rows; ++k) {
    const T* from = y + k * stride + column;
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n) {
      if (n * kSide >= width) break;
      if (column + n * kSide < width) sum[n] += c[k] * number(from[n * kSide]);
    }
  }
}

template <class T, class A>
MDOPS_D void put_row(T* to, int width, const A (&sum)[kColumnsEach], A factor) {
  const int column = threadIdx.x % kSide;
#pragma unroll
  for (int n = 0; n < kColumnsEach; ++n)
    if (column + n * kSide < width) put(to + column + n * kSide, factor * sum[n]);
}

// Over the 16 threads of a row.
template <class A>
MDOPS_D A row_sum(A x) {
  return warp_sum<kSide>(x);
}
template <class A>
MDOPS_D A row_largest(A x) {
  return join_lanes<kSide>(x, [](A a, A b) { return a > b ? a : b; });
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_forward_kernel(TensorArgs<T> p, ForwardResults<T> results) {
  using A = Sums<T>;
  __shared__ PlainMemory<A> memory;
  const PlainBlock b = plain_block(p);
  if (b.count == 0) return;
  const int r = threadIdx.x / kSide, c = threadIdx.x % kSide;
  const A lowest = -static_cast<A>(__int_as_float(0x7f800000));
  A largest = p.absent ? A(0) : lowest, total = p.absent ? p.absent[b.item.sequence] : A(0);
  A sum[kColumnsEach] = {};
  for (int other = 0; other < b.item.length; other += kSide) {
    const TileRows keys{other, min(kSide, b.item.length - other)};
    PairInputs<A> i{};
    products<false>(p, b, false, p.q, p.k, static_cast<const T*>(nullptr), static_cast<const T*>(nullptr),
                    {b.own, b.count}, keys, r, c, memory, &i.s, &i.s1);
    const bool real = r < b.count && c < keys.count;
    A z = lowest;
    if (real) {
      finish_inputs<false>(p, Directions<T>{}, b, b.own + r, other + c, &i);
      z = logit(i.s, i.a, p.shift, p.switches != nullptr);
    }
    const A now = row_largest(largest > z ? largest : z), base = now == lowest ? A(0) : now;
    const A old = exp(largest - base), e = real ? exp(z - base) : A(0);
    largest = now;
    total = total * old + row_sum(e);
    memory.coefficient[0][r][c] = e * i.c * i.a;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n) sum[n] *= old;
    add_rows(memory.coefficient[0][r], p.v + p.value(b.item.begin + other, b.head), p.value_stride,
             keys.count, p.value_width, sum);
  }
  if (r >= b.count) return;
  const int row = b.item.begin + b.own + r;
  put_row(results.out + p.row(row, b.head, p.value_width), p.value_width, sum, inverse_of_sum(total));
  if (c == 0) results.logsumexp[static_cast<int64_t>(row) * p.heads + b.head] = largest + log(total);
}

// delta_j = G_j.o_j, a warp per row and head.
template <class T>
__global__ void __launch_bounds__(kPlainThreads) delta_kernel(TensorArgs<T> p, GradientArgs<T> g) {
  using A = Sums<T>;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kPlainThreads + threadIdx.x) / kWarp;
  if (row >= static_cast<int64_t>(p.rows) * p.heads) return;
  A sum = 0;
  for (int e = lane_index(); e < p.value_width; e += kWarp)
    sum += static_cast<A>(number(g.grad_out[row * p.value_width + e])) *
           static_cast<A>(number(g.out[row * p.value_width + e]));
  sum = warp_sum(sum);
  if (lane_index() == 0) g.delta[row] = sum;
}

// o', the change of the result along the directions, and the second derivative's other numbers of a query.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_change_kernel(TensorArgs<T> p, GradientArgs<T> g, Directions<T> u) {
  using A = Sums<T>;
  __shared__ PlainMemory<A> memory;
  const PlainBlock b = plain_block(p);
  if (b.count == 0) return;
  const int r = threadIdx.x / kSide, c = threadIdx.x % kSide, row = b.item.begin + b.own + r;
  const int64_t of_row = static_cast<int64_t>(row) * p.heads + b.head;
  const A logsumexp = r < b.count ? g.logsumexp[of_row] : A(0);
  A sum[kColumnsEach] = {}, out[kColumnsEach] = {}, mean = 0;  // o again: 16 bits are not enough below
  for (int other = 0; other < b.item.length; other += kSide) {
    const TileRows keys{other, min(kSide, b.item.length - other)};
    PairInputs<A> i{};
    products<true>(p, b, false, p.q, p.k, u.q, u.k, {b.own, b.count}, keys, r, c, memory, &i.s, &i.s1);
    A of_v = 0, of_change = 0;
    if (r < b.count && c < keys.count) {
      finish_inputs<true>(p, u, b, b.own + r, other + c, &i);
      const PairChange<A> pair = pair_change(i, p.shift, p.switches != nullptr, logsumexp);
      mean += pair.mean, of_v = pair.of_v, of_change = pair.pm;
    }
    memory.coefficient[0][r][c] = of_v, memory.coefficient[1][r][c] = of_change;
    __syncthreads();
    const int64_t at = p.value(b.item.begin + other, b.head), stride = p.value_stride;
    add_rows(memory.coefficient[0][r], p.v + at, stride, keys.count, p.value_width, sum);
    add_rows(memory.coefficient[1][r], p.v + at, stride, keys.count, p.value_width, out);
    if (u.v) add_rows(memory.coefficient[1][r], u.v + at, stride, keys.count, p.value_width, sum);
  }
  mean = row_sum(mean);
  A change = 0, delta = 0;
  const int64_t at = p.row(row, b.head, p.value_width);
  if (r < b.count) {
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n) {
      const int e = c + n * kSide;
      if (e >= p.value_width) continue;
      const A grad = number(g.grad_out[at + e]);
      sum[n] -= mean * out[n];
      change += sum[n] * grad, delta += out[n] * grad;
    }
  }
  change = row_sum(change), delta = row_sum(delta);
  if (r >= b.count) return;
  put_row(g.grad_grad_out + at, p.value_width, sum, A(1));
  if (c == 0) g.mean[of_row] = mean, g.delta[of_row] = delta, g.delta_change[of_row] = change;
}

// The gradients, or their changes along the directions: by q and bias if own rows are queries, by k and v if
// they are keys; both by gate and switch.
template <class T, Side Own, bool Second>
__global__ void __launch_bounds__(kPlainThreads)
    plain_gradient_kernel(TensorArgs<T> p, GradientArgs<T> g, Directions<T> u) {
  using A = Sums<T>;
  constexpr bool kQueries = Own == Side::queries;
  __shared__ PlainMemory<A> memory;
  const PlainBlock b = plain_block(p);
  if (b.count == 0) return;
  const int r = threadIdx.x / kSide, c = threadIdx.x % kSide;
  const int64_t value_stride = static_cast<int64_t>(p.heads) * p.value_width;
  const bool switched = p.switches != nullptr;
  A sum[kColumnsEach] = {}, value_sum[kQueries ? 1 : kColumnsEach] = {}, part[kMostGate + 1] = {};
  for (int other = 0; other < b.item.length; other += kSide) {
    const TileRows own{b.own, b.count}, others{other, min(kSide, b.item.length - other)};
    const TileRows queries = kQueries ? own : others, keys = kQueries ? others : own;
    const int j = kQueries ? r : c, l = kQueries ? c : r;
    PairInputs<A> i{};
    products<Second>(p, b, false, p.q, p.k, u.q, u.k, queries, keys, j, l, memory, &i.s, &i.s1);
    products<Second>(p, b, true, g.grad_out, p.v, static_cast<const T*>(nullptr), u.v, queries, keys, j, l,
                     memory, &i.t, &i.t1);
    PairGradients<A> pair{};
    if (r < b.count && c < others.count) {
      const int row_j = queries.first + j, row_l = keys.first + l;
      finish_inputs<Second>(p, u, b, row_j, row_l, &i);
      const int64_t of_query = static_cast<int64_t>(b.item.begin + row_j) * p.heads + b.head;
      pair =
          pair_gradients<Second>(i, p.shift, switched, g.logsumexp[of_query], g.delta[of_query],
                                 Second ? g.mean[of_query] : A(0), Second ? g.delta_change[of_query] : A(0));
      if (kQueries && g.grad_bias)
        put(g.grad_bias + b.head * p.bias_size + b.item.bias + static_cast<int64_t>(row_j) * b.item.length +
                row_l,
            Second ? pair.x1 : pair.x);
      // By the other row's gate and switch, and by their directions.
      const int64_t row = b.item.begin + other + c;
      const A e = Second ? pair.e1 : pair.e, of_switch = Second ? pair.b1 : pair.b;
      if (p.gate) {
#pragma unroll
        for (int k = 0; k < kMostGate; ++k) {
          if (k >= p.gates) break;
          part[k] += e * static_cast<A>(number(p.gate[row * p.gates + k]));
          if (Second && u.gate) part[k] += pair.e * static_cast<A>(number(u.gate[row * p.gates + k]));
        }
      }
      if (switched) {
        part[kMostGate] += of_switch * static_cast<A>(number(p.switches[row]));
        if (Second && u.switches) part[kMostGate] += pair.b * static_cast<A>(number(u.switches[row]));
      }
    }
    memory.coefficient[0][r][c] = Second ? pair.x1 : pair.x;
    if (Second) memory.coefficient[1][r][c] = pair.x;
    if (!kQueries) memory.coefficient[2][r][c] = Second ? pair.pm1 : pair.pm;
    __syncthreads();
    const int64_t at = p.key(b.item.begin + other, b.head), stride = p.key_stride;
    add_rows(memory.coefficient[0][r], (kQueries ? p.k : p.q) + at, stride, others.count, p.width, sum);
    if constexpr (Second) {
      const T* direction = kQueries ? u.k : u.q;
      if (direction) add_rows(memory.coefficient[1][r], direction + at, stride, others.count, p.width, sum);
    }
    if constexpr (!kQueries)
      add_rows(memory.coefficient[2][r], g.grad_out + p.row(b.item.begin + other, b.head, p.value_width),
               value_stride, others.count, p.value_width, value_sum);
  }
  const int row = b.item.begin + b.own + r;
  const bool has_parts = p.gate != nullptr || switched;
  A* const parts =
      g.parts + (static_cast<int64_t>((kQueries ? 0 : p.heads) + b.head) * p.rows + row) * (p.gates + 1);
  if (has_parts) {
#pragma unroll
    for (int k = 0; k <= kMostGate; ++k) {
      const A total = row_sum(part[k]);
      if (r < b.count && c == 0 && (k < p.gates || k == kMostGate)) parts[min(k, p.gates)] = total;
    }
  }
  if (r >= b.count) return;
  put_row((kQueries ? g.grad_q : g.grad_k) + p.key(row, b.head), p.width, sum, p.scale);
  if constexpr (!kQueries) put_row(g.grad_v + p.value(row, b.head), p.value_width, value_sum, A(1));
}

// The gradients of gate and switch: their parts of both sides and all heads, in order. A thread per row.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    sum_parts_kernel(TensorArgs<T> p, const Sums<T>* parts, int count, T* grad_gate, T* grad_switch) {
  const bool bad = is_bad(p.bad);
  const int columns = p.gates + 1;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPlainThreads + threadIdx.x;
  if (row >= p.rows) return;
  const bool real = p.sequences > 0 && !bad && row >= p.offsets[0] && row < p.offsets[p.sequences];
  if (p.leaves_rest && !bad && !real) return;
  const auto is_asked = [&](int column) {
    return column < p.gates ? grad_gate != nullptr : column == p.gates && grad_switch != nullptr;
  };
  Sums<T> sum[kMostGate + 1];
#pragma unroll
  for (int column = 0; column <= kMostGate; ++column)
    sum[column] = bad ? not_a_number<Sums<T>>() : Sums<T>(0);
  for (int n = 0; real && n < count; ++n) {
    const Sums<T>* const part = parts + (static_cast<int64_t>(n) * p.rows + row) * columns;
#pragma unroll
    for (int column = 0; column <= kMostGate; ++column)
      if (is_asked(column)) sum[column] += part[column];
  }
#pragma unroll
  for (int column = 0; column <= kMostGate; ++column)
    if (is_asked(column))
      put(column < p.gates ? grad_gate + row * p.gates + column : grad_switch + row, sum[column]);
}

}  // namespace mdops::gpu_attention
