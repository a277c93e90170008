// The search on a GPU: a warp an atom. The rows of bins around it are concatenated, so that all lanes have a
// candidate at any density.
#pragma once

#include "neighbor/gpu_cells.h"

namespace mdops::gpu_search {

constexpr int kWarps = 4;  // a block

// 32 segments of sorted atoms, each with one lattice translation; one warp's, in shared memory.
struct Stretches {
  int32_t before[kWarp];  // candidates of the stretches before
  int32_t first[kWarp];   // in the sorted arrays
  float4 shift[kWarp];    // the translation, less the central atom's place; w: the translation, packed
};

// The bins around one, counted without regard to periodicity: rows x, y within reach, and the images of the
// grid that the bins within reach along z belong to.
struct Window {
  int32_t low[3], size[3];
  int32_t z_first, z_last;

  __device__ Window(const Grid& grid, int64_t bin) {
    const int32_t b[3] = {static_cast<int32_t>(bin / grid.bins[2] / grid.bins[1]),
                          static_cast<int32_t>(bin / grid.bins[2] % grid.bins[1]),
                          static_cast<int32_t>(bin % grid.bins[2])};
    int32_t last[3];
    for (int d = 0; d < 3; ++d) {
      low[d] = b[d] - grid.reach[d];
      last[d] = b[d] + grid.reach[d];
      if (!grid.periodic[d]) {
        low[d] = max(low[d], 0);
        last[d] = min(last[d], grid.bins[d] - 1);
      }
    }
    z_first = low[2];
    z_last = last[2];
    low[2] = image_of(grid, 2, z_first);
    last[2] = image_of(grid, 2, z_last);
    for (int d = 0; d < 3; ++d) size[d] = last[d] - low[d] + 1;
  }
  __device__ int32_t stretches() const { return size[0] * size[1] * size[2]; }
};

// The central atom of a warp.
struct Center {
  int64_t k, i;  // in the sorted arrays, and its own
  float4 place;
  const GpuSystem* system;
};

// Lane q of the warp sets stretch `index` of the window, for the atoms of one slot. Returns the candidates of
// all lanes.
__device__ inline int32_t set_stretch(const GpuCells& cells, const Center& center, const Window& window,
                                      int32_t slot, int32_t index, Stretches& stretches) {
  const Grid& grid = center.system->grid;
  const int lane = lane_index();
  int32_t length = 0;
  if (index < window.stretches()) {
    const int32_t x = window.low[0] + index / (window.size[1] * window.size[2]);
    const int32_t y = window.low[1] + index / window.size[2] % window.size[1];
    const int32_t m[3] = {image_of(grid, 0, x), image_of(grid, 1, y), window.low[2] + index % window.size[2]};
    const int64_t line =
        static_cast<int64_t>(x - m[0] * grid.bins[0]) * grid.bins[1] + y - m[1] * grid.bins[1];
    const int32_t low = max(window.z_first - m[2] * grid.bins[2], 0),
                  high = min(window.z_last - m[2] * grid.bins[2], grid.bins[2] - 1);
    const int32_t* start =
        cells.start + center.system->first_key + slot * grid.num_bins + line * grid.bins[2];
    stretches.first[lane] = start[low];
    length = start[high + 1] - start[low];
    double shift[3];
    for (int e = 0; e < 3; ++e)
      shift[e] = m[0] * grid.cell[0][e] + m[1] * grid.cell[1][e] + m[2] * grid.cell[2][e];
    stretches.shift[lane] = {
        static_cast<float>(shift[0] - center.place.x), static_cast<float>(shift[1] - center.place.y),
        static_cast<float>(shift[2] - center.place.z), __int_as_float(pack_image(m[0], m[1], m[2]))};
  }
  const int32_t sum = running_sum(length);
  stretches.before[lane] = sum - length;
  return __shfl_sync(kAllLanes, sum, kWarp - 1);
}

// Decided in float32: squared distances below `surely` are within, those from `maybe` on are not.
struct Bounds {
  float surely, maybe;

  __device__ Bounds(const GpuSystem& system, double cutoff) {
    const double error = squared_error(cutoff, system.radius + cutoff);
    surely = static_cast<float>(cutoff * cutoff - error);
    maybe = static_cast<float>(cutoff * cutoff + error);
    if (system.images_may_overflow) surely = -1;
  }
};

// Whether candidate k is within the cutoff, by the pair vector in float64; if so, its image.
__device__ inline bool within_exactly(const GpuAtoms& atoms, const GpuCells& cells, const Center& center,
                                      int64_t k, int32_t translation, int32_t* image) {
  const int64_t i = center.i, j = cells.atom[k];
  const int32_t m[3] = {image_shift(translation, 0), image_shift(translation, 1),
                        image_shift(translation, 2)};
  int32_t shift[3];
  double d[3];
  wrapped_pair(atoms.positions + 3 * i, atoms.positions + 3 * j, cells.wrap + 3 * i, cells.wrap + 3 * j, m,
               atoms.cell + 9 * static_cast<int64_t>(atoms.batch[i]), shift, d);
  if (is_beyond(center.system->grid, shift) || !(dot(d, d) <= atoms.cutoff * atoms.cutoff)) return false;
  for (int row = 0; row < 3; ++row)
    if (!shift_fits(shift[row])) refuse(cells.status, Refusal::kImage, i);
  *image = pack_image(shift[0], shift[1], shift[2]);
  return true;
}

// Writes the neighbours among the `candidates` of the stretches from place `found` of the row on; returns the
// new length of the row.
__device__ int64_t select(const GpuAtoms& atoms, const GpuCells& cells, const Center& center,
                          const Bounds& bounds, const Stretches& stretches, int32_t candidates, int64_t found,
                          const auto& writer) {
  const int32_t* wrap = cells.wrap + 3 * center.i;
  const int32_t own_image = pack_image(wrap[0], wrap[1], wrap[2]);
  for (int32_t base = 0; base < candidates; base += kWarp) {
    const int32_t c = base + lane_index();
    bool within = false;
    int32_t image = 0, neighbor = 0;
    if (c < candidates) {
      int q = 0;  // the last stretch that begins at c or before
      for (int step = kWarp / 2; step > 0; step /= 2)
        if (stretches.before[q + step] <= c) q += step;
      const float4 shift = stretches.shift[q];
      const int64_t k = stretches.first[q] + (c - stretches.before[q]);
      const float4 place = cells.place[k];
      const float x = place.x + shift.x, y = place.y + shift.y, z = place.z + shift.z;
      const float d2 = __fmaf_rn(x, x, __fmaf_rn(y, y, __fmul_rn(z, z)));
      const int32_t translation = __float_as_int(shift.w);
      if (d2 < bounds.maybe && !(k == center.k && translation == 0)) {
        neighbor = __float_as_int(place.w);
        within = true;
        if (d2 < bounds.surely)
          image = add_images(add_images(translation, own_image), cells.image[k]);
        else
          within = within_exactly(atoms, cells, center, k, translation, &image);
      }
    }
    const unsigned hits = __ballot_sync(kAllLanes, within);
    if (within) {
      const unsigned before = hits & ((1u << lane_index()) - 1);
      writer.put(center.i, found + __popc(before), neighbor, image);
    }
    found += __popc(hits);
  }
  return found;
}

// The row of every centre; those of virtual atoms are empty.
template <class Writer>
__global__ void __launch_bounds__(kWarps* kWarp) search(GpuAtoms atoms, GpuCells cells, Writer writer) {
  follow_kernels();
  __shared__ Stretches shared[kWarps];
  Stretches& stretches = shared[threadIdx.x / kWarp];
  const int64_t k = gpu_cells::thread_index() / kWarp;
  if (k >= atoms.size) return;
  const int64_t i = cells.atom[k];
  if (i >= atoms.centers) return;
  const uint32_t key = cells.key[k];
  int64_t found = 0;
  if (key < atoms.last_key()) {
    const GpuSystem& system = cells.systems[atoms.batch[i]];
    const Center center{k, i, cells.place[k], &system};
    const Window window(system.grid, (key - system.first_key) % system.grid.num_bins);
    const Bounds bounds(system, atoms.cutoff);
    for (int32_t slot = 0; slot < system.types; ++slot) {
      const int64_t before = found;
      for (int32_t first = 0; first < window.stretches(); first += kWarp) {
        __syncwarp();
        const int32_t candidates = set_stretch(cells, center, window, slot, first + lane_index(), stretches);
        __syncwarp();
        found = select(atoms, cells, center, bounds, stretches, candidates, found, writer);
      }
      const int64_t s = atoms.batch[i];
      writer.count(i, cells.type_in[s * atoms.slots() + slot], before, found);
    }
  }
  writer.finish(i, found);
}

}  // namespace mdops::gpu_search
