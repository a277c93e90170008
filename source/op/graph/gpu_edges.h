// The kernels that make edges and angles of a pair list, and their launches. A warp has an atom; a scan gives
// the number of items before it, so that nothing waits for the host.
#pragma once

#include "common/gpu.h"
#include "common/gpu_sort.h"
#include "common/rows.h"
#include "graph/edges.h"

namespace mdops::gpu_graph {

constexpr int kWarps = 4, kThreads = 256;

using Status = unsigned long long;
constexpr Status kFine = ~Status{0};

// The smallest code wins, and of its atoms the first.
MDOPS_D void refuse(Status* status, int64_t code, int64_t atom) {
  atomicMin(status, static_cast<Status>(code) << 40 | static_cast<Status>(atom));
}

// The result of a scan of sizes: how many items there are, and whether they are written.
struct Found {
  int64_t all;
  bool written;
  Status status;

  __device__ Found(const int64_t* after, int64_t atoms, const Status* status_, int64_t capacity)
      : all(atoms > 0 ? after[atoms - 1] : 0), written(false), status(*status_) {
    written = status == kFine && all <= capacity;
  }
  __device__ int64_t count() const { return written ? all : 0; }
  __device__ void tell(int64_t* needed) const {
    const bool refused = status != kFine;
    needed[0] = refused ? -static_cast<int64_t>(status >> 40) : all;
    needed[1] = refused ? static_cast<int64_t>(status & 0xffffffffff) : -1;
  }
};

// Memory of a call: for each atom, its number of items, and the total up to it.
struct Scan {
  int64_t *sizes = nullptr, *after = nullptr;
  Status* status = nullptr;
  char* memory = nullptr;
  size_t bytes = 0;

  Scan(const Gpu& gpu, int64_t atoms) {
    gpu.check(sum_up(nullptr, bytes, sizes, after, atoms, gpu.stream()));
  }
  void divide(Workspace& space, int64_t atoms) {
    sizes = space.take<int64_t>(atoms), after = space.take<int64_t>(atoms);
    status = space.take<Status>(1);
    memory = space.take<char>(static_cast<int64_t>(bytes));
  }
  void begin(const Gpu& gpu) const { gpu.check(cudaMemsetAsync(status, 0xff, sizeof(Status), gpu.stream())); }
  void run(const Gpu& gpu, int64_t atoms) {
    if (atoms > 0) gpu.check(sum_up(memory, bytes, sizes, after, atoms, gpu.stream()));
  }
};

template <class T>
struct EdgeMemory {
  Scan scan;
  // (N, K), each row from its first place on: of the neighbours within the cutoff, squared lengths and slots
  // in the row: k or, for a masked pair of types, ~k; and the slots that are edges.
  T* lengths;
  int32_t *near, *picked;

  EdgeMemory(const Gpu& gpu, const EdgeListArgs<T>& args) : scan(gpu, args.list.atoms) {}
  void divide(Workspace& space, const EdgeListArgs<T>& args) {
    scan.divide(space, args.list.atoms);
    lengths = space.take<T>(args.list.atoms * args.list.width);
    near = space.take<int32_t>(args.list.atoms * args.list.width);
    picked = space.take<int32_t>(args.list.atoms * args.list.width);
  }
};

MDOPS_D int count_lanes(bool is) {
  return __popc(__ballot_sync(kAllLanes, is));
}

// Whether a slot of an atom's row has a masked pair of types. Few models have such pairs: so the warp looks
// for them once per atom.
template <class T>
class Masks {
 public:
  // In a row without slots the atom's type may be wrong.
  __device__ Masks(const EdgeListArgs<T>& args, int64_t atom, bool has_slots)
      : counts_(args.list.counts + atom * args.list.ntypes),
        mask_(args.pair_mask + (has_slots ? args.list.types[atom] * args.list.ntypes : 0)) {
    bool some = false;
    for (int64_t t = lane_index(); has_slots && t < args.list.ntypes; t += kWarp) some |= mask_[t];
    some_ = __any_sync(kAllLanes, some);
  }

  __device__ bool masked(int64_t k) const {
    if (!some_) return false;
    int t = 0;
    for (int64_t last = counts_[0]; k >= last; last += counts_[t]) ++t;
    return mask_[t];
  }

 private:
  const int32_t* counts_;
  const bool* mask_;
  bool some_;
};

constexpr int kAtOnce = 4;  // slots of a lane that are loaded at once

// The neighbours of an atom within the cutoff, which all lanes of a warp find.
template <class T>
struct NearRow {
  int count = 0;  // -1: some neighbour is not an atom
  T* lengths;
  int32_t* slots;

  __device__ NearRow(const EdgeListArgs<T>& args, const EdgeMemory<T>& memory, int64_t atom, int64_t width)
      : lengths(memory.lengths + atom * args.list.width), slots(memory.near + atom * args.list.width) {
    const int64_t first = atom * args.list.width;
    const unsigned below = (1u << lane_index()) - 1;
    const Masks<T> masks(args, atom, width > 0);
    bool right = true;
    int inner = 0;
    for (int64_t from = 0; from < width; from += kAtOnce * kWarp) {
      T r2[kAtOnce];
      int32_t neighbors[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int64_t k = from + n * kWarp + lane_index();
        const bool there = k < width;
        r2[n] = there ? args.squared_distance(first + k) : T(0);
        neighbors[n] = there ? args.neighbors[first + k] : -1;
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        right &= neighbors[n] >= -1 && neighbors[n] < args.nodes;
        const bool is_near = neighbors[n] >= 0 && within_cutoff(r2[n], args.cutoff2);
        const unsigned lanes = __ballot_sync(kAllLanes, is_near);
        if (is_near) {
          const int at = count + __popc(lanes & below);
          const int slot = static_cast<int>(from + n * kWarp + lane_index());
          lengths[at] = r2[n], slots[at] = masks.masked(slot) ? ~slot : slot;
        }
        count += __popc(lanes), inner += count_lanes(is_near && args.within_angle_cutoff(r2[n]));
      }
    }
    if (lane_index() == 0) args.within[2 * atom] = count, args.within[2 * atom + 1] = inner;
    if (!__all_sync(kAllLanes, right)) count = -1;
    __syncwarp();
  }

  __device__ bool masked(int n) const { return slots[n] < 0; }
  __device__ int slot(int n) const { return masked(n) ? ~slots[n] : slots[n]; }
};

// How many neighbours within the cutoff come before each of a lane's, those from `from` on, kWarp apart; and
// how many of these are edges, if they have places.
template <class T, int kCount>
struct Ranks {
  T lengths[kCount];
  int place[kCount] = {}, edge[kCount] = {};

  __device__ Ranks(const EdgeListArgs<T>& args, int64_t atom, const NearRow<T>& row, int from) {
    const int64_t first = atom * args.list.width;
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int own = from + n * kWarp + lane;
      lengths[n] = own < row.count ? row.lengths[own] : T(0);
    }
    for (int begin = 0; begin < row.count; begin += kWarp) {
      const int next = begin + lane;
      const T length_of_lane = next < row.count ? row.lengths[next] : T(0);
      const int slot_of_lane = next < row.count ? row.slots[next] : 0;
      for (int k = 0; k < min(row.count - begin, kWarp); ++k) {
        const T length = __shfl_sync(kAllLanes, length_of_lane, k);
        const bool is_edge = __shfl_sync(kAllLanes, slot_of_lane, k) >= 0;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
          const int own = from + n * kWarp + lane, other = begin + k;
          bool before = length < lengths[n];
          if (length == lengths[n] && other != own && own < row.count)
            before = args.candidate(first + row.slot(other)).before(args.candidate(first + row.slot(own)));
          place[n] += before, edge[n] += before && is_edge;
        }
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) pick_kernel(EdgeListArgs<T> args, EdgeMemory<T> memory) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= args.list.atoms) return;
  const SlotArgs<T>& list = args.list;
  const int32_t* counts = list.counts + i * list.ntypes;
  const RowKind kind = row_kind(list.types[i], list.ntypes, counts, list.width);
  int64_t slots = 0;
  for (int t = 0; kind == RowKind::real && t < list.ntypes; ++t) slots += counts[t];
  const NearRow<T> row(args, memory, i, slots);
  if (row.count < 0 && lane_index() == 0) refuse(memory.scan.status, kWrongNeighbor, i);
  if (kind == RowKind::wrong && lane_index() == 0) refuse(memory.scan.status, kWrongRow, i);
  int edges = 0, angles = 0;
  const auto pick = [&]<int kCount>(int from) {
    const Ranks<T, kCount> ranks(args, i, row, from);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int n = from + k * kWarp + lane_index();
      const bool is_edge = n < row.count && !row.masked(n) && ranks.place[k] < args.edge_sel;
      if (is_edge)
        memory.picked[i * list.width + ranks.edge[k]] = static_cast<int32_t>(i * list.width + row.slot(n));
      edges += count_lanes(is_edge);
      angles += count_lanes(is_edge && args.makes_angles(ranks.place[k], ranks.lengths[k]));
    }
  };
  if (row.count <= kWarp) {
    pick.template operator()<1>(0);
  } else {
    for (int from = 0; from < row.count; from += kAtOnce * kWarp) pick.template operator()<kAtOnce>(from);
  }
  if (lane_index() > 0) return;
  memory.scan.sizes[i] = edges, args.angle_neighbors[i] = angles;
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    write_edges_kernel(EdgeListArgs<T> args, EdgeMemory<T> memory) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= args.list.atoms) return;
  const Found found(memory.scan.after, args.list.atoms, memory.scan.status, args.capacity);
  const int64_t width = args.list.width, size = memory.scan.sizes[i], start = memory.scan.after[i] - size;
  for (int64_t k = lane_index(); k < width; k += kWarp) args.edge_of_slot[i * width + k] = -1;
  __syncwarp();
  for (int64_t k = lane_index(); found.written && k < size; k += kWarp)
    args.write_edge(start + k, i, memory.picked[i * width + k]);
  if (lane_index() > 0) return;
  args.offsets[i] = static_cast<int32_t>(found.written ? start : 0);
  if (!found.written) args.angle_neighbors[i] = 0;
}

// Fills the rest after the last edge, and writes the counts.
template <class T>
__global__ void __launch_bounds__(kThreads) end_edges_kernel(EdgeListArgs<T> args, EdgeMemory<T> memory) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const Found found(memory.scan.after, args.list.atoms, memory.scan.status, args.capacity);
  if (e < args.capacity && e >= found.count()) args.write_no_edge(e);
  if (e > 0) return;
  args.offsets[args.list.atoms] = static_cast<int32_t>(found.count());
  found.tell(args.needed);
}

template <class T>
void run_edge_list(const Gpu& gpu, const EdgeListArgs<T>& args, EdgeMemory<T> memory) {
  const int64_t atoms = args.list.atoms, blocks = blocks_for(atoms, kWarps);
  memory.scan.begin(gpu);
  gpu.launch(pick_kernel<T>, blocks, kWarps * kWarp, 0, args, memory);
  memory.scan.run(gpu, atoms);
  gpu.launch(write_edges_kernel<T>, blocks, kWarps * kWarp, 0, args, memory);
  gpu.launch_for(args.capacity + 1, kThreads, end_edges_kernel<T>, args, memory);
}

static __global__ void __launch_bounds__(kThreads) reverse_kernel(ReverseArgs args) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e < args.edges) args.run(e);
}

inline void run_graph(const Gpu& gpu, const ReverseArgs& args) {
  gpu.launch_for(args.edges, kThreads, reverse_kernel, args);
}

// Keys to sort edges by: invalid ones come last.
static __global__ void __launch_bounds__(kThreads)
    order_keys_kernel(OrderArgs args, uint32_t* keys, int32_t* edges) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= args.edges) return;
  const int64_t index = args.index[e];
  keys[e] = static_cast<uint32_t>(index >= 0 && index < args.rows ? index : args.rows);
  edges[e] = static_cast<int32_t>(e);
}

// Where each row's keys begin, and -1 for invalid ones.
static __global__ void __launch_bounds__(kThreads) order_starts_kernel(OrderArgs args, const uint32_t* keys) {
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (m < args.edges && keys[m] == args.rows) args.order[m] = -1;
  if (m > args.rows) return;
  int64_t low = 0, high = args.edges;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < m)
      low = middle + 1;
    else
      high = middle;
  }
  args.offsets[m] = static_cast<int32_t>(low);
}

struct OrderMemory {
  uint32_t *keys = nullptr, *sorted = nullptr;
  int32_t* edges = nullptr;
  char* memory = nullptr;
  size_t bytes = 0;
  int bits = 0;

  OrderMemory(const Gpu& gpu, const OrderArgs& args) {
    for (int64_t most = args.rows; most > 0; most >>= 1) ++bits;
    bits = bits > 0 ? bits : 1;
    gpu.check(sort_pairs(nullptr, bytes, keys, sorted, edges, args.order, args.edges, bits, gpu.stream()));
  }
  void divide(Workspace& space, const OrderArgs& args) {
    keys = space.take<uint32_t>(args.edges), sorted = space.take<uint32_t>(args.edges);
    edges = space.take<int32_t>(args.edges);
    memory = space.take<char>(static_cast<int64_t>(bytes));
  }
};

inline void run_order(const Gpu& gpu, const OrderArgs& args, OrderMemory memory) {
  const int64_t most = args.rows + 1 > args.edges ? args.rows + 1 : args.edges;
  gpu.launch_for(args.edges, kThreads, order_keys_kernel, args, memory.keys, memory.edges);
  if (args.edges > 0)  // stable: the edges of a row keep their order
    gpu.check(sort_pairs(memory.memory, memory.bytes, memory.keys, memory.sorted, memory.edges, args.order,
                         args.edges, memory.bits, gpu.stream()));
  gpu.launch_for(most, kThreads, order_starts_kernel, args, memory.sorted);
}

static __global__ void __launch_bounds__(kThreads) count_angles_kernel(EdgeAngleArgs args, Scan scan) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.atoms) return;
  const bool fits = args.fits(i);
  const int64_t count = fits ? args.counts[i] : 0;
  if (!fits) refuse(scan.status, kWrongRow, i);
  scan.sizes[i] = count * count;
}

static __global__ void __launch_bounds__(kWarps* kWarp) write_angles_kernel(EdgeAngleArgs args, Scan scan) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= args.atoms) return;
  const Found found(scan.after, args.atoms, scan.status, args.capacity);
  if (!found.written) return;
  const int64_t size = scan.sizes[i], base = scan.after[i] - size, first = args.offsets[i];
  for (int64_t e = first + lane_index(); e < args.offsets[i + 1]; e += kWarp)
    args.angle_offsets[e] = args.angles_before(i, base, e - first);
  for (int64_t q = lane_index(); q < size; q += kWarp) args.write_angle(i, base, q);
}

static __global__ void __launch_bounds__(kThreads) end_angles_kernel(EdgeAngleArgs args, Scan scan) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const Found found(scan.after, args.atoms, scan.status, args.capacity);
  if (k < args.capacity && k >= found.count()) args.write_no_angle(k);
  if (k <= args.edges && (!found.written || k >= args.offsets[args.atoms]))
    args.angle_offsets[k] = static_cast<int32_t>(found.count());
  if (k == 0) found.tell(args.needed);
}

inline void run_angles(const Gpu& gpu, const EdgeAngleArgs& args, Scan scan) {
  const int64_t most = args.edges > args.capacity ? args.edges : args.capacity;
  scan.begin(gpu);
  gpu.launch_for(args.atoms, kThreads, count_angles_kernel, args, scan);
  scan.run(gpu, args.atoms);
  gpu.launch(write_angles_kernel, blocks_for(args.atoms, kWarps), kWarps * kWarp, 0, args, scan);
  gpu.launch_for(most + 1, kThreads, end_angles_kernel, args, scan);
}

}  // namespace mdops::gpu_graph

namespace mdops {
using gpu_graph::run_graph;
}
