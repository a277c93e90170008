"""The ops, as functions of tensors; docs/reference/ops.md lists them with their arguments."""

from mdops import _library

_library.load()

# ruff: noqa: E402  (the ops must be registered first)
from mdops.ops.add_norm import add_norm
from mdops.ops.angle_ends import angle_ends
from mdops.ops.angle_moment import AngleGrid, angle_features, angle_moment
from mdops.ops.angle_products import angle_products
from mdops.ops.attention import RaggedPlan, ragged_attention, ragged_plan
from mdops.ops.attention_layer import attention_layer
from mdops.ops.attention_moments import attention_moments
from mdops.ops.axis_product import axis_product
from mdops.ops.degree_norm import degree_norm
from mdops.ops.displacements import displacements, pair_forces
from mdops.ops.dynamics import begin_cell_step, begin_step, end_cell_step, end_step, next_step
from mdops.ops.edge_attention import edge_attention
from mdops.ops.edge_convolution import edge_convolution, edge_correlation
from mdops.ops.edge_environment import edge_environment
from mdops.ops.edge_frames import edge_frames
from mdops.ops.edge_layer import edge_layer
from mdops.ops.edge_rotation import edge_rotate, edge_rotate_back, edge_rotate_outer, edge_rotate_sum
from mdops.ops.edge_softmax import edge_softmax
from mdops.ops.edge_splines import edge_splines
from mdops.ops.edge_update import edge_update
from mdops.ops.env_mat import env_mat
from mdops.ops.fitting_energy import fitting_energy
from mdops.ops.graph import (
    AngleEdges,
    Angles,
    EdgeIndex,
    NeighborGraph,
    edge_gather,
    edge_permute,
    edge_product,
    edge_scatter,
    edge_weighted_sum,
    neighbor_graph,
    segment_softmax,
    segment_weights,
)
from mdops.ops.grid_product import grid_product
from mdops.ops.harmonic_moment import harmonic_forces, harmonic_sums
from mdops.ops.hybrid_potential import hybrid_potential, hybrid_potential_pack
from mdops.ops.layer_output import layer_output
from mdops.ops.linear import degree_linear, linear
from mdops.ops.lowbit import (
    fake_quantize,
    gemm_lowbit,
    lowbit_linear,
    pack_ternary,
    quantize,
    unpack_ternary,
)
from mdops.ops.message import framed_message, message, outer_message
from mdops.ops.mlp import mlp, mlp_value_and_gradient
from mdops.ops.moment_invariants import Terms, moment_invariants, term_gradients
from mdops.ops.moment_product import moment_product
from mdops.ops.neighbor import (
    NeighborList,
    neighbor_list,
    neighbor_matrix,
    neighbor_pairs,
    pack_images,
    unpack_images,
)
from mdops.ops.neighbor_attention import neighbor_attention
from mdops.ops.neighbor_rows import environment_rows, harmonic_rows, neighbor_rows, row_moments, spline_rows
from mdops.ops.node_layer import node_layer
from mdops.ops.node_update import node_update
from mdops.ops.order_mix import order_mix, order_mix_outer
from mdops.ops.order_moments import order_moments
from mdops.ops.own_message import own_message
from mdops.ops.pair_table import near_weight, pair_table
from mdops.ops.scalar_gate import row_gate, scalar_gate
from mdops.ops.so2_layer import so2_layer, so2_messages
from mdops.ops.spline_moment import spline_moment
from mdops.ops.spline_potential import (
    spline_potential,
    spline_potential_pack,
    spline_potential_why_not,
)
from mdops.ops.spline_training import spline_training
from mdops.ops.switch_curve import fade_curve, switch_curve

__all__ = [
    "AngleEdges",
    "AngleGrid",
    "Angles",
    "EdgeIndex",
    "NeighborGraph",
    "NeighborList",
    "RaggedPlan",
    "Terms",
    "add_norm",
    "angle_ends",
    "angle_features",
    "angle_moment",
    "angle_products",
    "attention_layer",
    "attention_moments",
    "axis_product",
    "begin_cell_step",
    "begin_step",
    "degree_linear",
    "degree_norm",
    "displacements",
    "edge_attention",
    "edge_convolution",
    "edge_correlation",
    "edge_environment",
    "edge_frames",
    "edge_gather",
    "edge_layer",
    "edge_permute",
    "edge_product",
    "edge_rotate",
    "edge_rotate_back",
    "edge_rotate_outer",
    "edge_rotate_sum",
    "edge_scatter",
    "edge_softmax",
    "edge_splines",
    "edge_update",
    "edge_weighted_sum",
    "end_cell_step",
    "end_step",
    "env_mat",
    "environment_rows",
    "fade_curve",
    "fake_quantize",
    "fitting_energy",
    "framed_message",
    "gemm_lowbit",
    "grid_product",
    "harmonic_forces",
    "harmonic_rows",
    "harmonic_sums",
    "hybrid_potential",
    "hybrid_potential_pack",
    "layer_output",
    "linear",
    "lowbit_linear",
    "message",
    "mlp",
    "mlp_value_and_gradient",
    "moment_invariants",
    "moment_product",
    "near_weight",
    "neighbor_attention",
    "neighbor_graph",
    "neighbor_list",
    "neighbor_matrix",
    "neighbor_pairs",
    "neighbor_rows",
    "next_step",
    "node_layer",
    "node_update",
    "order_mix",
    "order_mix_outer",
    "order_moments",
    "outer_message",
    "own_message",
    "pack_images",
    "pack_ternary",
    "pair_forces",
    "pair_table",
    "quantize",
    "ragged_attention",
    "ragged_plan",
    "row_gate",
    "row_moments",
    "scalar_gate",
    "segment_softmax",
    "segment_weights",
    "so2_layer",
    "so2_messages",
    "spline_moment",
    "spline_potential",
    "spline_potential_pack",
    "spline_potential_why_not",
    "spline_rows",
    "spline_training",
    "switch_curve",
    "term_gradients",
    "unpack_images",
    "unpack_ternary",
]
