// Blocks of rows that stay in the L1 cache, from x to all outputs of the pass.
#include <algorithm>

#include "common/activation_lanes.h"
#include "common/some_lanes.h"
#include "gemm/product.h"
#include "message/message.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kBlock = 2 * kRows;

// The columns in lanes: the sent ones, then the kept ones, each from a whole vector on.
template <class T>
struct ColumnLanes {
  int64_t sent, kept;

  struct Part {
    int64_t column, count;  // the first column of a vector, and how many there are
  };
  int64_t first_kept() const { return padded<T>(sent); }
  int64_t all() const { return padded<T>(sent) + padded<T>(kept); }
  Part at(int64_t lane) const {
    if (lane < first_kept()) return {lane, std::min<int64_t>(kLanes<T>, sent - lane)};
    lane -= first_kept();
    return {sent + lane, std::min<int64_t>(kLanes<T>, kept - lane)};
  }
};

// The weights, and their transpose, with rows and columns in lanes.
template <class T>
struct PackedWeights {
  Panels<T> weight, transposed;

  PackedWeights(const MessageArgs<T>& args, void* memory) {
    const int64_t lanes = ColumnLanes<T>{args.sent, args.kept}.all();
    Arena arena{static_cast<char*>(memory)};
    weight = take_panels<T>(arena, args.inputs, lanes);
    transposed = take_panels<T>(arena, lanes, padded<T>(args.inputs));
    bytes = arena.used;
  }
  int64_t bytes;
};

// A share's sums for the gradients by weights.
template <class T>
struct WeightSums {
  Panels<T> weight;
  T* scale;

  WeightSums(const MessageArgs<T>& args, T* memory) {
    const int64_t lanes = ColumnLanes<T>{args.sent, args.kept}.all();
    weight = {memory, args.inputs, lanes};
    scale = memory ? memory + args.inputs * lanes : nullptr;
    count = args.inputs * lanes + padded<T>(args.kept);
  }
  int64_t count;
};

// A thread's memory, of one block; null pointers belong to other passes.
template <class T>
struct BlockMemory {
  Panels<T> z, v, by_x;

  BlockMemory(const MessageArgs<T>& args, void* memory) {
    const int64_t lanes = ColumnLanes<T>{args.sent, args.kept}.all();
    Arena arena{static_cast<char*>(memory)};
    z = take_panels<T>(arena, kBlock, lanes);
    if (args.along_x) v = take_panels<T>(arena, kBlock, lanes);
    if (args.by_x) by_x = take_panels<T>(arena, kBlock, padded<T>(args.inputs));
    bytes = arena.used;
  }
  int64_t bytes;
};

template <class T>
class Passes {
  using V = Vector<T>;

 public:
  Passes(const MessageArgs<T>& args, const void* packed, void* memory, T* sums)
      : args_(args),
        lanes_{args.sent, args.kept},
        weights_(args, const_cast<void*>(packed)),
        memory_(args, memory),
        sums_(args, sums),
        columns_(args.columns()) {
    if (sums) std::fill(sums, sums + sums_.count, T(0));
  }

  void run(int64_t from, int64_t to) {
    clear(from, to);
    const int64_t end = args_.first_offsets[to];
    for (row_ = args_.first_offsets[from]; row_ < end; row_ += count_) {
      count_ = std::min(kBlock, end - row_);
      products(memory_.z, args_.x, args_.p, args_.q);
      if (args_.along_x) products(memory_.v, args_.along_x, args_.along_p, args_.along_q);
      with_activation_lanes<T>(args_.activation, args_.threshold, is_below(), [&](const auto& f) {
        if (args_.along_x)
          second(f);
        else if (args_.by_x)
          backward(f);
        else
          forward(f);
      });
    }
  }

 private:
  // Sums of nothing.
  void clear(int64_t from, int64_t to) {
    for (int64_t f = from; f < to; ++f) {
      if (args_.first_offsets[f] < args_.first_offsets[f + 1]) continue;
      if (args_.to_sent) std::fill_n(args_.to_sent + f * args_.sent, args_.sent, T(0));
      if (args_.by_p) std::fill_n(args_.by_p + f * columns_, columns_, T(0));
    }
    if (args_.by_q && args_.group_offsets)
      std::fill(args_.by_q + from * columns_, args_.by_q + to * columns_, T(0));
  }

  void forward(const auto& f) {
    each_sent([&](auto lanes, auto place, int64_t column) {
      each_first(lanes, args_.to_sent + column, args_.sent, [&](int64_t, int64_t begin, int64_t end, V& sum) {
        for (int64_t r = begin; r < end; ++r)
          sum += args_.row_weight[row_ + r] * f.value(at(memory_.z, place, r));
      });
    });
    each_kept([&](auto lanes, auto place, int64_t column) {
      const V scale = lanes.load(args_.scale + column);
      for (int64_t r = 0; r < count_; ++r) {
        const int64_t x = (row_ + r) * args_.kept + column;
        lanes.store(args_.to_kept + x, lanes.load(args_.x + x) + scale * f.value(at(memory_.z, place, r)));
      }
    });
  }

  void backward(const auto& f) {
    V row_sums[kBlock] = {};
    each_sent([&](auto lanes, auto place, int64_t column) {
      each_first(lanes, args_.by_p + column, columns_,
                 [&](int64_t first, int64_t begin, int64_t end, V& sum) {
                   const V grad = lanes.load(args_.grad_sent + first * args_.sent + column);
                   for (int64_t r = begin; r < end; ++r) {
                     V slope;
                     row_sums[r] += grad * f.value(at(memory_.z, place, r), &slope, nullptr);
                     sum += by_z(lanes, place, r, column, slope * (args_.row_weight[row_ + r] * grad));
                   }
                 });
    });
    each_kept([&](auto lanes, auto place, int64_t column) {
      const V scale = lanes.load(args_.scale + column);
      V by_scale{};
      each_first(lanes, args_.by_p + args_.sent + column, columns_,
                 [&](int64_t, int64_t begin, int64_t end, V& sum) {
                   for (int64_t r = begin; r < end; ++r) {
                     V slope;
                     const V grad = lanes.load(args_.grad_kept + (row_ + r) * args_.kept + column);
                     by_scale += grad * f.value(at(memory_.z, place, r), &slope, nullptr);
                     sum += by_z(lanes, place, r, args_.sent + column, slope * (scale * grad));
                   }
                 });
      if (sums_.scale) add_to(sums_.scale + column, by_scale);
    });
    row_weights(row_sums);
    sum_by_rows(memory_.z, args_.x);
    inputs(args_.kept ? args_.grad_kept : nullptr);
  }

  void second(const auto& f) {
    V row_sums[kBlock] = {};
    each_sent([&](auto lanes, auto place, int64_t column) {
      each_first(
          lanes, args_.by_p + column, columns_, [&](int64_t first, int64_t begin, int64_t end, V& sum) {
            const V grad = lanes.load(args_.grad_sent + first * args_.sent + column);
            T* const to = args_.to_sent + first * args_.sent + column;
            V by_grad = is_new(first) ? V{} : lanes.load(to);
            for (int64_t r = begin; r < end; ++r) {
              const T weight = args_.row_weight[row_ + r], along = args_.along_row_weight[row_ + r];
              V slope, curve;
              const V y = f.value(at(memory_.z, place, r), &slope, &curve), v = at(memory_.v, place, r);
              row_sums[r] += grad * (slope * v), by_grad += weight * (slope * v) + along * y;
              store(place.in(memory_.v, r), slope * (weight * grad));
              sum += by_z(lanes, place, r, column, curve * (weight * grad) * v + slope * (along * grad));
            }
            lanes.store(to, by_grad);
          });
    });
    each_kept([&](auto lanes, auto place, int64_t column) {
      const V scale = lanes.load(args_.scale + column);
      V by_scale{};
      each_first(lanes, args_.by_p + args_.sent + column, columns_,
                 [&](int64_t, int64_t begin, int64_t end, V& sum) {
                   for (int64_t r = begin; r < end; ++r) {
                     const int64_t x = (row_ + r) * args_.kept + column;
                     V slope, curve;
                     f.value(at(memory_.z, place, r), &slope, &curve);
                     const V grad = lanes.load(args_.grad_kept + x), v = at(memory_.v, place, r);
                     by_scale += grad * (slope * v);
                     lanes.store(args_.to_kept + x, lanes.load(args_.along_x + x) + scale * (slope * v));
                     store(place.in(memory_.v, r), slope * (scale * grad));
                     sum += by_z(lanes, place, r, args_.sent + column, curve * (scale * grad) * v);
                   }
                 });
      if (sums_.scale) add_to(sums_.scale + column, by_scale);
    });
    row_weights(row_sums);
    sum_by_rows(memory_.z, args_.x);
    sum_by_rows(memory_.v, args_.along_x);
    inputs(nullptr);
  }

  // z or v.
  void products(const Panels<T>& to, const T* x, const T* p, const T* q) {
    const ByRow<T> rows{const_cast<T*>(x) + row_ * args_.inputs, args_.inputs};
    const auto start = [&](auto lanes, int64_t r, int64_t column) __attribute__((always_inline)) {
      const int64_t second = args_.second[row_ + r];
      const V sum = lanes.load(p + args_.first[row_ + r] * columns_ + column);
      return second < 0 ? sum : sum + lanes.load(q + second * columns_ + column);
    };
    if (lanes_.all() == columns_)  // all vectors are whole
      return gemm_from(count_, args_.inputs, rows, weights_.weight, to,
                       [&](int64_t r, int64_t column, const T*) __attribute__((always_inline)) {
                         return start(SomeLanes<T, true>{kLanes<T>}, r, column);
                       });
    to.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      with_lanes<T>(part.count, [&](auto lanes) {
        for (int64_t r = 0; r < count_; ++r) store(place.in(to, r), start(lanes, r, part.column));
      });
    });
    gemm(count_, args_.inputs, rows, weights_.weight, to, true);
  }

  // Whether all of z is below the threshold.
  bool is_below() const {
    typename ExpConstants<T>::Int above = 0;
    for (int64_t col = 0; args_.activation == Activation::silut && col < lanes_.all();
         col += Panels<T>::kWide) {
      const T *z = memory_.z.panel(col), threshold = args_.threshold;
      for (int64_t k = 0, count = count_ * memory_.z.width(col); k < count; ++k)
        above |= z[k] >= threshold ? 1 : 0;
    }
    return !above;
  }

  // Replaces z by dz or h, in the sums by Q, too; returns it.
  MDOPS_INLINE V by_z(auto lanes, auto place, int64_t r, int64_t column, const V& value) {
    store(place.in(memory_.z, r), value);
    if (args_.by_z) {
      lanes.store(args_.by_z + (row_ + r) * columns_ + column, value);
    } else if (args_.second[row_ + r] >= 0) {
      T* to = args_.by_q + args_.second[row_ + r] * columns_ + column;
      lanes.store(to, lanes.load(to) + value);
    }
    return value;
  }

  void row_weights(const V* sums) {
    for (int64_t r = 0; r < count_; ++r) args_.by_row_weight[row_ + r] = sum_lanes<T>(sums[r]);
  }

  // x^T values.
  void sum_by_rows(const Panels<T>& values, const T* x) {
    if (sums_.scale)
      gemm(args_.inputs, count_, ByDepth<T>{const_cast<T*>(x) + row_ * args_.inputs, args_.inputs}, values,
           sums_.weight, true);
  }

  // dz W^T or h W^T, plus `added`.
  void inputs(const T* added) {
    const Panels<T>& by_x = memory_.by_x;
    gemm(count_, lanes_.all(), InLanes<T>{memory_.z}, weights_.transposed, by_x, false);
    by_x.each([&](auto place) {
      const int64_t column = place.lane();
      with_lanes<T>(std::min<int64_t>(kLanes<T>, args_.inputs - column), [&](auto lanes) {
        for (int64_t r = 0; r < count_; ++r) {
          const int64_t x = (row_ + r) * args_.inputs + column;
          const V product = at(by_x, place, r);
          lanes.store(args_.by_x + x, added ? product + lanes.load(added + x) : product);
        }
      });
    });
  }

  // Whether the earlier blocks have no row of a first index.
  bool is_new(int64_t first) const { return args_.first_offsets[first] >= row_; }

  // Calls work(first, begin, end, sum) for the block's rows of each first index; `sum` is loaded from its row
  // of `to` and stored back.
  MDOPS_INLINE void each_first(auto lanes, T* to, int64_t stride, const auto& work) {
    for (int64_t r = 0, end; r < count_; r = end) {
      const int64_t first = args_.first[row_ + r];
      end = std::min<int64_t>(count_, args_.first_offsets[first + 1] - row_);
      V sum = is_new(first) ? V{} : lanes.load(to + first * stride);
      work(first, r, end, sum);
      lanes.store(to + first * stride, sum);
    }
  }

  // Calls work(lanes, place, column) for the vectors of sent columns, and for those of kept ones.
  void each_sent(const auto& work) {
    each_vector([&](auto place, auto part) {
      if (part.column < args_.sent)
        with_lanes<T>(part.count, [&](auto lanes) { work(lanes, place, part.column); });
    });
  }
  void each_kept(const auto& work) {
    each_vector([&](auto place, auto part) {
      if (part.column >= args_.sent)
        with_lanes<T>(part.count, [&](auto lanes) { work(lanes, place, part.column - args_.sent); });
    });
  }
  void each_vector(const auto& work) {
    memory_.z.each([&](auto place) { work(place, lanes_.at(place.lane())); });
  }

  static MDOPS_INLINE V at(const Panels<T>& panels, auto place, int64_t r) {
    return vector_at(place.in(panels, r));
  }

  const MessageArgs<T>& args_;
  const ColumnLanes<T> lanes_;
  const PackedWeights<T> weights_;
  const BlockMemory<T> memory_;
  const WeightSums<T> sums_;
  const int64_t columns_;
  int64_t row_ = 0, count_ = 0;  // the block
};

}  // namespace

template <class T>
MessageSizes message_sizes(const MessageArgs<T>& args) {
  return {PackedWeights<T>(args, nullptr).bytes, BlockMemory<T>(args, nullptr).bytes,
          WeightSums<T>(args, nullptr).count};
}

template <class T>
void message_pack(const MessageArgs<T>& args, void* memory) {
  const PackedWeights<T> to(args, memory);
  const ColumnLanes<T> lanes{args.sent, args.kept};
  const auto row = [&](const Panels<T>& panels, int64_t r, const auto& value) {
    panels.each([&](auto place) {
      for (int64_t k = 0; k < kLanes<T>; ++k) place.in(panels, r)[k] = value(place.lane() + k);
    });
  };
  const auto weight = [&](int64_t x, int64_t lane) {
    const auto part = lanes.at(lane / kLanes<T> * kLanes<T>);
    const int64_t k = lane % kLanes<T>;
    return x < args.inputs && k < part.count ? args.weight[x * args.columns() + part.column + k] : T(0);
  };
  for (int64_t x = 0; x < args.inputs; ++x) row(to.weight, x, [&](int64_t lane) { return weight(x, lane); });
  for (int64_t l = 0; l < lanes.all(); ++l) row(to.transposed, l, [&](int64_t x) { return weight(x, l); });
}

template <class T>
void message_rows(const MessageArgs<T>& args, int64_t from, int64_t to, const void* packed, void* scratch,
                  T* sums) {
  Passes<T>(args, packed, scratch, sums).run(from, to);
}

template <class T>
void message_weights(const MessageArgs<T>& args, const T* sums, int64_t shares) {
  const ColumnLanes<T> lanes{args.sent, args.kept};
  const int64_t count = WeightSums<T>(args, nullptr).count;
  const auto sum = [&](const T* first) {
    T sum = 0;
    for (int64_t k = 0; k < shares; ++k) sum += first[k * count];
    return sum;
  };
  const WeightSums<T> of(args, const_cast<T*>(sums));
  for (int64_t x = 0; x < args.inputs; ++x)
    of.weight.each([&](auto place) {
      const auto part = lanes.at(place.lane());
      for (int64_t k = 0; k < part.count; ++k)
        args.by_weight[x * args.columns() + part.column + k] = sum(place.in(of.weight, x) + k);
    });
  for (int64_t c = 0; c < args.kept; ++c) args.by_scale[c] = sum(of.scale + c);
}

MDOPS_INSTANTIATE(message_sizes, message_pack, message_rows, message_weights)

}  // namespace mdops::MDOPS_ISA
