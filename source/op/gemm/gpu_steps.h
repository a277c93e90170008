// The steps after a product of a net, from its sums to the next product's A, for every kernel that has four
// columns of a row at a time. Also each product's arrays: the backward ones overwrite the forward ones, the
// gradient of a layer's values the values, that before the activation the slopes.
#pragma once

#include "gemm/gpu_layer.h"
#include "gemm/gpu_parts.h"

namespace mdops {

enum class LayerStep { forward, last, backward, input };

struct LayerArgs {
  const int32_t* tile_type;  // -1: the tile has no row
  const float* nets;
  int64_t net_size;
  PackedMatrix matrix;
  const float *in, *in_largest;  // rows of A, and a bound of each one's numbers
  int64_t in_stride;
  // Results: rows of `cols` numbers, the first `neurons` of them real.
  float *value, *slope, *largest;
  int64_t stride;
  int cols, neurons;
  // A residual layer's input (forward) or the gradient of its values (backward), of `residual_cols` columns;
  // null if there is none. The last layer's gradient is scale * out_weight.
  const float* residual;
  int64_t residual_stride;
  int residual_cols;
  bool residual_is_out_weight;
  bool keep_value, keep_slope;  // in memory: forward, all slopes are
  int64_t bias, timestep, out_weight;
  const double* scale;
  double* output;  // [row][column block]: parts of the net's output
  Activation activation;
  float threshold;
};

MDOPS_D void load_four(const float* from, float* x) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// A lane's constants of its four columns, for all rows.
struct Columns {
  float inverse[4], bias[4], timestep[4], out_weight[4];

  template <LayerStep Step>
  MDOPS_D void load(const LayerArgs& p, const float* net, int col) {
    load_four(net + p.matrix.columns_at() + col, inverse);
    if constexpr (Step == LayerStep::forward || Step == LayerStep::last) {
      load_four(net + p.bias + col, bias);
      load_four(net + p.timestep + col, timestep);
    }
    if constexpr (Step == LayerStep::last) load_four(net + p.out_weight + col, out_weight);
  }
};

// The input that a residual layer, as wide as its input or twice, adds to four columns.
MDOPS_D void residual_input(const LayerArgs& p, int64_t row, int col, float* x) {
  const float* from = p.residual + row * p.residual_stride;
  if (p.residual_cols % 4 == 0 && col + 4 <= p.neurons) {
    load_four(from + (col >= p.residual_cols ? col - p.residual_cols : col), x);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int c = col + k;
    x[k] = c < p.neurons ? from[c >= p.residual_cols ? c - p.residual_cols : c] : 0.0f;
  }
}

// The residual's part of the gradient by four columns of a layer's input.
MDOPS_D void residual_gradient(const LayerArgs& p, const float* net, float scale, int64_t row, int col,
                               float* x) {
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = 0;
  if (p.residual && p.neurons % 4 == 0) {
    for (int c = col; col < p.neurons && c < p.residual_cols; c += p.neurons) {
      float part[4];
      load_four(p.residual + row * p.residual_stride + c, part);
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] += part[k];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (col + k < p.neurons)
      for (int c = col + k; c < p.residual_cols; c += p.neurons)
        x[k] += p.residual ? p.residual[row * p.residual_stride + c] : scale * net[p.out_weight + c];
}

// A sum of products, of a row and a column scaled by powers of two.
MDOPS_D float unscaled(float sum, float of_column, float of_row) {
  return sum * (of_column * of_row);
}

// Four numbers of a row: as read, then as the step writes them.
struct RowPart {
  float x[4];      // of the product, then for the next product
  float other[4];  // the residual part
  float value[4], slope[4];

  template <LayerStep Step>
  MDOPS_D void load(const LayerArgs& p, const float* net, float scale, int64_t row, int col, float4 sum) {
    x[0] = sum.x, x[1] = sum.y, x[2] = sum.z, x[3] = sum.w;
    if constexpr (Step != LayerStep::input) {
#pragma unroll
      for (int k = 0; k < 4; ++k) other[k] = 0;
    }
    if constexpr (Step == LayerStep::backward) {
      load_four(p.slope + row * p.stride + col, slope);
      if (p.residual || p.residual_is_out_weight) residual_gradient(p, net, scale, row, col, other);
    } else if constexpr (Step != LayerStep::input) {
      if (p.residual) residual_input(p, row, col, other);
    }
  }

  // Columns that are not real become zero, as their weights, timesteps and slopes are.
  template <LayerStep Step>
  MDOPS_D void finish(const LayerArgs& p, const Columns& c, float unscale, float scale, double* output) {
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = unscaled(x[k], c.inverse[k], unscale);
    if constexpr (Step == LayerStep::backward) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        value[k] = x[k] + other[k];
        x[k] = slope[k] = before_activation(value[k], slope[k]);
      }
    } else if constexpr (Step != LayerStep::input) {
      with_activation(p.activation, [&]<Activation kind>() {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          layer_value<kind>(x[k], c.bias[k], c.timestep[k], other[k], p.threshold, value + k, slope + k);
      });
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[k] = value[k];
        if constexpr (Step == LayerStep::last)
          x[k] = slope[k] = end_of_net(value[k], slope[k], c.out_weight[k], scale, output);
      }
    }
  }

  template <LayerStep Step>
  MDOPS_D void store(const LayerArgs& p, int64_t at) const {
    if constexpr (Step == LayerStep::input) {
      store_four(p.value + at, x[0], x[1], x[2], x[3]);
    } else {
      if (Step == LayerStep::forward || p.keep_slope)
        store_four(p.slope + at, slope[0], slope[1], slope[2], slope[3]);
      if (p.keep_value) store_four(p.value + at, value[0], value[1], value[2], value[3]);
    }
  }

  MDOPS_D float largest() const {
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
  }
};

// The arrays of one layer: values and slopes, then their gradients.
struct LayerRows {
  float *value, *slope;
};

// The products of a call. `whole`: one kernel takes rows through all of them, and memory keeps only what is
// read again.
struct NetSteps {
  const NetArgs& call;
  const GpuNet& packed;
  const LayerRows* layers;
  bool whole;

  MDOPS_HD int last() const { return call.net.layers - 1; }

  MDOPS_HD LayerArgs forward(int n) const {
    LayerArgs a = of(packed.forward[n]);
    a.in = n ? layers[n - 1].value : call.inputs, a.in_stride = call.net.depth(n);
    a.in_largest = n ? value_bound(n - 1) : call.bounds;
    write_to(a, n);
    a.largest = n == last() ? grad_bound(n) : value_bound(n);
    a.bias = packed.bias[n], a.timestep = packed.timestep[n];
    if (n && call.net.residual[n]) {
      a.residual = layers[n - 1].value;
      a.residual_stride = call.net.cols(n - 1), a.residual_cols = call.net.neurons[n - 1];
    }
    a.keep_value = n < last() && (!whole || call.net.residual[n + 1]), a.keep_slope = !whole;
    return a;
  }

  // From the gradient before the activation of layer n to that of layer n - 1.
  MDOPS_HD LayerArgs backward(int n) const {
    LayerArgs a = of(packed.backward[n]);
    a.in = layers[n].slope, a.in_stride = call.net.cols(n), a.in_largest = grad_bound(n);
    write_to(a, n - 1);
    a.largest = grad_bound(n - 1);
    if (call.net.residual[n]) {
      a.residual_is_out_weight = n == last();
      if (!a.residual_is_out_weight) a.residual = layers[n].value;
      a.residual_stride = call.net.cols(n), a.residual_cols = call.net.neurons[n];
    }
    a.keep_value = n > 1 && call.net.residual[n - 1], a.keep_slope = !whole;
    return a;
  }

  MDOPS_HD LayerArgs input_gradient() const {
    LayerArgs a = of(packed.backward[0]);
    a.in = layers[0].slope, a.in_stride = call.net.cols(0), a.in_largest = grad_bound(0);
    a.value = call.inputs;
    a.stride = a.cols = a.neurons = call.net.inputs;
    return a;
  }

 private:
  MDOPS_HD LayerArgs of(const PackedMatrix& matrix) const {
    LayerArgs a{};
    a.tile_type = call.tile_type, a.nets = call.nets, a.net_size = call.net_size, a.matrix = matrix;
    a.scale = call.scale, a.output = call.output, a.out_weight = packed.out_weight;
    a.activation = call.net.activation, a.threshold = call.net.threshold;
    return a;
  }

  // Row 0 of the bounds is the input's; then come the layers' values, then the gradients.
  MDOPS_HD float* value_bound(int n) const { return call.bounds + (1 + n) * int64_t{call.rows}; }
  MDOPS_HD float* grad_bound(int n) const { return value_bound(call.net.layers + n); }

  MDOPS_HD void write_to(LayerArgs& a, int n) const {
    a.value = layers[n].value, a.slope = layers[n].slope;
    a.stride = a.cols = call.net.cols(n), a.neurons = call.net.neurons[n];
  }
};

}  // namespace mdops
