#include "neighbor/cpu_kernel.h"

#include "neighbor/neighbor.h"

#if defined(MDOPS_ISA_LEVEL_v3) || defined(MDOPS_ISA_LEVEL_v4)
#include <immintrin.h>
#endif

namespace mdops::MDOPS_ISA {

namespace {

// The vector operations of an instruction set. `compress` writes the elements whose bit is set to the front
// and may write anything to the rest of the kWidth elements.
#if defined(MDOPS_ISA_LEVEL_v4)

constexpr int kWidth = 16;
using Floats = __m512;
using Ints = __m512i;

MDOPS_HD Floats broadcast(float a) {
  return _mm512_set1_ps(a);
}
MDOPS_HD Floats load(const float* p) {
  return _mm512_loadu_ps(p);
}
MDOPS_HD Ints load(const int32_t* p) {
  return _mm512_loadu_si512(p);
}
// Masked with all ones: GCC 12 warns about the plain conversion in its own header.
MDOPS_HD Floats load_shifted(const double* p, double shift) {
  const __m512d s = _mm512_set1_pd(shift);
  const __m256 low = _mm512_maskz_cvtpd_ps(0xff, _mm512_add_pd(_mm512_loadu_pd(p), s));
  const __m256 high = _mm512_maskz_cvtpd_ps(0xff, _mm512_add_pd(_mm512_loadu_pd(p + 8), s));
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
MDOPS_HD uint32_t less(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
MDOPS_HD Floats beyond(Floats a, float half) {
  return _mm512_max_ps(_mm512_sub_ps(_mm512_abs_ps(a), _mm512_set1_ps(half)), _mm512_setzero_ps());
}
MDOPS_HD void compress(float* p, Floats a, uint32_t mask) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a));
}
MDOPS_HD void compress(int32_t* p, Ints a, uint32_t mask) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), a));
}
MDOPS_HD int count(uint32_t mask) {
  return _mm_popcnt_u32(mask);
}

#elif defined(MDOPS_ISA_LEVEL_v3)

constexpr int kWidth = 8;
using Floats = __m256;
using Ints = __m256i;

// order[mask]: the set bits of the mask from low to high, three bits each.
struct CompressOrder {
  uint32_t order[256];
  constexpr CompressOrder() : order() {
    for (uint32_t mask = 0; mask < 256; ++mask)
      for (uint32_t bit = 0, place = 0; bit < 8; ++bit)
        if (mask >> bit & 1) order[mask] |= bit << 3 * place++;
  }
};
constexpr CompressOrder kCompress;

MDOPS_HD Floats broadcast(float a) {
  return _mm256_set1_ps(a);
}
MDOPS_HD Floats load(const float* p) {
  return _mm256_loadu_ps(p);
}
MDOPS_HD Ints load(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
MDOPS_HD Floats load_shifted(const double* p, double shift) {
  const __m256d s = _mm256_set1_pd(shift);
  return _mm256_set_m128(_mm256_cvtpd_ps(_mm256_add_pd(_mm256_loadu_pd(p + 4), s)),
                         _mm256_cvtpd_ps(_mm256_add_pd(_mm256_loadu_pd(p), s)));
}
MDOPS_HD uint32_t less(Floats a, Floats b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
MDOPS_HD Floats beyond(Floats a, float half) {
  const Floats size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
  return _mm256_max_ps(_mm256_sub_ps(size, _mm256_set1_ps(half)), _mm256_setzero_ps());
}
// The permutation reads the low three bits of each element: all eight places come from one shifted word.
MDOPS_HD Ints compress_order(uint32_t mask) {
  return _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(kCompress.order[mask])),
                           _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21));
}
MDOPS_HD void compress(float* p, Floats a, uint32_t mask) {
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a, compress_order(mask)));
}
MDOPS_HD void compress(int32_t* p, Ints a, uint32_t mask) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(a, compress_order(mask)));
}
MDOPS_HD int count(uint32_t mask) {
  return _mm_popcnt_u32(mask);
}

#else

constexpr int kWidth = 1;
using Floats = float;
using Ints = int32_t;

MDOPS_HD Floats broadcast(float a) {
  return a;
}
MDOPS_HD Floats load(const float* p) {
  return *p;
}
MDOPS_HD Ints load(const int32_t* p) {
  return *p;
}
MDOPS_HD Floats load_shifted(const double* p, double shift) {
  return static_cast<float>(*p + shift);
}
MDOPS_HD uint32_t less(Floats a, Floats b) {
  return a < b;
}
MDOPS_HD Floats beyond(Floats a, float half) {
  const float size = (a < 0 ? -a : a) - half;
  return size > 0 ? size : 0;
}
MDOPS_HD void compress(float* p, Floats a, uint32_t) {
  *p = a;
}
MDOPS_HD void compress(int32_t* p, Ints a, uint32_t) {
  *p = a;
}
MDOPS_HD int count(uint32_t mask) {
  return static_cast<int>(mask);
}

#endif

static_assert(kPadding % kWidth == 0);

}  // namespace

int64_t gather_candidates(const Segment& s, const float* half, float reach2, const Candidates& out,
                          int64_t filled) {
  const int64_t first = filled;
  const Floats limit = broadcast(reach2);
  for (int64_t k = 0; k < s.size; k += kWidth) {
    const Floats x = load_shifted(s.x + k, s.shift[0]);
    const Floats y = load_shifted(s.y + k, s.shift[1]);
    const Floats z = load_shifted(s.z + k, s.shift[2]);
    const Floats dx = beyond(x, half[0]), dy = beyond(y, half[1]), dz = beyond(z, half[2]);
    uint32_t mask = less(dx * dx + dy * dy + dz * dz, limit);
    if (s.size - k < kWidth) mask &= (1u << (s.size - k)) - 1;
    compress(out.x + filled, x, mask);
    compress(out.y + filled, y, mask);
    compress(out.z + filled, z, mask);
    compress(out.atom + filled, load(s.atom + k), mask);
    compress(out.image + filled, load(s.image + k), mask);
    filled += count(mask);
  }
  if (s.shift_image != 0) shift_images(out.image + first, filled - first, s.shift_image);
  return filled;
}

int64_t select_within(const Candidates& c, int64_t begin, int64_t end, const float* centre, float surely,
                      float maybe, int32_t* atoms, int32_t* images) {
  const Floats cx = broadcast(centre[0]), cy = broadcast(centre[1]), cz = broadcast(centre[2]);
  const Floats low = broadcast(surely), high = broadcast(maybe);
  uint32_t undecided = 0;
  int64_t found = 0;
  for (int64_t k = begin; k < end; k += kWidth) {
    const Floats dx = load(c.x + k) - cx, dy = load(c.y + k) - cy, dz = load(c.z + k) - cz;
    const Floats d2 = dx * dx + dy * dy + dz * dz;
    const uint32_t mask = less(d2, low);
    undecided |= mask ^ less(d2, high);
    compress(atoms + found, load(c.atom + k), mask);
    compress(images + found, load(c.image + k), mask);
    found += count(mask);
  }
  return undecided ? -1 : found;
}

void shift_images(int32_t* images, int64_t n, int32_t image) {
  for (int64_t k = 0; k < n; ++k) images[k] = add_images(images[k], image);
}

}  // namespace mdops::MDOPS_ISA
