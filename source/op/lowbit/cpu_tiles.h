// Products of int8 and ternary numbers of one group by AMX's tiles, among the loops of x86-64-v4. Included by
// cpu_kernel.cpp where B's panels are packed. No `#pragma once`.
//
// A is prepared as tiles of 16 rows and 64 of the depth, [row / 16][k / 64][row % 16][k % 64], filled up with
// zeros; B's panels have such tiles, too. A piece has as many panels as stay in the L2 cache. They multiply
// kBandRows rows of A, which come from further away, in parts of the depth that stay in the L1 cache with a
// column of B's tiles.

constexpr int kTileWords = kTile * kTile, kTileSteps = 8, kBandRows = 4 * kTile;
constexpr int64_t kNearBytes = int64_t{1} << 20, kMostPanels = 8;

// Sums over `steps` tiles of the depth, of one or two rows of A's tiles (`next` words apart) by a column of
// B's. Four tiles are in use, and each is zeroed before it is loaded again: gemm/bf16_kernel.cpp has the
// reason.
template <bool SecondRow>
MDOPS_AMX void multiply_tiles(const int32_t* a, int64_t next, const int32_t* b, int64_t steps,
                              bool accumulate, int32_t* to) {
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  if (accumulate) {
    _tile_loadd(0, to, 64);
    if (SecondRow) _tile_loadd(1, to + kTileWords, 64);
  }
  for (int64_t step = 0; step < steps; ++step, a += kTileWords, b += kTileWords) {
    _tile_zero(3);
    _tile_loadd(3, b, 64);
    _tile_zero(2);
    _tile_loadd(2, a, 64);
    _tile_dpbssd(0, 2, 3);
    if (SecondRow) {
      _tile_zero(2);
      _tile_loadd(2, a + next, 64);
      _tile_dpbssd(1, 2, 3);
    }
  }
  _tile_stored(0, to, 64);
  if (SecondRow) _tile_stored(1, to + kTileWords, 64);
  asm volatile("" ::: "memory");
}

int64_t depth_words(const LowBitProduct& p) {
  return row_words(p, LowBitChip::tiles);
}
// Bytes of all of A's tiles.
int64_t prepared_bytes(const LowBitProduct& p) {
  return 4 * ((p.rows + kTile - 1) / kTile * kTile) * depth_words(p);
}
// Whether each thread prepares the rows of its pieces itself: these few are prepared faster than they come
// from another thread's cache.
bool has_own_rows(const LowBitProduct& p) {
  return prepared_bytes(p) <= kNearBytes;
}

// A thread's memory: `wide` panels and their scales, the sums of kBandRows rows, and a block's rows of A.
struct TileScratch {
  int32_t *panels, *tiles,
      *rows;      // (wide, words, kDotColumns), (columns / 16, kBandRows, 16), (block, words)
  float* scales;  // (wide, kDotColumns)
  int64_t bytes;

  TileScratch(const LowBitProduct& p, int64_t wide, int64_t block, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    panels = arena.take<int32_t>(wide * depth_words(p) * kDotColumns);
    tiles = arena.take<int32_t>(wide * kBandRows * kDotColumns);
    rows = arena.take<int32_t>(has_own_rows(p) ? block * depth_words(p) : 0);
    scales = arena.take<float>(wide * kDotColumns);
    bytes = arena.used;
  }
};

// As many panels as stay in the cache, if A does not, but two pieces a thread; with too few columns for that,
// blocks of rows.
LowBitCut cut_tiles(const LowBitProduct& p, int64_t threads) {
  const auto parts_of = [](int64_t all, int64_t part) { return (all + part - 1) / part; };
  const int64_t words = depth_words(p), panels = parts_of(p.cols, kDotColumns);
  const int64_t fit = kNearBytes / (4 * kDotColumns * (words > 0 ? words : 1));
  int64_t wide = fit < 1 || has_own_rows(p) ? 1 : fit > kMostPanels ? kMostPanels : fit;
  while (wide > 1 && parts_of(panels, wide) < 2 * threads) --wide;
  wide = parts_of(panels, parts_of(panels, wide));
  const int64_t blocks = parts_of(2 * threads, parts_of(panels, wide));
  const int64_t block = parts_of(parts_of(p.rows, blocks), kBandRows) * kBandRows;
  return {wide * kDotColumns, block, has_own_rows(p) ? 0 : prepared_bytes(p),
          TileScratch(p, wide, block, nullptr).bytes};
}

// Rows [begin, end) of A; row `first`, the first of a tile, is at the start of `to`.
void prepare_tiles(const LowBitProduct& p, int64_t first, int64_t begin, int64_t end, void* to) {
  const int64_t row_bytes = 4 * depth_words(p);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t below = row - first;
    const uint8_t* from = p.a + row * p.depth;
    uint8_t* tile =
        static_cast<uint8_t*>(to) + below / kTile * kTile * row_bytes + below % kTile * kTileDepth;
    for (int64_t k = 0; k < p.depth; k += kTileDepth, tile += 4 * kTileWords) {
      const int64_t left = p.depth - k;
      if (left >= kTileDepth) {
        std::memcpy(tile, from + k, kTileDepth);
      } else {
        std::memset(tile, 0, kTileDepth);
        std::memcpy(tile, from + k, left);
      }
    }
  }
}

// The sums of at most kBandRows rows by so many columns.
void band_sums(const LowBitProduct& p, const int32_t* a, int64_t rows, int64_t columns,
               const TileScratch& scratch) {
  const int64_t words = depth_words(p), next = kTile * words, steps = words / kTile;
  int64_t step = 0;
  do {  // also once for depth 0, with sums of zero
    const int64_t count = steps - step < kTileSteps ? steps - step : kTileSteps;
    for (int64_t column = 0; column < columns; column += kTile) {
      const int32_t* right = scratch.panels + column * words + step * kTileWords;
      for (int64_t row = 0; row < rows; row += 2 * kTile) {
        const int32_t* left = a + row / kTile * next + step * kTileWords;
        int32_t* const sum = scratch.tiles + column * kBandRows + row * kTile;
        row + kTile < rows ? multiply_tiles<true>(left, next, right, count, step > 0, sum)
                           : multiply_tiles<false>(left, next, right, count, step > 0, sum);
      }
    }
    step += kTileSteps;
  } while (step < steps);
}

// Rows [row, row + rows) of C, at most kBandRows, in the columns of the panels, of which the first is
// `first`.
void multiply_band(const LowBitProduct& p, const int32_t* a, int64_t row, int64_t rows, int64_t first,
                   int64_t panels, const TileScratch& scratch) {
  band_sums(p, a, rows, panels * kDotColumns, scratch);
  alignas(64) float sum[kDotColumns];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t w = 0; w < panels; ++w) {
      const int32_t* tiles = scratch.tiles + w * kDotColumns * kBandRows + r * kTile;
      MDOPS_UNROLL
      for (int n = 0; n < kDotColumns; n += kTile)
        add_group(tiles + n * kBandRows, 0, scratch.scales + w * kDotColumns + n, sum + n, kTile, true);
      finish_row(p, row + r, first + w * kDotColumns, sum);
    }
}

void tile_pieces(const LowBitProduct& p, const LowBitCut& cut, int64_t begin, int64_t end,
                 const void* prepared, void* memory) {
  const int64_t blocks = (p.rows + cut.block - 1) / cut.block, words = depth_words(p);
  const TileScratch scratch(p, cut.panel / kDotColumns, cut.block, memory);
  int64_t packed = -1, rows_from = -1;
  begin_tiles();
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t first = piece / blocks * cut.panel, left = p.cols - first;
    const int64_t panels = ((left < cut.panel ? left : cut.panel) + kDotColumns - 1) / kDotColumns;
    for (int64_t w = 0; w < panels && packed != first; ++w) {
      pack_panel<LowBitChip::tiles>(p, first + w * kDotColumns, scratch.panels + w * words * kDotColumns);
      put_scales(p, first + w * kDotColumns, scratch.scales + w * kDotColumns);
    }
    packed = first;
    const int64_t top = piece % blocks * cut.block, last = top + cut.block;
    const int64_t bottom = last < p.rows ? last : p.rows;
    if (has_own_rows(p) && rows_from != top) prepare_tiles(p, top, top, bottom, scratch.rows);
    rows_from = top;
    const int32_t* a = has_own_rows(p) ? scratch.rows : static_cast<const int32_t*>(prepared) + top * words;
    for (int64_t row = top; row < bottom; row += kBandRows, a += kBandRows * words)
      multiply_band(p, a, row, bottom - row < kBandRows ? bottom - row : kBandRows, first, panels, scratch);
  }
  end_tiles();
}
