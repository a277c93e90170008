// Nodes one after the other, with chunks of their edges. Forward, sums of tiles of columns stay in registers;
// backward multiplies edges' rows by a node's gradients.
#include <algorithm>

#include "common/panels.h"
#include "common/some_lanes.h"
#include "common/tiles.h"
#include "gemm/product.h"
#include "order_moments/order_moments.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kEdges = 4 * kRows;
// Columns with sums in registers: of m = 0, and of both signs, with two sums each.
constexpr int kTile = 9, kTileOfSigns = kRows >= 8 ? 8 : 4;

template <class T>
class NodeMoments {
  using V = Vector<T>;

 public:
  NodeMoments(const OrderMomentArgs<T>& args, void* memory)
      : args_(args),
        shape_(args.shape),
        columns_(shape_.columns()),
        turned_(columns_ - 1),
        numbers_(shape_.numbers()),
        middle_(shape_.middle()),
        side_(shape_.side()) {
    Arena arena{static_cast<char*>(memory)};
    middle_turn_ = arena.take<T>(kEdges * columns_);
    sign_turn_ = arena.take<T>(2 * kEdges * turned_);
    if (args.grad) {
      other_turn_ = arena.take<T>(2 * kEdges * turned_);
      rows_ = arena.take<T>(copies_rows() ? kEdges * numbers_ : 0);
      grad_ = take_panels<T>(arena, columns_, padded<T>(middle_));
      sign_grad_ = take_panels<T>(arena, 2 * turned_, padded<T>(side_));
      columns_of_grad_ = take_panels<T>(arena, middle_, padded<T>(columns_));
      columns_of_signs_ = take_panels<T>(arena, side_, padded<T>(2 * turned_));
      by_middle_ = arena.take<T>(kEdges * columns_of_grad_.cols);
      for (T** one : {&by_negative_, &by_positive_}) *one = arena.take<T>(kEdges * columns_of_signs_.cols);
    }
    bytes = arena.used;
  }

  void run(int64_t n) {
    const int64_t end = args_.of.offsets[n + 1];
    if (args_.grad)
      pack(args_.grad + n * columns_ * numbers_);
    else if (args_.of.offsets[n] == end)
      std::fill_n(args_.moments + n * columns_ * numbers_, columns_ * numbers_, T(0));
    for (int64_t place = args_.of.offsets[n]; place < end; place += count_) {
      count_ = std::min(kEdges, end - place);
      for (int64_t i = 0; i < count_; ++i) edge_[i] = args_.edge(place + i);
      if (args_.grad) {
        stage([](int64_t) { return T(1); });
        backward();
        continue;
      }
      for (int64_t g = 0; g < shape_.groups; ++g) {
        stage([&](int64_t e) { return args_.weight[e * shape_.groups + g]; });
        forward(args_.moments + n * columns_ * numbers_, place > args_.of.offsets[n], g);
      }
    }
  }

  int64_t bytes;

 private:
  // The columns of edges' matrices: t_0, times the weight forward; t_- and t_+ side by side, and backward t_+
  // and -t_-.
  void stage(const auto& weight_of) {
    for (int64_t i = 0; i < count_; ++i) {
      const T* const turn = args_.turn + edge_[i] * shape_.matrix();
      const T weight = weight_of(edge_[i]);
      for (int64_t l = 0, d = 0; l <= shape_.degree; ++l)
        for (; d < (l + 1) * (l + 1); ++d) {
          middle_turn_[i * columns_ + d] = weight * turn[l * columns_ + d];
          if (l == 0) continue;
          const T negative = weight * turn[(shape_.degree + l) * columns_ + d];
          const T positive = weight * turn[(2 * shape_.degree + l) * columns_ + d];
          T* const own = sign_turn_ + 2 * i * turned_ + d - 1;
          own[0] = negative, own[turned_] = positive;
          if (!args_.grad) continue;
          T* const other = other_turn_ + 2 * i * turned_ + d - 1;
          other[0] = positive, other[turned_] = -negative;
        }
    }
  }

  const T* row(int64_t i) const { return args_.y + edge_[i] * numbers_; }

  bool has_groups() const { return shape_.groups > 1; }
  bool copies_rows() const { return args_.of.order || has_groups(); }

  // f(place, zero) for the numbers of a group of channels in some rows.
  void each_of_group(int64_t g, int64_t numbers, const auto& f) const {
    const int64_t size = has_groups() ? shape_.channels / shape_.groups : numbers;
    for (int64_t first = g * size; first < numbers; first += has_groups() ? shape_.channels : numbers)
      each_piece<T>(size, [&](int64_t c, auto zero) { f(first + c, zero); });
  }

  // Adds to a node's moments, or starts them.
  void forward(T* moments, bool adds, int64_t g) {
    each_tile<kTile>(columns_, [&](int64_t first, auto size) {
      each_of_group(g, middle_, [&](int64_t c, auto zero) {
        constexpr int count = decltype(size)::value;
        T* const to = moments + first * numbers_ + c;
        decltype(zero) sums[count] = {};
        for (int d = 0; adds && d < count; ++d) sums[d] = load<decltype(zero)>(to + d * numbers_);
        for (int64_t i = 0; i < count_; ++i) {
          const auto y = load<decltype(zero)>(row(i) + c);
          const T* const turn = middle_turn_ + i * columns_ + first;
          for (int d = 0; d < count; ++d) sums[d] += turn[d] * y;
        }
        for (int d = 0; d < count; ++d) store(to + d * numbers_, sums[d]);
      });
    });
    if (!adds && g == 0) std::fill_n(moments + middle_, 2 * side_, T(0));  // of the column of l = 0
    each_tile<kTileOfSigns>(turned_, [&](int64_t first, auto size) {
      each_of_group(g, side_, [&](int64_t c, auto zero) {
        constexpr int count = decltype(size)::value;
        T* const to = moments + (first + 1) * numbers_ + middle_ + c;
        decltype(zero) u[count] = {}, v[count] = {};
        for (int d = 0; adds && d < count; ++d)
          u[d] = load<decltype(zero)>(to + d * numbers_),
          v[d] = load<decltype(zero)>(to + d * numbers_ + side_);
        for (int64_t i = 0; i < count_; ++i) {
          const T* const y = row(i) + middle_ + c;
          const auto negative = load<decltype(zero)>(y), positive = load<decltype(zero)>(y + side_);
          const T* const turn = sign_turn_ + 2 * i * turned_ + first;
          for (int d = 0; d < count; ++d) {
            u[d] += turn[d] * negative + turn[turned_ + d] * positive;
            v[d] += turn[turned_ + d] * negative - turn[d] * positive;
          }
        }
        for (int d = 0; d < count; ++d)
          store(to + d * numbers_, u[d]), store(to + d * numbers_ + side_, v[d]);
      });
    });
  }

  // Packs a node's gradients with rows' numbers in lanes, those of u above those of v, and with columns in
  // lanes.
  void pack(const T* grad) {
    const auto by_rows = [&](const Panels<T>& to, int64_t count, const auto& from) {
      to.each([&](auto place) {
        with_lanes<T>(std::min<int64_t>(kLanes<T>, count - place.lane()), [&](auto lanes) {
          for (int64_t r = 0; r < to.rows; ++r) store(place.in(to, r), lanes.load(from(r) + place.lane()));
        });
      });
    };
    const auto of_signs = [&](int64_t k) {
      return grad + (k % turned_ + 1) * numbers_ + middle_ + k / turned_ * side_;
    };
    by_rows(grad_, middle_, [&](int64_t d) { return grad + d * numbers_; });
    by_rows(sign_grad_, side_, of_signs);
    const auto by_columns = [&](const Panels<T>& to, int64_t count, const auto& from) {
      to.each([&](auto place) {
        for (int64_t k = 0; k < kLanes<T>; ++k) {
          const int64_t column = place.lane() + k;
          const T* const numbers = column < count ? from(column) : nullptr;
          for (int64_t r = 0; r < to.rows; ++r) place.in(to, r)[k] = numbers ? numbers[r] : T(0);
        }
      });
    };
    by_columns(columns_of_grad_, columns_, [&](int64_t d) { return grad + d * numbers_; });
    by_columns(columns_of_signs_, 2 * turned_, of_signs);
  }

  // end(edge, column, vector, its valid lanes) for rows times a matrix with `columns` columns.
  void product(const ByRow<T>& x, int64_t depth, const Panels<T>& weights, int64_t columns, const auto& end) {
    gemm_to(count_, depth, x, weights,
            [&](int64_t i, int64_t column, const V& z) __attribute__((always_inline)) {
              with_lanes<T>(std::min<int64_t>(kLanes<T>, columns - column),
                            [&](auto lanes) __attribute__((always_inline)) { end(i, column, z, lanes); });
            });
  }

  void backward() {
    const auto by_y = [&](const T* turn, int64_t depth, const Panels<T>& grads, int64_t count,
                          int64_t first) {
      product({turn, depth}, depth, grads, count, [&](int64_t i, int64_t k, const V& z, auto lanes) {
        const T weight = has_groups() ? T(1) : args_.weight[edge_[i]];
        lanes.store(args_.by_y + edge_[i] * numbers_ + first + k, weight * z);
      });
    };
    by_y(middle_turn_, columns_, grad_, middle_, 0);
    if (turned_) {
      by_y(sign_turn_, 2 * turned_, sign_grad_, side_, middle_);
      by_y(other_turn_, 2 * turned_, sign_grad_, side_, middle_ + side_);
    }
    const T* y = row(0);
    if (copies_rows()) {
      for (int64_t i = 0; i < count_; ++i) std::copy_n(row(i), numbers_, rows_ + i * numbers_);
      y = rows_;
    }
    if (has_groups())
      for (int64_t i = 0; i < count_; ++i) weigh(i);
    const auto by_turn = [&](int64_t first, const Panels<T>& grads, T* to) {
      gemm_to(count_, grads.rows, ByRow<T>{y + first, numbers_}, grads,
              [&](int64_t i, int64_t k, const V& z)
                  __attribute__((always_inline)) { store(to + i * grads.cols + k, z); });
    };
    by_turn(0, columns_of_grad_, by_middle_);
    by_turn(middle_, columns_of_signs_, by_negative_);
    by_turn(middle_ + side_, columns_of_signs_, by_positive_);
    for (int64_t i = 0; i < count_; ++i) finish(i);
  }

  // For groups of channels: weights an edge's rows, and the gradient by these; computes that by the weights.
  void weigh(int64_t i) {
    const T* const weight = args_.weight + edge_[i] * shape_.groups;
    T *const y = rows_ + i * numbers_, *const by_y = args_.by_y + edge_[i] * numbers_,
             *const by_weight = args_.by_weight + edge_[i] * shape_.groups;
    std::fill_n(by_weight, shape_.groups, T(0));
    for (int64_t k = 0; k < numbers_; ++k) {
      const int64_t g = shape_.group(k);
      by_weight[g] += y[k] * by_y[k];
      by_y[k] *= weight[g], y[k] *= weight[g];
    }
  }

  // The gradients by an edge's matrix and, without groups, by its weight.
  void finish(int64_t i) {
    T* const to = args_.by_turn + edge_[i] * shape_.matrix();
    std::fill_n(to, shape_.matrix(), T(0));
    const T weight = has_groups() ? T(1) : args_.weight[edge_[i]];
    const T *const negative = by_negative_ + i * columns_of_signs_.cols, *const positive =
                                                                             by_positive_ +
                                                                             i * columns_of_signs_.cols;
    T sum = 0;
    for (int64_t l = 0, d = 0; l <= shape_.degree; ++l)
      for (; d < (l + 1) * (l + 1); ++d) {
        const auto write = [&](int64_t r, T turn, T by_turn) {
          sum += turn * by_turn, to[r * columns_ + d] = weight * by_turn;
        };
        write(l, middle_turn_[i * columns_ + d], by_middle_[i * columns_of_grad_.cols + d]);
        if (l == 0) continue;
        const T* const turn = sign_turn_ + 2 * i * turned_ + d - 1;
        write(shape_.degree + l, turn[0], negative[d - 1] - positive[turned_ + d - 1]);
        write(2 * shape_.degree + l, turn[turned_], positive[d - 1] + negative[turned_ + d - 1]);
      }
    if (!has_groups()) args_.by_weight[edge_[i]] = sum;
  }

  const OrderMomentArgs<T>& args_;
  const OrderMomentShape shape_;
  const int64_t columns_, turned_, numbers_, middle_, side_;  // turned: columns of l > 0
  T *middle_turn_, *sign_turn_, *other_turn_, *rows_, *by_middle_, *by_negative_, *by_positive_;
  Panels<T> grad_{}, sign_grad_{}, columns_of_grad_{}, columns_of_signs_{};
  int64_t edge_[kEdges], count_ = 0;
};

}  // namespace

template <class T>
int64_t order_moment_scratch(const OrderMomentArgs<T>& args) {
  return NodeMoments<T>(args, nullptr).bytes;
}

template <class T>
void order_moments_of(const OrderMomentArgs<T>& args, int64_t from, int64_t to, void* scratch) {
  NodeMoments<T> moments(args, scratch);
  for (int64_t n = from; n < to; ++n) moments.run(n);
}

MDOPS_INSTANTIATE(order_moment_scratch, order_moments_of)

}  // namespace mdops::MDOPS_ISA
