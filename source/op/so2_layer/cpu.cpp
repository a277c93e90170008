#include <algorithm>

#include "common/large_results.h"
#include "common/scratch.h"
#include "order_moments/order_moments.h"
#include "so2_layer/ops.h"

namespace mdops {

namespace {

constexpr int64_t kLayerEdges = 64;  // a piece of work, at least

}  // namespace

template <class T>
static void run_so2(const Op& op, const So2Args<T>& args) {
  struct Use;
  const PackedSizes sizes = MDOPS_RUN(so2_sizes, args);
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  MDOPS_RUN(so2_pack, args, packed.mutable_data_ptr());
  parallel(args.edges, kLayerEdges, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    MDOPS_RUN(so2_rows, args, begin, end, packed.const_data_ptr(), memory.data());
  });
}

// Messages of a few nodes at a time, with their arrays of edges in a thread's caches. Only results of layers
// with gates go through memory, and backward the gradients of the first rows with their matrices, for the
// sums over edges of a neighbour. The last layer runs once per node (order_moments.h).
template <class T>
class MessagesByNodes {
 public:
  MessagesByNodes(const Op& op, const So2Messages<T>& given)
      : op_(op),
        given_(given),
        last_(given.layers.back()),
        row_(last_.row()),
        columns_(given.shape.columns),
        matrix_(given.shape.rows * columns_),
        numbers_(orders(1).numbers()) {
    last_.grad = given.grad;
    end_ = packed(MDOPS_RUN(so2_end_size, last_));
    MDOPS_RUN(so2_end_pack, last_, end_.mutable_data_ptr());
    for (size_t n = 0; n + 1 < given.layers.size(); ++n) {
      So2Args<T> layer = given.layers[n];
      layer.grad = given.grad;
      const PackedSizes sizes = MDOPS_RUN(so2_sizes, layer);
      layers_.push_back(packed(sizes.packed));
      MDOPS_RUN(so2_pack, layer, layers_.back().mutable_data_ptr());
      layer_scratch_ = sizes.scratch;
    }
    moment_scratch_ = MDOPS_RUN(order_moment_scratch, moments(0, 0, nullptr, nullptr));
    find_pieces();
  }

  void run() {
    if (!given_.grad) {
      each_piece([&](Piece& piece) { forward(piece); });
      return each_edge_of_no_node([&](int64_t e) {
        for (size_t n = 0; n < layers_.size(); ++n)
          std::fill_n(given_.y + (n * given_.shape.edges + e) * row_, row_, T(0));
      });
    }
    const Tensor rows = empty_result(op_, {given_.shape.edges, row_}, kDtype<T>);
    const Tensor mixed = empty_result(op_, {given_.shape.edges, matrix_}, kDtype<T>);
    by_rows_ = data_of(rows), mixed_ = data_of(mixed);
    struct Channels;
    const RotateOuterArgs<T> by_channel{given_.shape, nullptr, given_.rotated(nullptr, nullptr).x, nullptr};
    const ScratchMemory<Channels> memory(op_, MDOPS_RUN(rotate_outer_room, by_channel) * sizeof(T));
    room_ = static_cast<T*>(memory.data());
    parallel(given_.shape.nodes, kPieceNodes, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(rotate_by_channel, by_channel, room_, begin, end);
    });
    each_piece([&](Piece& piece) { backward(piece); });
    each_edge_of_no_node([&](int64_t e) {
      std::fill_n(given_.by_vectors + 3 * e, 3, T(0));
      std::fill_n(given_.by_mixture + e * numbers_, numbers_, T(0));
      given_.by_weight[e] = 0;
      std::fill_n(by_rows_ + e * row_, row_, T(0));
      std::fill_n(mixed_ + e * matrix_, matrix_, T(0));
    });
    const EdgesOfNodes& of = given_.of_neighbor;
    const RotateSumArgs<T> sums{given_.shape, mixed_, by_rows_, of.index, of.order, of.offsets, given_.by_x};
    parallel(given_.shape.nodes, kPieceNodes,
             [&](int64_t begin, int64_t end) { MDOPS_RUN(rotate_sums, sums, begin, end); });
  }

 private:
  static constexpr int64_t kPieceEdges = 96, kPieceNodes = 4;  // at most, where a node has no more edges

  // Some nodes with their edges, and a thread's memory.
  struct Piece {
    int64_t node, nodes, edge, edges;
    T *turn, *mixed, *first, *moments, *harmonics, *by_turn, *by_mixed, *grad;
    int32_t* offsets;
    void *layer, *moment;
  };

  OrderShape orders(int64_t edges) const {
    OrderShape shape = orders_of(given_.shape, given_.degree);
    shape.edges = edges;
    return shape;
  }
  RotationShape rotation(int64_t edges) const {
    RotationShape shape = given_.shape;
    shape.edges = edges;
    return shape;
  }
  OrderMomentArgs<T> moments(int64_t edges, int64_t nodes, const T* turn, const int32_t* offsets) const {
    OrderMomentArgs<T> args{{edges, nodes, given_.degree, last_.channels, 1}, turn};
    args.of.offsets = offsets;
    args.grad = given_.grad;
    return args;
  }
  Tensor packed(int64_t bytes) const { return empty(op_, {bytes}, ScalarType::Byte); }

  void find_pieces() {
    const int32_t* const offsets = given_.of_center.offsets;
    const int64_t nodes = given_.of_center.nodes;
    for (int64_t n = 0; n < nodes;) {
      pieces_.push_back(n);
      const int64_t begin = n++;
      while (n < nodes && n - begin < kPieceNodes && offsets[n + 1] - offsets[begin] <= kPieceEdges) ++n;
      most_edges_ = std::max<int64_t>(most_edges_, offsets[n] - offsets[begin]);
    }
    pieces_.push_back(nodes);
  }

  // Assigns a thread's memory; without any it only counts.
  int64_t lay_out(Piece& piece, char* memory) const {
    int64_t used = 0;
    const auto take = [&](int64_t bytes) {
      char* const from = memory ? memory + used : nullptr;
      used += (bytes + 63) / 64 * 64;
      return static_cast<void*>(from);
    };
    const auto numbers = [&](int64_t count) { return static_cast<T*>(take(count * sizeof(T))); };
    piece.offsets = static_cast<int32_t*>(take((kPieceNodes + 1) * sizeof(int32_t)));
    piece.turn = numbers(most_edges_ * matrix_);
    piece.first = numbers(most_edges_ * row_);
    piece.moments = numbers(kPieceNodes * columns_ * row_);
    piece.harmonics = numbers(most_edges_ * columns_);
    piece.layer = take(layer_scratch_);
    piece.moment = take(moment_scratch_);
    if (!given_.grad) {
      piece.mixed = numbers(most_edges_ * matrix_);
      return used;
    }
    piece.by_turn = numbers(most_edges_ * matrix_);
    piece.by_mixed = numbers(most_edges_ * matrix_);
    piece.grad = numbers(most_edges_ * row_);
    return used;
  }

  void each_piece(const auto& work) const {
    struct Use;
    Piece counted{};
    const int64_t bytes = lay_out(counted, nullptr);
    parallel(static_cast<int64_t>(pieces_.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      const ScratchMemory<Use> memory(op_, bytes);
      Piece piece{};
      lay_out(piece, static_cast<char*>(memory.data()));
      const int32_t* const offsets = given_.of_center.offsets;
      for (int64_t p = begin; p < end; ++p) {
        piece.node = pieces_[p], piece.nodes = pieces_[p + 1] - piece.node;
        piece.edge = offsets[piece.node], piece.edges = offsets[piece.node + piece.nodes] - piece.edge;
        for (int64_t n = 0; n <= piece.nodes; ++n)
          piece.offsets[n] = static_cast<int32_t>(offsets[piece.node + n] - piece.edge);
        work(piece);
      }
    });
  }

  // Layer n's output.
  T* kept(const Piece& piece, size_t n) const {
    return given_.y + (n * given_.shape.edges + piece.edge) * row_;
  }
  NodeRows<T> neighbors(const Piece& piece) const {
    return {given_.x, given_.of_neighbor.index + piece.edge, given_.shape.nodes};
  }

  // Matrices of edges, and rows of their neighbours.
  void begin(Piece& piece) const {
    const FrameArgs<T> frames{frame_shape(piece), given_.vectors + 3 * piece.edge, piece.harmonics,
                              piece.turn};
    MDOPS_RUN(frame_rows_of, frames, given_.degree, 0, piece.edges);
    const T* const mixture = given_.mixture + piece.edge * numbers_;
    MDOPS_RUN(mix_rows, OrderMixArgs<T>{orders(piece.edges), false, mixture, piece.turn, piece.mixed}, 0,
              piece.edges);
    MDOPS_RUN(rotate_rows, RotateArgs<T>{rotation(piece.edges), piece.mixed, neighbors(piece), piece.first},
              0, piece.edges);
  }

  FrameShape frame_shape(const Piece& piece) const { return {piece.edges, given_.degree > 0}; }

  So2Args<T> layer(const Piece& piece, size_t n) const {
    So2Args<T> args = given_.layers[n];
    args.edges = piece.edges;
    args.x = n ? kept(piece, n - 1) : piece.first;
    args.y = kept(piece, n);
    return args;
  }

  OrderMomentArgs<T> moments_of(const Piece& piece) const {
    OrderMomentArgs<T> args = moments(piece.edges, piece.nodes, piece.turn, piece.offsets);
    args.y = layers_.empty() ? piece.first : kept(piece, layers_.size() - 1);
    args.weight = given_.weight + piece.edge;
    return args;
  }

  void forward(Piece& piece) const {
    begin(piece);
    for (size_t n = 0; n < layers_.size(); ++n)
      MDOPS_RUN(so2_rows, layer(piece, n), 0, piece.edges, layers_[n].const_data_ptr(), piece.layer);
    OrderMomentArgs<T> args = moments_of(piece);
    args.moments = piece.moments;
    MDOPS_RUN(order_moments_of, args, 0, piece.nodes, piece.moment);
    MDOPS_RUN(so2_end, last_, static_cast<const T*>(piece.moments),
              given_.sums + piece.node * columns_ * last_.channels, piece.nodes, end_.const_data_ptr());
  }

  void backward(Piece& piece) const {
    piece.mixed = mixed_ + piece.edge * matrix_;
    begin(piece);
    MDOPS_RUN(so2_end, last_, given_.grad + piece.node * columns_ * last_.channels, piece.moments,
              piece.nodes, end_.const_data_ptr());
    OrderMomentArgs<T> args = moments_of(piece);
    args.grad = piece.moments;
    T* const by_rows = by_rows_ + piece.edge * row_;
    args.by_turn = piece.by_turn, args.by_y = layers_.empty() ? by_rows : piece.grad;
    args.by_weight = given_.by_weight + piece.edge;
    MDOPS_RUN(order_moments_of, args, 0, piece.nodes, piece.moment);
    for (size_t n = layers_.size(); n-- > 0;) {
      So2Args<T> own = layer(piece, n);
      own.result = own.y, own.grad = piece.grad, own.y = n ? piece.grad : by_rows;
      MDOPS_RUN(so2_rows, own, 0, piece.edges, layers_[n].const_data_ptr(), piece.layer);
    }
    MDOPS_RUN(rotate_outers,
              RotateOuterArgs<T>{rotation(piece.edges), by_rows, neighbors(piece), piece.by_mixed},
              static_cast<const T*>(room_), 0, piece.edges);
    const OrderOuterArgs<T> by_mixture{orders(piece.edges), piece.turn, piece.by_mixed,
                                       given_.by_mixture + piece.edge * numbers_};
    MDOPS_RUN(outer_numbers, by_mixture, 0, piece.edges);
    const T* const mixture = given_.mixture + piece.edge * numbers_;
    MDOPS_RUN(
        mix_rows,
        OrderMixArgs<T>{orders(piece.edges), true, mixture, piece.by_mixed, piece.by_turn, piece.by_turn}, 0,
        piece.edges);
    std::fill_n(piece.harmonics, piece.edges * columns_, T(0));  // gradients that are missing
    const FrameBackwardArgs<T> frames{frame_shape(piece), given_.vectors + 3 * piece.edge, piece.harmonics,
                                      piece.by_turn, given_.by_vectors + 3 * piece.edge};
    MDOPS_RUN(frame_gradients_of, frames, given_.degree, 0, piece.edges);
  }

  void each_edge_of_no_node(const auto& work) const {
    for (int64_t e = 0; e < given_.shape.edges; ++e)
      if (given_.of_center.index[e] < 0) work(e);
  }

  const Op& op_;
  const So2Messages<T>& given_;
  So2Args<T> last_;
  const int64_t row_, columns_, matrix_, numbers_;  // numbers: of a mixture
  int64_t layer_scratch_ = 0, moment_scratch_ = 0, most_edges_ = 0;
  std::vector<int64_t> pieces_;  // the first node of each, and the end
  Tensors layers_;               // packed weights
  Tensor end_;
  T *room_ = nullptr, *by_rows_ = nullptr, *mixed_ = nullptr;
};

template <class T>
static void run_so2_messages(const Op& op, So2Messages<T>& args) {
  args.may_go_by_nodes() ? MessagesByNodes<T>(op, args).run() : run_one_by_one(op, args);
}

}  // namespace mdops

MDOPS_ON_CPU(So2LayerOps, So2MessageOps)
