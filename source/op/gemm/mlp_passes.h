// The passes of mlp.h over a block of rows, a row a lane; for one instruction set.
#pragma once

#include "gemm/layers.h"
#include "gemm/mlp.h"

namespace mdops::MDOPS_ISA {

// A block's memory, only as much as the task needs.
template <class T>
struct MlpMemory {
  Panels<T> y[kMaxLayers] = {};                               // outputs of the layers
  Panels<T> slope[kMaxLayers] = {};                           // t f'
  Panels<T> curve[kMaxLayers] = {};                           // t f''
  Panels<T> f[kMaxLayers] = {}, df[kMaxLayers] = {};          // f and f', if the layer has timesteps
  Panels<T> dz[kMaxLayers] = {}, dy[kMaxLayers] = {};         // tangents
  Panels<T> grad[kMaxLayers] = {}, grad_dy[kMaxLayers] = {};  // of L by y and dy; then by z and dz
  Panels<T> input{};                                          // of a first layer that adds it
  T *work, *across;
  uint16_t* split;

  MlpMemory(const MlpArgs<T>& args, const MlpTask<T>& task, int64_t lanes, Arena& arena) {
    const bool down = task.differentiates(), second = task.direction;
    int64_t widest = 0;
    for (int n = 0; n < args.shape.layers; ++n) {
      const int64_t rows = args.shape.neurons[n], whole = padded<T>(rows);
      if (whole > widest) widest = whole;
      const auto take = [&](Panels<T>& panels, bool wanted, int64_t count) {
        if (wanted) panels = take_panels<T>(arena, count, lanes);
      };
      take(y[n], true, rows);
      take(slope[n], down || second, rows);
      take(curve[n], down && second, rows);
      take(f[n], task.sums && args.timed[n], rows);
      take(df[n], task.sums && second && args.timed[n], rows);
      take(dz[n], second, rows), take(dy[n], second, rows);
      // If no sums need the values, their gradients overwrite them.
      if (down && !task.sums && !second)
        grad[n] = y[n];
      else
        take(grad[n], down, whole);
      take(grad_dy[n], down && second, whole);
    }
    if (args.shape.residual[0]) input = take_panels<T>(arena, args.shape.features, lanes);
    work = arena.take<T>(kMlpGroup * lanes);
    across = arena.take<T>(task.sums ? widest * lanes : 0);
    split =
        arena.take<uint16_t>(args.bf16 ? bf16_split_size(args.shape, kMlpGroup, lanes, args.bf16->parts) : 0);
  }
};

// For a layer, in a thread's sums.
template <class T>
inline Panels<T> weight_sums(const MlpArgs<T>& args, int n, T* sums) {
  return {sums + MlpSums(args).weight[n], args.inputs(n), padded<T>(args.shape.neurons[n])};
}

template <class T>
struct MlpBlock {
  const MlpArgs<T>& args;
  const MlpTask<T>& task;
  int64_t first, count, lanes;  // rows [first, first + count), padded to `lanes`
  Arena arena;
  MlpMemory<T> m{args, task, lanes, arena};
  const Net<T> net{args.shape, args.layers, args.bf16, m.split};

  MlpBlock(const MlpArgs<T>& args_, const MlpTask<T>& task_, int64_t first_, int64_t count_, int64_t lanes_,
           T* scratch)
      : args(args_),
        task(task_),
        first(first_),
        count(count_),
        lanes(lanes_),
        arena{reinterpret_cast<char*>(scratch)} {}

  int64_t features() const { return args.shape.features; }
  int last() const { return args.last(); }

  // out = first matrix^T * rows of x, or of a direction of it, a group of columns at a time.
  void first_product(const T* rows, const Panels<T>& out) const {
    const int64_t cols = net.neurons(0);
    FirstProduct<T> product(net, out);
    for (int64_t from = 0; from < features(); from += kMlpGroup) {
      const Panels<T> group{m.work, features() - from < kMlpGroup ? features() - from : kMlpGroup, lanes};
      const T* own = rows + first * features() + from;
      if (net.bf16) {
        product.add_rows(own, features(), count, group.rows);
        continue;
      }
      rows_to_lanes(own, features(), count, group.rows, group);
      product.add(ByDepth<T>{args.layers[0].weight + from * cols, cols}, group);
    }
    product.finish();
  }

  // Adds the first layer's residual to its output: rows of x, or of a direction.
  void add_first_input(const T* rows, const Panels<T>& out) const {
    if (!args.shape.residual[0]) return;
    rows_to_lanes(rows + first * features(), features(), count, features(), m.input);
    add_rows(m.input, features(), net.neurons(0), out);
  }

  static void add_rows(const Panels<T>& from, int64_t inputs, int64_t outputs, const Panels<T>& to) {
    for (int64_t row = 0; row < outputs; ++row)
      to.each([&](auto place) { add_to(place.in(to, row), vector_at(place.in(from, row % inputs))); });
  }

  void forward() const {
    const bool slopes = m.slope[0].base, curves = m.curve[0].base;
    first_product(args.x, m.y[0]);
    layers_up(net, m.y, m.y, [&](int n) {
      if (curves)
        activate_layer_twice(n);
      else if (slopes)
        activate_with_slope(n);
      else
        activate_value(n);
      if (n == 0) add_first_input(args.x, m.y[0]);
    });
    if (task.value)
      lanes_to_rows(m.y[last()], count, args.outputs(), task.value + first * args.outputs(), args.outputs());
  }

  void activate_value(int n) const {
    activate_layer(net, n, m.y[n], [&](int64_t row, auto place, T timestep) {
      T* value = place.in(m.y[n], row);
      return [=](int k, T f, T) { value[k] = f * timestep; };
    });
  }

  void activate_with_slope(int n) const {
    const Panels<T> kept = m.f[n].base ? m.f[n] : m.y[n];  // the value, written after it, remains
    activate_layer(net, n, m.y[n], [&](int64_t row, auto place, T timestep) {
      T *value = place.in(m.y[n], row), *slope = place.in(m.slope[n], row), *f_at = place.in(kept, row);
      return [=](int k, T f, T df) {
        f_at[k] = f;
        value[k] = f * timestep;
        slope[k] = df * timestep;
      };
    });
  }

  void activate_layer_twice(int n) const {
    const T threshold = static_cast<T>(args.shape.threshold[n]);
    const Panels<T> kept = m.f[n].base ? m.f[n] : m.y[n], steep = m.df[n].base ? m.df[n] : m.slope[n];
    with_activation(args.shape.activation[n], [&]<Activation kind>() {
      for (int64_t row = 0; row < net.neurons(n); ++row) {
        const T bias = args.layers[n].bias[row], timestep = args.layers[n].timestep[row];
        m.y[n].each([&](auto place) {
          T *y = place.in(m.y[n], row), *slope = place.in(m.slope[n], row);
          T *curve = place.in(m.curve[n], row), *f_at = place.in(kept, row), *df_at = place.in(steep, row);
          MDOPS_INDEPENDENT
          for (int k = 0; k < kLanes<T>; ++k) {
            T f, df, ddf;
            activate_twice<kind>(y[k] + bias, threshold, &f, &df, &ddf);
            f_at[k] = f, df_at[k] = df;
            y[k] = f * timestep, slope[k] = df * timestep, curve[k] = ddf * timestep;
          }
        });
      }
    });
  }

  // Along the direction.
  void tangents() const {
    first_product(task.direction, m.dz[0]);
    layers_up(net, m.dz, m.dy, [&](int n) {
      times(m.slope[n], m.dz[n], net.neurons(n), m.dy[n]);
      if (n == 0) add_first_input(task.direction, m.dy[0]);
    });
    if (task.tangent)
      lanes_to_rows(m.dy[last()], count, args.outputs(), task.tangent + first * args.outputs(),
                    args.outputs());
  }

  static void times(const Panels<T>& a, const Panels<T>& b, int64_t rows, const Panels<T>& out) {
    for (int64_t row = 0; row < rows; ++row)
      out.each([&](auto place) {
        const Vector<T> product = vector_at(place.in(a, row)) * vector_at(place.in(b, row));
        store(place.in(out, row), product);
      });
  }

  void begin_gradient(const T* given, const Panels<T>& to) const {
    const int64_t outputs = args.outputs();
    if (given) return rows_to_lanes(given + first * outputs, outputs, count, outputs, to);
    for (int64_t row = 0; row < outputs; ++row)
      to.each([&](auto place) { store(place.in(to, row), Vector<T>{}); });
    if (!task.of_first_output) return;
    for (int64_t a = 0; a < count; ++a) to.panel(a / to.kWide * to.kWide)[a % to.kWide] = 1;
  }

  // Turns gradients by y and dy, `grad` and `grad_dy`, into those by z and dz, `delta` and `delta_dz`; also
  // those by biases and timesteps.
  void layer_gradients(int n, const Panels<T>& delta, const Panels<T>& delta_dz) const {
    const MlpSums at(args);
    const bool second = task.direction;
    for (int64_t row = 0; row < net.neurons(n); ++row) {
      Vector<T> bias{}, steps{};
      delta.each([&](auto place) {
        const auto in = [&](const Panels<T>& panels) { return vector_at(place.in(panels, row)); };
        const Vector<T> grad = in(m.grad[n]), slope = in(m.slope[n]);
        Vector<T> own = slope * grad;
        if (m.f[n].base) steps += in(m.f[n]) * grad;
        if (second) {
          const Vector<T> grad_dy = in(m.grad_dy[n]), dz = in(m.dz[n]);
          own += in(m.curve[n]) * dz * grad_dy;
          if (m.df[n].base) steps += in(m.df[n]) * dz * grad_dy;
          const Vector<T> by_dz = slope * grad_dy;
          store(place.in(delta_dz, row), by_dz);
        }
        store(place.in(delta, row), own);
        bias += own;
      });
      if (!task.sums) continue;
      task.sums[at.bias[n] + row] += sum_lanes<T>(bias);
      task.sums[at.timestep[n] + row] += sum_lanes<T>(steps);
    }
  }

  // Adds rows^T delta over the block's rows to a layer's sums, for `rows` the layer's inputs.
  void add_weights(int n, const auto& left, const Panels<T>& delta) const {
    const Panels<T> across{m.across, lanes, padded<T>(net.neurons(n))};
    clear_from(delta, net.neurons(n));
    transpose(delta, across);
    gemm(args.inputs(n), count, left, across, weight_sums(args, n, task.sums), true);
  }

  void weight_gradients(int n) const {
    if (n) {
      add_weights(n, InLanes<T>{m.y[n - 1]}, m.grad[n]);
      if (task.direction) add_weights(n, InLanes<T>{m.dy[n - 1]}, m.grad_dy[n]);
      return;
    }
    add_weights(0, ByDepth<T>{args.x + first * features(), features()}, m.grad[0]);
    if (task.direction)
      add_weights(0, ByDepth<T>{task.direction + first * features(), features()}, m.grad_dy[0]);
  }

  // Backward through the layers. The gradients by z and dz overwrite those by y and dy, once the residual's
  // part has been passed on.
  void backward() const {
    begin_gradient(task.a, m.grad[last()]);
    if (task.direction) begin_gradient(task.b, m.grad_dy[last()]);
    for (int n = last(); n >= 0; --n) {
      const bool goes_on = args.shape.residual[n];
      if (goes_on && n) {
        mdops::MDOPS_ISA::input_gradient(args.shape, n, m.grad[n], m.grad[n - 1]);
        if (task.direction) mdops::MDOPS_ISA::input_gradient(args.shape, n, m.grad_dy[n], m.grad_dy[n - 1]);
      }
      if (goes_on && !n && task.grad_x) keep_first(m.grad[0]);
      layer_gradients(n, m.grad[n], m.grad_dy[n]);
      if (task.sums) weight_gradients(n);
      if (n == 0) break;
      product_down(net, n, m.grad[n], m.grad[n - 1], goes_on);
      if (task.direction) product_down(net, n, m.grad_dy[n], m.grad_dy[n - 1], goes_on);
    }
    if (task.grad_x) write_input_gradient();
  }

  // Saves the residual's part of the gradient by the input.
  void keep_first(const Panels<T>& grad) const {
    const int64_t inputs = features();
    for (int64_t row = 0; row < inputs; ++row)
      m.input.each([&](auto place) {
        Vector<T> sum = vector_at(place.in(grad, row));
        if (net.neurons(0) > inputs) sum += vector_at(place.in(grad, inputs + row));
        store(place.in(m.input, row), sum);
      });
  }

  void write_input_gradient() const {
    const int64_t cols = net.neurons(0), stride = features();
    const bool streams = task.past_caches && streams_to(task.grad_x, stride * sizeof(T));
    const uint16_t* tiles = net.bf16 ? net.bf16->groups_down : nullptr;
    const Right<T> right(net, m.grad[0], cols);
    for (int64_t from = 0; from < features(); from += kMlpGroup) {
      const Panels<T> group{m.work, features() - from < kMlpGroup ? features() - from : kMlpGroup, lanes};
      tiles = product(net, tiles, group.rows, ByRow<T>{args.layers[0].weight + from * cols, cols}, right,
                      group, false);
      if (args.shape.residual[0])
        for (int64_t row = 0; row < group.rows; ++row)
          group.each(
              [&](auto place) { add_to(place.in(group, row), vector_at(place.in(m.input, from + row))); });
      T* const to = task.grad_x + first * stride + from;
      if (streams)
        lanes_to_rows<true>(group, count, group.rows, to, stride);
      else
        lanes_to_rows(group, count, group.rows, to, stride);
    }
    if (streams) finish_streams();
  }

  void run() const {
    forward();
    if (task.direction) tangents();
    if (task.differentiates()) backward();
  }
};

}  // namespace mdops::MDOPS_ISA
