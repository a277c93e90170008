// Products by AMX's tiles, emulated, against float64: test_tiles.py builds it with gemm/bf16_kernel.cpp.
// Prints of each number of parts the largest error of a sum, relative to the sum of its products' sizes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "gemm/bf16.h"

namespace {

using namespace mdops;

constexpr int64_t kPanel = 48;
const Bf16Units& units = MDOPS_ISA::bf16_units;

struct Case {
  int parts;
  int64_t rows, lanes, depth;
  bool up, by_rows, accumulate;  // how the weights lie, and the lanes' numbers; whether C is added to
};

std::mt19937 generator(1);

std::vector<float> random(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(generator);
  return numbers;
}

// The place of a lane's number in panels of `rows` rows.
int64_t place(int64_t row, int64_t rows, int64_t lane, int64_t lanes) {
  const int64_t panel = lane / kPanel * kPanel, wide = std::min(kPanel, lanes - panel);
  return panel * rows + row * wide + lane - panel;
}

struct Tiles {
  std::vector<uint16_t> memory;
  explicit Tiles(int64_t size) : memory(size + 32) {}
  uint16_t* data() {
    void* at = memory.data();
    size_t room = 2 * memory.size();
    return static_cast<uint16_t*>(std::align(64, 64, at, room));
  }
};

double error(const Case& of) {
  const auto [parts, rows, lanes, depth, up, by_rows, accumulate] = of;
  const std::vector<float> w = random(rows * depth), x = random(lanes * depth), c = random(rows * lanes);
  const int64_t count = by_rows ? lanes - 3 : lanes;  // the lanes beyond have no row
  std::vector<float> panels(depth * lanes), result(rows * lanes);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int64_t k = 0; k < depth; ++k) panels[place(k, depth, lane, lanes)] = x[lane * depth + k];
    for (int64_t r = 0; r < rows; ++r) result[place(r, rows, lane, lanes)] = c[r * lanes + lane];
  }
  std::vector<Tiles> tiles;
  std::vector<Bf16Piece> pieces;
  const int64_t cut = depth > 256  ? 290
                      : depth > 40 ? 37
                                   : depth;  // pieces beyond what is multiplied at once, too
  for (int64_t from = 0; from < depth; from += cut) {
    const int64_t deep = std::min(cut, depth - from);
    std::vector<float> own(rows * deep);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < deep; ++k) own[up ? k * rows + r : r * deep + k] = w[r * depth + from + k];
    const Bf16Weights weights{own.data(), up ? deep : rows, up ? rows : deep, up};
    tiles.emplace_back(bf16_size(rows, deep, parts));
    uint16_t* const a = tiles.back().data();
    const int64_t half = weights.tiles() / 2;
    units.pack(weights, 0, half, parts, a);
    units.pack(weights, half, weights.tiles(), parts, a);
    tiles.emplace_back(bf16_size(lanes, deep, parts));
    uint16_t* const b = tiles.back().data();
    if (by_rows)
      units.split_rows(x.data() + from, depth, count, deep, lanes, parts, b);
    else
      units.split({panels.data(), depth, lanes, from, kPanel}, deep, parts, b);
    pieces.push_back({a, b, deep});
  }
  units.multiply(pieces.data(), static_cast<int>(pieces.size()), parts, rows,
                 {result.data(), rows, lanes, 0, kPanel}, accumulate);
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      double sum = accumulate ? c[r * lanes + lane] : 0, size = std::abs(sum) + 1e-30;
      for (int64_t k = 0; k < depth && lane < count; ++k) {
        const double product = double{w[r * depth + k]} * x[lane * depth + k];
        sum += product, size += std::abs(product);
      }
      const double off = std::abs(sum - result[place(r, rows, lane, lanes)]) / size;
      worst = std::max(worst, std::isfinite(off) ? off : 1e30);
    }
  return worst;
}

}  // namespace

int main() {
  for (int parts = 1; parts <= 3; ++parts) {
    double worst = 0;
    for (const int64_t rows : {1, 16, 17, 40, 80})
      for (const int64_t lanes : {16, 32, 48, 64, 112})
        for (const int64_t depth : {1, 2, 31, 32, 33, 64, 100, 300})
          for (int mode = 0; mode < 8; ++mode)
            worst =
                std::max(worst, error({parts, rows, lanes, depth, (mode & 1) > 0, (mode & 2) > 0, mode > 3}));
    std::printf("%g\n", worst);
  }
}
