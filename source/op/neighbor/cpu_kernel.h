// The inner loops of the neighbour search, compiled for each instruction set.
#pragma once

#include "common/isa.h"

namespace mdops {

// Atoms that may be neighbours of the atoms of one bin: positions relative to the bin's middle, the atom, and
// the image that brings it here from its home. The arrays have kPadding more elements than are used.
struct Candidates {
  float *x, *y, *z;
  int32_t *atom, *image;
};

// Atoms that lie one after the other in the sorted arrays, moved by `shift`, which is the lattice translation
// `image` less the bin's middle. The arrays may be read kPadding elements beyond the end.
struct Segment {
  const double *x, *y, *z;
  const int32_t *atom, *image;
  int64_t size;
  double shift[3];
  int32_t shift_image;
};

constexpr int64_t kPadding = 16;
// A coordinate near no atom, with a square that is finite in float32.
constexpr float kFarAway = 1e18f;

// Appends to the `filled` candidates those atoms of the segment whose squared distance from the box of half
// widths `half` around the origin is below reach2. Returns the new number.
MDOPS_DECLARE_KERNEL(int64_t gather_candidates(const Segment& segment, const float* half, float reach2,
                                               const Candidates& out, int64_t filled))

// Writes atom and image of the candidates in [begin, end) that lie within the cutoff of `centre` and returns
// their number; end - begin is a multiple of kPadding. Squared distances below `surely` are within and those
// above `maybe` are not; returns -1 if one lies between, where float32 cannot decide.
MDOPS_DECLARE_KERNEL(int64_t select_within(const Candidates& candidates, int64_t begin, int64_t end,
                                           const float* centre, float surely, float maybe, int32_t* atoms,
                                           int32_t* images))

// images[k] += image, packed
MDOPS_DECLARE_KERNEL(void shift_images(int32_t* images, int64_t n, int32_t image))

}  // namespace mdops
