// Blocks of rows that stay in the nearest cache, from x to all that the pass writes.
#include <algorithm>
#include <cstring>

#include "gemm/product.h"
#include "message/message.h"

namespace mdops {
namespace MDOPS_ISA {

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

// The first numbers of a vector, or all of them; zeros in the others.
template <class T, bool Whole>
struct SomeLanes {
  int64_t count;

  inline __attribute__((always_inline)) Vector<T> load(const T* p) const {
    if constexpr (Whole) return vector_at(p);
    Vector<T> v{};
    std::memcpy(&v, p, count * sizeof(T));
    return v;
  }
  inline __attribute__((always_inline)) void store(T* p, const Vector<T>& v) const {
    if constexpr (Whole)
      MDOPS_ISA::store(p, v);
    else
      std::memcpy(p, &v, count * sizeof(T));
  }
};

// Calls work(lanes) with what loads and stores so many.
template <class T, class Work>
inline void with_lanes(int64_t count, const Work& work) {
  if (count == kLanes<T>)
    work(SomeLanes<T, true>{count});
  else
    work(SomeLanes<T, false>{count});
}

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

// What a share sums up for the gradients by weights.
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

// A thread's memory, of one block; what is null belongs to another pass.
template <class T>
struct BlockMemory {
  Panels<T> z, g, v, e, by_x;

  BlockMemory(const MessageArgs<T>& args, void* memory) {
    const int64_t lanes = ColumnLanes<T>{args.sent, args.kept}.all();
    Arena arena{static_cast<char*>(memory)};
    z = take_panels<T>(arena, kBlock, lanes);
    if (args.by_x) g = take_panels<T>(arena, kBlock, lanes);
    if (args.by_x) by_x = take_panels<T>(arena, kBlock, padded<T>(args.inputs));
    if (args.along_x) v = take_panels<T>(arena, kBlock, lanes), e = take_panels<T>(arena, kBlock, lanes);
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
      if (args_.along_x)
        second_block();
      else if (args_.by_x)
        backward_block();
      else
        forward_block();
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

  void forward_block() {
    with_activation(args_.activation, [&]<Activation kind>() {
      each_panel([&](int64_t at, int64_t count) {
        T* z = memory_.z.base + at;
        for (int64_t k = 0; k < count; ++k) {
          T slope;
          activate<kind>(z[k], args_.threshold, &z[k], &slope);
        }
      });
    });
    sum_by_first(args_.sent, args_.to_sent, [&](auto place, int64_t r) __attribute__((always_inline)) {
      return args_.row_weight[row_ + r] * at(memory_.z, place, r);
    });
    each_kept([&](auto lanes, auto place, int64_t column) __attribute__((always_inline)) {
      const V scale = lanes.load(args_.scale + column);
      for (int64_t r = 0; r < count_; ++r) {
        const int64_t x = (row_ + r) * args_.kept + column;
        lanes.store(args_.to_kept + x, lanes.load(args_.x + x) + scale * at(memory_.z, place, r));
      }
    });
  }

  void backward_block() {
    gradients();
    with_activation(args_.activation, [&]<Activation kind>() {
      each_panel([&](int64_t at, int64_t count) {
        T *z = memory_.z.base + at, *g = memory_.g.base + at;
        MDOPS_INDEPENDENT
        for (int64_t k = 0; k < count; ++k) {
          T y, slope;
          activate<kind>(z[k], args_.threshold, &y, &slope);
          z[k] = y, g[k] *= slope;
        }
      });
    });
    row_weights(memory_.z);
    sum_scales(memory_.z);
    sum_by_rows(memory_.g, args_.x);
    places(memory_.g);
    inputs(memory_.g, args_.kept ? args_.grad_kept : nullptr);
  }

  void second_block() {
    products(memory_.v, args_.along_x, args_.along_p, args_.along_q);
    gradients();
    with_activation(args_.activation, [&]<Activation kind>() {
      each_panel([&](int64_t at, int64_t count) {
        T *z = memory_.z.base + at, *g = memory_.g.base + at;
        T *v = memory_.v.base + at, *e = memory_.e.base + at;
        MDOPS_INDEPENDENT
        for (int64_t k = 0; k < count; ++k) {
          T y, slope, curve;
          activate_twice<kind>(z[k], args_.threshold, &y, &slope, &curve);
          z[k] = y, e[k] = curve * g[k] * v[k] + slope * e[k];
          g[k] *= slope, v[k] *= slope;
        }
      });
    });
    sum_by_first(args_.sent, args_.to_sent, [&](auto place, int64_t r) __attribute__((always_inline)) {
      return args_.row_weight[row_ + r] * at(memory_.v, place, r) +
             args_.along_row_weight[row_ + r] * at(memory_.z, place, r);
    });
    each_kept([&](auto lanes, auto place, int64_t column) __attribute__((always_inline)) {
      const V scale = lanes.load(args_.scale + column);
      for (int64_t r = 0; r < count_; ++r) {
        const int64_t x = (row_ + r) * args_.kept + column;
        lanes.store(args_.to_kept + x, lanes.load(args_.along_x + x) + scale * at(memory_.v, place, r));
      }
    });
    row_weights(memory_.v);
    sum_scales(memory_.v);
    sum_by_rows(memory_.e, args_.x);
    sum_by_rows(memory_.g, args_.along_x);
    places(memory_.e);
    inputs(memory_.e, nullptr);
  }

  // z or v.
  void products(const Panels<T>& to, const T* x, const T* p, const T* q) {
    to.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      with_lanes<T>(part.count, [&](auto lanes) {
        for (int64_t r = 0; r < count_; ++r) {
          const int64_t second = args_.second[row_ + r];
          V sum = lanes.load(p + args_.first[row_ + r] * columns_ + part.column);
          if (second >= 0) sum += lanes.load(q + second * columns_ + part.column);
          store(place.in(to, r), sum);
        }
      });
    });
    gemm(count_, args_.inputs, ByRow<T>{const_cast<T*>(x) + row_ * args_.inputs, args_.inputs},
         weights_.weight, to, true);
  }

  // g, and [u_w g_s, 0] in the second pass.
  void gradients() {
    memory_.g.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      with_lanes<T>(part.count, [&](auto lanes) {
        if (part.column < args_.sent) {
          for (int64_t r = 0; r < count_; ++r) {
            const V grad = lanes.load(args_.grad_sent + args_.first[row_ + r] * args_.sent + part.column);
            store(place.in(memory_.g, r), args_.row_weight[row_ + r] * grad);
            if (args_.along_x) store(place.in(memory_.e, r), args_.along_row_weight[row_ + r] * grad);
          }
          return;
        }
        const int64_t column = part.column - args_.sent;
        const V scale = lanes.load(args_.scale + column);
        for (int64_t r = 0; r < count_; ++r) {
          store(place.in(memory_.g, r),
                scale * lanes.load(args_.grad_kept + (row_ + r) * args_.kept + column));
          if (args_.along_x) store(place.in(memory_.e, r), V{});
        }
      });
    });
  }

  // <g_s, values> of each row.
  void row_weights(const Panels<T>& values) {
    V sums[kBlock] = {};
    values.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      if (part.column >= args_.sent) return;
      with_lanes<T>(part.count, [&](auto lanes) {
        for (int64_t r = 0; r < count_; ++r)
          sums[r] += lanes.load(args_.grad_sent + args_.first[row_ + r] * args_.sent + part.column) *
                     at(values, place, r);
      });
    });
    for (int64_t r = 0; r < count_; ++r) args_.by_row_weight[row_ + r] = sum_lanes<T>(sums[r]);
  }

  // The sums of g_x values.
  void sum_scales(const Panels<T>& values) {
    if (!sums_.scale) return;
    each_kept([&](auto lanes, auto place, int64_t column) {
      V sum = vector_at(sums_.scale + column);
      for (int64_t r = 0; r < count_; ++r)
        sum += lanes.load(args_.grad_kept + (row_ + r) * args_.kept + column) * at(values, place, r);
      store(sums_.scale + column, sum);
    });
  }

  // x^T values.
  void sum_by_rows(const Panels<T>& values, const T* x) {
    if (sums_.scale)
      gemm(args_.inputs, count_, ByDepth<T>{const_cast<T*>(x) + row_ * args_.inputs, args_.inputs}, values,
           sums_.weight, true);
  }

  // The sums by P and Q, of dz or h.
  void places(const Panels<T>& values) {
    sum_by_first(columns_, args_.by_p,
                 [&](auto place, int64_t r) __attribute__((always_inline)) { return at(values, place, r); });
    values.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      with_lanes<T>(part.count, [&](auto lanes) {
        for (int64_t r = 0; r < count_; ++r) {
          if (args_.by_z) {
            lanes.store(args_.by_z + (row_ + r) * columns_ + part.column, at(values, place, r));
          } else if (args_.second[row_ + r] >= 0) {
            T* to = args_.by_q + args_.second[row_ + r] * columns_ + part.column;
            lanes.store(to, lanes.load(to) + at(values, place, r));
          }
        }
      });
    });
  }

  // values W^T, and what is added.
  void inputs(const Panels<T>& values, const T* added) {
    const Panels<T>& by_x = memory_.by_x;
    gemm(count_, lanes_.all(), InLanes<T>{values}, weights_.transposed, by_x, false);
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

  // Adds value(place, r) of the first `columns` columns to the row of r's first.
  template <class Value>
  void sum_by_first(int64_t columns, T* to, const Value& value) {
    memory_.z.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      if (part.column >= columns) return;
      with_lanes<T>(part.count, [&](auto lanes) {
        for (int64_t r = 0; r < count_;) {
          const int64_t first = args_.first[row_ + r], begin = args_.first_offsets[first];
          const int64_t end = std::min(count_, args_.first_offsets[first + 1] - row_);
          T* sum_at = to + first * columns + part.column;
          V sum = begin < row_ ? lanes.load(sum_at) : V{};
          for (; r < end; ++r) sum += value(place, r);
          lanes.store(sum_at, sum);
        }
      });
    });
  }

  // Calls work(lanes, place, column) for the vectors of kept columns.
  template <class Work>
  void each_kept(const Work& work) {
    memory_.z.each([&](auto place) {
      const auto part = lanes_.at(place.lane());
      if (part.column < args_.sent) return;
      with_lanes<T>(part.count, [&](auto lanes) { work(lanes, place, part.column - args_.sent); });
    });
  }

  // Calls work(at, count) for the numbers of the block in each panel, which are side by side.
  template <class Work>
  void each_panel(const Work& work) {
    for (int64_t col = 0; col < lanes_.all(); col += Panels<T>::kWide)
      work(col * kBlock, count_ * memory_.z.width(col));
  }

  template <class Place>
  static inline __attribute__((always_inline)) V at(const Panels<T>& panels, Place place, int64_t r) {
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

template <class T>
MessageSizes sizes(const MessageArgs<T>& args) {
  return {PackedWeights<T>(args, nullptr).bytes, BlockMemory<T>(args, nullptr).bytes,
          WeightSums<T>(args, nullptr).count};
}

template <class T>
void pack(const MessageArgs<T>& args, void* memory) {
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
void weights(const MessageArgs<T>& args, const T* sums, int64_t shares) {
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

}  // namespace

#define MDOPS_DEFINE_MESSAGE_KERNELS(T)                                                                      \
  MessageSizes message_sizes(const MessageArgs<T>& args) {                                                   \
    return sizes(args);                                                                                      \
  }                                                                                                          \
  void message_pack(const MessageArgs<T>& args, void* packed) {                                              \
    pack(args, packed);                                                                                      \
  }                                                                                                          \
  void message_rows(const MessageArgs<T>& args, int64_t from, int64_t to, const void* packed, void* scratch, \
                    T* sums) {                                                                               \
    Passes<T>(args, packed, scratch, sums).run(from, to);                                                    \
  }                                                                                                          \
  void message_weights(const MessageArgs<T>& args, const T* sums, int64_t shares) {                          \
    weights(args, sums, shares);                                                                             \
  }
MDOPS_DEFINE_MESSAGE_KERNELS(float)
MDOPS_DEFINE_MESSAGE_KERNELS(double)

}  // namespace MDOPS_ISA
}  // namespace mdops
