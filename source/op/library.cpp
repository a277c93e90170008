// Every op of mdops: the whole interface on one page. docs/reference/ops.md explains the arguments.
#include <torch/csrc/stable/library.h>

#include <sstream>
#include <string>

// A schema begins where a line does, and goes on in lines that are indented.
static constexpr const char* kSchemas = R"(
// The instruction set the CPU kernels use: "v2", "v3", "v4" (x86-64 levels) or "portable".
cpu_isa() -> str
// Its bfloat16 units: "amx", "avx512_bf16" or "".
cpu_bf16() -> str
// The CUDA versions the CUDA library was built with and the driver has: 1000 major + 10 minor.
cuda_versions() -> (int built, int driver)
cuda_is_for_hopper() -> bool

// Neighbour lists.
neighbor_matrix(Tensor positions, Tensor cell, Tensor pbc, Tensor batch, Tensor types, float cutoff,
    int ntypes, SymInt capacity, bool sort) -> (Tensor neighbors, Tensor images, Tensor counts, Tensor needed)
neighbor_pairs(Tensor positions, Tensor cell, Tensor pbc, Tensor batch, Tensor types, float cutoff)
    -> (Tensor i, Tensor j, Tensor shifts)

// Graphs: the edges of a pair list, their reverse edges, their order by a number of theirs, and angles
// between the edges of one atom; rows of numbers from nodes to edges and back.
neighbor_edges(Tensor displacements, Tensor neighbors, Tensor images, Tensor counts, Tensor types,
    Tensor pair_mask, float cutoff, float angle_cutoff, SymInt edge_sel, SymInt angle_sel, SymInt nodes,
    SymInt capacity) -> (Tensor i, Tensor j, Tensor images, Tensor slots, Tensor offsets, Tensor edge_of_slot,
    Tensor angle_neighbors, Tensor within, Tensor needed)
edge_reverse(Tensor i, Tensor j, Tensor images, Tensor offsets) -> Tensor
edge_order(Tensor index, SymInt rows) -> (Tensor order, Tensor offsets)
edge_angles(Tensor offsets, Tensor counts, SymInt edges, SymInt capacity) -> (Tensor first, Tensor second,
    Tensor mirror, Tensor angle_offsets, Tensor needed)
edge_gather(Tensor x, Tensor index, Tensor? order, Tensor offsets, Tensor? base, SymInt width) -> Tensor
edge_scatter(Tensor y, Tensor index, Tensor? order, Tensor offsets, Tensor? base, Tensor? more, SymInt width)
    -> Tensor
edge_product(Tensor x, Tensor x_index, Tensor? x_order, Tensor x_offsets, Tensor y, Tensor y_index,
    Tensor? y_order, Tensor y_offsets) -> Tensor
edge_weighted_sum(Tensor weight, Tensor x, Tensor x_index, Tensor? x_order, Tensor x_offsets, Tensor index,
    Tensor? order, Tensor offsets) -> Tensor
edge_rotate(Tensor turn, Tensor x, Tensor index, Tensor? order, Tensor offsets) -> Tensor
edge_rotate_sum(Tensor turn, Tensor y, Tensor index, Tensor? order, Tensor offsets) -> Tensor
edge_rotate_back(Tensor turn, Tensor y, Tensor weight, Tensor index, Tensor? order, Tensor offsets) -> Tensor
edge_rotate_back_backward(Tensor grad, Tensor turn, Tensor y, Tensor weight, Tensor index, Tensor? order,
    Tensor offsets) -> (Tensor, Tensor, Tensor)
edge_rotate_outer(Tensor y, Tensor x, Tensor index, Tensor? order, Tensor offsets) -> Tensor
grid_product(Tensor a, Tensor b, Tensor out, Tensor u, Tensor v, bool by_angles=False) -> Tensor
order_mix(Tensor numbers, Tensor x, int degree, bool transposed) -> Tensor
order_mix_outer(Tensor x, Tensor y, int degree) -> Tensor
order_moments(Tensor turn, Tensor y, Tensor weight, Tensor index, Tensor? order, Tensor offsets) -> Tensor
order_moments_backward(Tensor grad, Tensor turn, Tensor y, Tensor weight, Tensor index, Tensor? order,
    Tensor offsets) -> (Tensor, Tensor, Tensor)
edge_softmax(Tensor q, Tensor k, Tensor bias, Tensor fades, Tensor nothing, Tensor atom_index,
    Tensor atom_offsets, Tensor node_index, Tensor? node_order, Tensor node_offsets, float scale) -> Tensor
edge_softmax_backward(Tensor grad, Tensor q, Tensor k, Tensor bias, Tensor fades, Tensor nothing,
    Tensor atom_index, Tensor atom_offsets, Tensor node_index, Tensor? node_order, Tensor node_offsets,
    float scale) -> (Tensor, Tensor, Tensor, Tensor)
edge_splines(Tensor lengths, Tensor kinds, Tensor table, float cutoff) -> Tensor
edge_splines_backward(Tensor grad, Tensor lengths, Tensor kinds, Tensor table, float cutoff) -> Tensor
degree_norm(Tensor x, Tensor factors, Tensor bias, Tensor shares, float eps, bool centered) -> Tensor
degree_norm_backward(Tensor grad, Tensor x, Tensor factors, Tensor bias, Tensor shares, float eps,
    bool centered) -> Tensor
degree_norm_terms(Tensor grad, Tensor x, Tensor shares, float eps, bool centered) -> Tensor
degree_norm_backward_backward(Tensor direction, Tensor grad, Tensor x, Tensor factors, Tensor shares,
    float eps, bool centered) -> (Tensor by_grad, Tensor by_x, Tensor terms)
scalar_gate(Tensor x, Tensor gate, Tensor scalars) -> Tensor
scalar_gate_backward(Tensor grad, Tensor x, Tensor gate, Tensor scalars) -> (Tensor, Tensor, Tensor)
scalar_gate_backward_backward(Tensor along_x, Tensor along_gate, Tensor along_scalars, Tensor grad, Tensor x,
    Tensor gate, Tensor scalars) -> (Tensor, Tensor, Tensor, Tensor)
row_gate(Tensor x, Tensor gate) -> Tensor
row_gate_backward(Tensor grad, Tensor x, Tensor gate) -> (Tensor, Tensor)
row_gate_backward_backward(Tensor along_x, Tensor along_gate, Tensor grad, Tensor x, Tensor gate) -> (Tensor,
    Tensor, Tensor)
edge_frames(Tensor vectors, int degree, int order) -> (Tensor harmonics, Tensor turn)
edge_frames_backward(Tensor by_harmonics, Tensor by_turn, Tensor vectors, int degree, int order) -> Tensor
edge_frames_backward_backward(Tensor changes, Tensor by_harmonics, Tensor by_turn, Tensor vectors, int degree,
    int order) -> (Tensor harmonics, Tensor turn, Tensor by_vectors)
so2_layer(Tensor x, Tensor weight, Tensor both, Tensor gate, str matmul, int groups=1) -> Tensor
so2_messages(Tensor vectors, Tensor mixture, Tensor x, Tensor weight, Tensor index, Tensor? order,
    Tensor offsets, Tensor center_index, Tensor? center_order, Tensor center_offsets, Tensor[] weights,
    Tensor[] both, Tensor[] gates, str matmul) -> (Tensor sums, Tensor y)
so2_messages_backward(Tensor grad, Tensor y, Tensor vectors, Tensor mixture, Tensor x, Tensor weight,
    Tensor index, Tensor? order, Tensor offsets, Tensor center_index, Tensor? center_order,
    Tensor center_offsets, Tensor[] weights, Tensor[] both, Tensor[] gates, str matmul) -> (Tensor by_vectors,
    Tensor by_mixture, Tensor by_x, Tensor by_weight)
so2_layer_backward(Tensor grad, Tensor x, Tensor weight, Tensor both, Tensor gate, str matmul, int groups,
    Tensor result) -> Tensor
edge_environment(Tensor displacements, Tensor slots, Tensor edge_of_slot, Tensor types, Tensor mean,
    Tensor std, float smooth, float cutoff, float protection, float of_means, float of_turning)
    -> (Tensor lengths, Tensor vectors, Tensor weight, Tensor means, Tensor turning)
edge_environment_backward(Tensor by_lengths, Tensor by_vectors, Tensor by_weight, Tensor by_means,
    Tensor by_turning, Tensor displacements, Tensor slots, Tensor edge_of_slot, Tensor types, Tensor mean,
    Tensor std, float smooth, float cutoff, float protection, float of_means, float of_turning) -> Tensor
own_message(Tensor x, Tensor weight, Tensor bias, Tensor factor, float keep, int activation, float threshold)
    -> Tensor
own_message_backward(Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor factor, float keep,
    int activation, float threshold) -> Tensor
edge_permute(Tensor x, Tensor index, Tensor inverse) -> Tensor
segment_weights(Tensor x, Tensor weight, Tensor nothing, Tensor offsets) -> Tensor
segment_weights_backward(Tensor grad, Tensor x, Tensor weight, Tensor nothing, Tensor offsets)
    -> (Tensor by_x, Tensor by_weight, Tensor by_nothing)
segment_weights_backward_backward(Tensor along_x, Tensor along_weight, Tensor along_nothing, Tensor grad,
    Tensor x, Tensor weight, Tensor nothing, Tensor offsets) -> (Tensor, Tensor, Tensor, Tensor)
segment_softmax(Tensor x, Tensor offsets) -> Tensor
segment_softmax_backward(Tensor grad, Tensor x, Tensor offsets) -> Tensor
segment_softmax_backward_backward(Tensor direction, Tensor grad, Tensor x, Tensor offsets)
    -> (Tensor grad_grad, Tensor grad_x)

// Convolutions along edges, and the derivatives of the form that they are one of.
edge_convolution(Tensor x, Tensor b, Tensor w, Tensor t, Tensor weight, Tensor x_index, Tensor? x_order,
    Tensor x_offsets, Tensor a_index, Tensor? a_order, Tensor a_offsets) -> Tensor
edge_convolution_nodes(Tensor a, Tensor b, Tensor w, Tensor t, Tensor weight, Tensor a_index, Tensor? a_order,
    Tensor a_offsets, Tensor x_index, Tensor? x_order, Tensor x_offsets) -> Tensor
edge_convolution_edges(Tensor a, Tensor x, Tensor b, Tensor w, Tensor weight, Tensor a_index, Tensor? a_order,
    Tensor a_offsets, Tensor x_index, Tensor? x_order, Tensor x_offsets) -> (Tensor by_b, Tensor by_w,
    Tensor by_t)
edge_convolution_own(Tensor a, Tensor own, Tensor x, Tensor b, Tensor w, Tensor t, Tensor weight,
    Tensor a_index, Tensor? a_order, Tensor a_offsets, Tensor x_index, Tensor? x_order, Tensor x_offsets)
    -> (Tensor by_b, Tensor by_w, Tensor by_t)
edge_convolution_weight(Tensor a, Tensor x, Tensor b, Tensor w, Tensor a_index, Tensor? a_order,
    Tensor a_offsets, Tensor x_index, Tensor? x_order, Tensor x_offsets) -> Tensor

// Attention of the edges of an atom to each other, and its derivatives.
edge_attention(Tensor q, Tensor x, Tensor r, Tensor w, Tensor absent, Tensor offsets, float shift, bool gated,
    SymInt longest) -> Tensor
edge_attention_backward(Tensor grad, Tensor q, Tensor x, Tensor r, Tensor w, Tensor absent, Tensor offsets,
    float shift, bool gated, SymInt longest) -> (Tensor q, Tensor x, Tensor r, Tensor w)
edge_attention_backward_backward(Tensor along_q, Tensor along_x, Tensor along_r, Tensor along_w, Tensor grad,
    Tensor q, Tensor x, Tensor r, Tensor w, Tensor absent, Tensor offsets, float shift, bool gated,
    SymInt longest) -> (Tensor grad, Tensor q, Tensor x, Tensor r, Tensor w)
// All that a layer of DPA-2 makes of edges.
edge_layer(Tensor e, Tensor r, Tensor w, Tensor absent, Tensor offsets, Tensor own, Tensor own_bias,
    Tensor own_factor, Tensor queries, Tensor values, Tensor out_bias, Tensor norm, Tensor norm_bias,
    Tensor out_factor, float keep, float shift, bool gated, float eps, int activation, float threshold)
    -> (Tensor out, Tensor saved)
edge_layer_backward(Tensor grad, Tensor saved, Tensor e, Tensor r, Tensor w, Tensor absent, Tensor offsets,
    Tensor own, Tensor own_bias, Tensor own_factor, Tensor queries, Tensor values, Tensor out_bias,
    Tensor norm, Tensor norm_bias, Tensor out_factor, float keep, float shift, bool gated, float eps,
    int activation, float threshold) -> (Tensor by_e, Tensor by_r, Tensor by_w)
// And of nodes.
node_layer(Tensor n, Tensor v, Tensor e, Tensor own, Tensor own_bias, Tensor own_factor, Tensor sum_factor,
    Tensor every, Tensor bias, Tensor factor, bool takes_nodes, float keep, int axis, int activation,
    float threshold, Tensor? packed=None) -> (Tensor out, Tensor z, Tensor z_own)
node_layer_pack(Tensor own, Tensor own_bias, Tensor every, Tensor bias, bool back) -> Tensor
node_layer_backward(Tensor grad, Tensor z, Tensor z_own, Tensor n, Tensor v, Tensor e, Tensor own,
    Tensor own_bias, Tensor own_factor, Tensor sum_factor, Tensor every, Tensor bias, Tensor factor,
    bool takes_nodes, float keep, int axis, int activation, float threshold, Tensor? packed=None)
    -> (Tensor by_n, Tensor by_v, Tensor by_e)

// Products of what two things have: the cosines and weights of angles.
angle_products(Tensor u, Tensor first, Tensor first_offsets, Tensor second, Tensor? second_order,
    Tensor second_offsets) -> (Tensor cosines, Tensor weights)
angle_products_along(Tensor v, Tensor u, Tensor first, Tensor first_offsets, Tensor second,
    Tensor? second_order, Tensor second_offsets) -> (Tensor cosines, Tensor weights)
angle_products_backward(Tensor grad_cosines, Tensor grad_weights, Tensor u, Tensor first,
    Tensor first_offsets, Tensor second, Tensor? second_order, Tensor second_offsets) -> Tensor
// Edges after the messages that some of them received.
edge_update(Tensor base, Tensor z, Tensor scale, Tensor bias, Tensor index, Tensor offsets, int activation,
    float threshold) -> Tensor
edge_update_backward(Tensor grad, Tensor z, Tensor scale, Tensor bias, Tensor index, Tensor offsets,
    int activation, float threshold) -> Tensor

// Nodes after their messages.
node_update(Tensor x, Tensor z, Tensor u, Tensor m, Tensor weights, int activation, float threshold) -> Tensor
node_update_backward(Tensor grad, Tensor z, Tensor u, Tensor weights, int activation, float threshold)
    -> (Tensor z, Tensor u, Tensor m)

// A layer of message passing along edges or angles, and its derivatives.
message(Tensor x, Tensor weight, Tensor p, Tensor q, Tensor row_weight, Tensor scale, Tensor first,
    Tensor first_offsets, Tensor second, Tensor? second_order, Tensor second_offsets, Tensor? groups,
    int activation, float threshold, str matmul) -> (Tensor sent, Tensor kept)
message_backward(Tensor grad_sent, Tensor grad_kept, Tensor x, Tensor weight, Tensor p, Tensor q,
    Tensor row_weight, Tensor scale, Tensor first, Tensor first_offsets, Tensor second, Tensor? second_order,
    Tensor second_offsets, Tensor? groups, int activation, float threshold, str matmul, bool of_weights)
    -> (Tensor x, Tensor weight, Tensor p, Tensor q, Tensor row_weight, Tensor scale)
message_backward_backward(Tensor along_x, Tensor along_p, Tensor along_q, Tensor along_row_weight,
    Tensor grad_sent, Tensor grad_kept, Tensor x, Tensor weight, Tensor p, Tensor q, Tensor row_weight,
    Tensor scale, Tensor first, Tensor first_offsets, Tensor second, Tensor? second_order,
    Tensor second_offsets, Tensor? groups, int activation, float threshold) -> (Tensor grad_sent,
    Tensor grad_kept, Tensor x, Tensor weight, Tensor p, Tensor q, Tensor row_weight, Tensor scale)
framed_message(Tensor x, Tensor weight, Tensor p, Tensor q, Tensor row_weight, Tensor scale, Tensor frame,
    Tensor first, Tensor first_offsets, Tensor second, Tensor? second_order, Tensor second_offsets,
    Tensor taken, Tensor taken_offsets, SymInt width, int activation, float threshold, str matmul)
    -> (Tensor sent, Tensor kept, Tensor moments, Tensor rows)
framed_message_backward(Tensor grad_sent, Tensor grad_kept, Tensor grad_moments, Tensor grad_rows, Tensor x,
    Tensor weight, Tensor p, Tensor q, Tensor row_weight, Tensor scale, Tensor frame, Tensor first,
    Tensor first_offsets, Tensor second, Tensor? second_order, Tensor second_offsets, Tensor taken,
    Tensor taken_offsets, SymInt width, int activation, float threshold, str matmul) -> (Tensor x, Tensor p,
    Tensor q, Tensor row_weight, Tensor frame)
outer_message(Tensor number, Tensor vector, Tensor weight, Tensor p, Tensor q, Tensor row_weight,
    Tensor scale, Tensor first, Tensor first_offsets, Tensor second, Tensor? second_order,
    Tensor second_offsets, Tensor? groups, int activation, float threshold, str matmul) -> (Tensor sent,
    Tensor kept)
outer_message_backward(Tensor grad_sent, Tensor grad_kept, Tensor number, Tensor vector, Tensor weight,
    Tensor p, Tensor q, Tensor row_weight, Tensor scale, Tensor first, Tensor first_offsets, Tensor second,
    Tensor? second_order, Tensor second_offsets, Tensor? groups, int activation, float threshold, str matmul)
    -> (Tensor number, Tensor p, Tensor q, Tensor row_weight)
// What messages along angles add for their two edges.
angle_ends(Tensor x, Tensor of_atom, Tensor weight, Tensor index, Tensor offsets) -> (Tensor p, Tensor q)
angle_ends_backward(Tensor grad_p, Tensor grad_q, Tensor weight, Tensor index, Tensor offsets) -> (Tensor x,
    Tensor of_atom)

// Pair vectors, and what leads back from them to forces and virials.
displacements(Tensor positions, Tensor cell, Tensor batch, Tensor neighbors, Tensor images, ScalarType dtype)
    -> Tensor
displacements_backward(Tensor grad, Tensor batch, Tensor neighbors, Tensor images, SymInt num_systems)
    -> (Tensor grad_positions, Tensor grad_cell)
pair_forces(Tensor grad, Tensor displacements, Tensor batch, Tensor neighbors, SymInt num_systems,
    bool of_atoms=True) -> (Tensor forces, Tensor virial, Tensor atom_virial)
pair_forces_backward(Tensor grad_forces, Tensor grad_virial, Tensor grad_atom_virial, Tensor grad,
    Tensor displacements, Tensor batch, Tensor neighbors) -> (Tensor grad_grad, Tensor grad_displacements)

// The environment matrix.
env_mat(Tensor displacements, Tensor counts, Tensor types, Tensor mean, Tensor std, Tensor pair_mask,
    float cutoff, float cutoff_smooth, float protection, bool radial) -> Tensor
env_mat_backward(Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor std, Tensor pair_mask,
    float cutoff, float cutoff_smooth, float protection, bool radial) -> Tensor
env_mat_backward_backward(Tensor tangent, Tensor grad, Tensor displacements, Tensor counts, Tensor types,
    Tensor std, Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, bool radial)
    -> (Tensor grad_grad, Tensor grad_displacements)

// Spline moments.
spline_moment(Tensor displacements, Tensor counts, Tensor types, Tensor mean, Tensor std, Tensor pair_mask,
    Tensor zeroed, Tensor sel, Tensor padding, float cutoff, float cutoff_smooth, float protection,
    float s_max, float grading, int intervals, bool radial, bool gated) -> (Tensor moments, Tensor within,
    Tensor nearest)
spline_moment_backward(Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor mean,
    Tensor std, Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, float s_max,
    float grading, bool radial, bool gated) -> Tensor
spline_moment_jvp(Tensor tangent, Tensor displacements, Tensor counts, Tensor types, Tensor mean, Tensor std,
    Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, float s_max, float grading,
    int intervals, bool radial, bool gated) -> Tensor
spline_moment_hvp(Tensor tangent, Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor mean,
    Tensor std, Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, float s_max,
    float grading, bool radial, bool gated) -> Tensor

// Moments of the angles between neighbours, and their sums with tables of functions.
angle_moment(Tensor displacements, Tensor counts, Tensor types, Tensor std, Tensor pair_mask, float cutoff,
    float cutoff_smooth, float protection, int exponent, int octaves, int fineness, bool gated)
    -> (Tensor moments, Tensor within, Tensor nearest)
angle_moment_backward(Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor std,
    Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, int exponent, int octaves,
    int fineness, bool gated) -> Tensor
angle_moment_jvp(Tensor tangent, Tensor displacements, Tensor counts, Tensor types, Tensor std,
    Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, int exponent, int octaves,
    int fineness, bool gated) -> Tensor
angle_moment_hvp(Tensor tangent, Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor std,
    Tensor pair_mask, float cutoff, float cutoff_smooth, float protection, int exponent, int octaves,
    int fineness, bool gated) -> Tensor
angle_features(Tensor displacements, Tensor counts, Tensor types, Tensor std, Tensor pair_mask, Tensor tables,
    Tensor gates, float cutoff, float cutoff_smooth, float protection, int exponent, int octaves,
    int fineness) -> (Tensor features, Tensor within, Tensor nearest)
angle_features_backward(Tensor grad, Tensor displacements, Tensor counts, Tensor types, Tensor std,
    Tensor pair_mask, Tensor tables, Tensor gates, float cutoff, float cutoff_smooth, float protection,
    int exponent, int octaves, int fineness) -> Tensor

// The two halves of a time step of many systems, before and after the forces.
begin_step(Tensor positions, Tensor momenta, Tensor forces, Tensor inverse_mass, Tensor batch, Tensor scale,
    Tensor kinetic, Tensor eta, Tensor eta_momenta, Tensor freedom, Tensor noise, float dt, float kT,
    float tau, float keep) -> (Tensor positions, Tensor momenta, Tensor eta, Tensor eta_momenta)
end_step(Tensor positions, Tensor reference, Tensor momenta, Tensor forces, Tensor inverse_mass, Tensor batch,
    Tensor atom_energy, Tensor nearest, Tensor within, Tensor sel, Tensor eta, Tensor eta_momenta,
    Tensor freedom, Tensor tally, float dt, float kT, float tau) -> (Tensor momenta, Tensor scale,
    Tensor kinetic, Tensor energy, Tensor eta, Tensor eta_momenta, Tensor tally)
// The second half of a step and the first one of the next.
next_step(Tensor positions, Tensor reference, Tensor momenta, Tensor forces, Tensor inverse_mass,
    Tensor batch, Tensor atom_energy, Tensor nearest, Tensor within, Tensor sel, Tensor eta,
    Tensor eta_momenta, Tensor freedom, Tensor tally, Tensor noise, float dt, float kT, float tau, float keep)
    -> (Tensor momenta, Tensor scale, Tensor kinetic, Tensor energy, Tensor eta, Tensor eta_momenta,
    Tensor tally, Tensor next_positions, Tensor next_momenta, Tensor next_eta, Tensor next_eta_momenta)
// The halves of atoms in cells that follow a pressure.
begin_cell_step(Tensor positions, Tensor momenta, Tensor forces, Tensor inverse_mass, Tensor batch,
    Tensor scale, Tensor flow, Tensor virial, Tensor cell, Tensor cell_momenta, Tensor xi, Tensor xi_momenta,
    Tensor eta, Tensor eta_momenta, Tensor freedom, Tensor inertia, float dt, float kT, float tau,
    float pressure, float period, bool flexible) -> (Tensor positions, Tensor momenta, Tensor cell,
    Tensor cell_momenta, Tensor xi, Tensor xi_momenta, Tensor eta, Tensor eta_momenta, Tensor moves)
end_cell_step(Tensor positions, Tensor reference, Tensor momenta, Tensor forces, Tensor inverse_mass,
    Tensor batch, Tensor atom_energy, Tensor nearest, Tensor within, Tensor sel, Tensor moves,
    Tensor reference_cell, Tensor virial, Tensor cell, Tensor cell_momenta, Tensor xi, Tensor xi_momenta,
    Tensor eta, Tensor eta_momenta, Tensor freedom, Tensor inertia, Tensor tally, float dt, float kT,
    float tau, float pressure, float period, float cutoff, bool flexible) -> (Tensor momenta, Tensor scale,
    Tensor kinetic, Tensor flow, Tensor energy, Tensor cell_momenta, Tensor xi, Tensor xi_momenta, Tensor eta,
    Tensor eta_momenta, Tensor tally)

// Nets of dense layers on rows, with their derivatives.
mlp(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] timesteps, int[] residual, int[] activations,
    float[] thresholds, str matmul) -> Tensor
mlp_value_and_gradient(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] timesteps, int[] residual,
    int[] activations, float[] thresholds, str matmul) -> (Tensor value, Tensor gradient)
mlp_backward(Tensor grad, Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] timesteps, int[] residual,
    int[] activations, float[] thresholds, str matmul, bool with_weights) -> (Tensor grad_x,
    Tensor[] grad_weights, Tensor[] grad_biases, Tensor[] grad_timesteps)
mlp_backward_backward(Tensor direction, Tensor grad, Tensor grad_value, Tensor x, Tensor[] weights,
    Tensor[] biases, Tensor[] timesteps, int[] residual, int[] activations, float[] thresholds, str matmul,
    bool with_weights) -> (Tensor grad_grad, Tensor grad_x, Tensor[] grad_weights, Tensor[] grad_biases,
    Tensor[] grad_timesteps)

// Attention among the rows of each of many sequences, with its derivatives.
ragged_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor plan, Tensor? bias, Tensor? gate,
    Tensor? switch, Tensor? absent, float scale, float shift, SymInt max_length, str matmul) -> (Tensor out,
    Tensor logsumexp)
ragged_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp,
    Tensor offsets, Tensor plan, Tensor? bias, Tensor? gate, Tensor? switch, Tensor? absent, float scale,
    float shift, SymInt max_length, str matmul) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v,
    Tensor grad_bias, Tensor grad_gate, Tensor grad_switch)
ragged_attention_backward_backward(Tensor dq, Tensor dk, Tensor dv, Tensor? dbias, Tensor? dgate,
    Tensor? dswitch, Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp,
    Tensor offsets, Tensor plan, Tensor? bias, Tensor? gate, Tensor? switch, Tensor? absent, float scale,
    float shift, SymInt max_length, str matmul) -> (Tensor grad_grad_out, Tensor grad_q, Tensor grad_k,
    Tensor grad_v, Tensor grad_bias, Tensor grad_gate, Tensor grad_switch)

// The features T^T T_< of a descriptor.
axis_product(Tensor t, int axis, Tensor? behind) -> Tensor
axis_product_backward(Tensor grad, Tensor t, int axis) -> Tensor

// Spline moments times their tables.
moment_product(Tensor moments, Tensor tables, Tensor rows, Tensor kinds) -> Tensor
moment_product_backward(Tensor grad, Tensor tables, Tensor rows, Tensor kinds) -> Tensor

// Rows of length 1.
unit(Tensor x) -> Tensor
unit_backward(Tensor grad, Tensor x) -> Tensor
unit_backward_backward(Tensor direction, Tensor grad, Tensor x) -> (Tensor grad_grad, Tensor grad_x)
unit_three(Tensor x) -> (Tensor q, Tensor k, Tensor v)
unit_three_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor x) -> Tensor
unit_three_backward_backward(Tensor direction, Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor x)
    -> (Tensor grad_grad_q, Tensor grad_grad_k, Tensor grad_grad_v, Tensor grad_x)

// The product of a dense layer and its adjoints; what the layer makes of it.
linear(Tensor x, Tensor weight, Tensor bias) -> Tensor
linear_input(Tensor grad, Tensor weight) -> Tensor
linear_weight(Tensor x, Tensor grad, bool sums=True) -> (Tensor weight, Tensor bias)
degree_linear(Tensor x, Tensor weight, bool transposed=False) -> Tensor
layer_output(Tensor z, Tensor x, int activation, float threshold) -> Tensor
layer_output_backward(Tensor grad, Tensor z, SymInt inputs, int activation, float threshold)
    -> (Tensor grad_z, Tensor grad_x)
layer_output_backward_backward(Tensor along_z, Tensor along_x, Tensor grad, Tensor z, SymInt inputs,
    int activation, float threshold) -> (Tensor grad_grad, Tensor grad_z)
ragged_plan(Tensor offsets, SymInt max_total, SymInt max_batch, SymInt max_length) -> Tensor

// The switch between two cutoffs, or its derivative of that order.
switch_curve(Tensor r, float cutoff_smooth, float cutoff, int order) -> Tensor
// The fade of DPA-4's edges, or its derivative of that order.
fade_curve(Tensor r, float cutoff, int exponent, int order) -> Tensor

// LayerNorm of a sum, or of x alone.
add_norm(Tensor x, Tensor? y, Tensor weight, Tensor bias, float eps) -> Tensor
add_norm_backward(Tensor grad, Tensor x, Tensor? y, Tensor weight, float eps) -> (Tensor grad_x,
    Tensor grad_weight, Tensor grad_bias)
add_norm_backward_backward(Tensor direction, Tensor along_weight, Tensor along_bias, Tensor grad, Tensor x,
    Tensor? y, Tensor weight, float eps) -> (Tensor grad_grad, Tensor grad_x, Tensor grad_weight)

// A layer of DPA-1's attention, for simulation.
attention_layer(Tensor g, Tensor offsets, Tensor? project_weight, Tensor? project_bias, Tensor out_weight,
    Tensor out_bias, Tensor norm_weight, Tensor norm_bias, Tensor? factors, Tensor? gate, Tensor? switch,
    Tensor? absent, float scale, float shift, float eps, bool normalize, Tensor? plan, SymInt max_length)
    -> (Tensor out, Tensor saved)
attention_layer_backward(Tensor grad, Tensor saved, Tensor g, Tensor offsets, Tensor? project_weight,
    Tensor? project_bias, Tensor out_weight, Tensor out_bias, Tensor norm_weight, Tensor norm_bias,
    Tensor? factors, Tensor? gate, Tensor? switch, Tensor? absent, float scale, float shift, float eps,
    bool normalize, Tensor? plan, SymInt max_length) -> (Tensor grad_g, Tensor grad_gate, Tensor grad_switch)

// The sums behind layers of DPA-1's attention, from rows of coordinates, for simulation.
attention_moments(Tensor rows, Tensor environment, Tensor offsets, Tensor[] inner, Tensor[] out,
    Tensor[] bias, Tensor[] project, Tensor[] project_bias, Tensor[] factors, Tensor norm_weight,
    Tensor norm_bias, Tensor? gate, Tensor? switch, Tensor? absent, float[] scale, float shift, float eps,
    bool normalize, Tensor? plan, SymInt max_length) -> (Tensor moments, Tensor saved)
attention_moments_backward(Tensor grad, Tensor saved, Tensor rows, Tensor environment, Tensor offsets,
    Tensor[] inner, Tensor[] out, Tensor[] bias, Tensor[] project, Tensor[] project_bias, Tensor[] factors,
    Tensor norm_weight, Tensor norm_bias, Tensor? gate, Tensor? switch, Tensor? absent, float[] scale,
    float shift, float eps, bool normalize, Tensor? plan, SymInt max_length) -> (Tensor grad_rows,
    Tensor grad_environment, Tensor grad_gate, Tensor grad_switch)

// The neighbours that count as rows of numbers, atom after atom, and sums over them.
neighbor_rows(Tensor displacements, Tensor counts, Tensor types, Tensor pair_mask, Tensor zeroed,
    float cutoff) -> (Tensor offsets, Tensor slots, Tensor taken, Tensor within, Tensor nearest)
spline_rows(Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean, Tensor std,
    Tensor table, float cutoff, float cutoff_smooth, float protection, float s_max, float grading,
    SymInt rows, bool gated) -> (Tensor environment, Tensor switch, Tensor directions, Tensor g)
spline_rows_backward(Tensor grad_environment, Tensor grad_switch, Tensor grad_directions, Tensor grad_g,
    Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean, Tensor std, Tensor table,
    float cutoff, float cutoff_smooth, float protection, float s_max, float grading, SymInt rows, bool gated)
    -> Tensor
environment_rows(Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean, Tensor std,
    float cutoff, float cutoff_smooth, float protection, SymInt rows) -> (Tensor environment, Tensor switch,
    Tensor directions, Tensor kinds)
environment_rows_backward(Tensor grad_environment, Tensor grad_switch, Tensor grad_directions,
    Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean, Tensor std, float cutoff,
    float cutoff_smooth, float protection, SymInt rows) -> Tensor
environment_rows_backward_backward(Tensor direction, Tensor grad_environment, Tensor grad_switch,
    Tensor grad_directions, Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean,
    Tensor std, float cutoff, float cutoff_smooth, float protection, SymInt rows)
    -> (Tensor grad_grad_environment, Tensor grad_grad_switch, Tensor grad_grad_directions,
    Tensor grad_displacements)
harmonic_rows(Tensor displacements, Tensor slots, Tensor counts, Tensor types, Tensor mean, Tensor std,
    float cutoff, float cutoff_smooth, float protection, SymInt rows, int degree) -> Tensor
harmonic_rows_backward(Tensor grad, Tensor displacements, Tensor slots, Tensor counts, Tensor types,
    Tensor mean, Tensor std, float cutoff, float cutoff_smooth, float protection, SymInt rows, int degree)
    -> Tensor
harmonic_rows_backward_backward(Tensor direction, Tensor grad, Tensor displacements, Tensor slots,
    Tensor counts, Tensor types, Tensor mean, Tensor std, float cutoff, float cutoff_smooth, float protection,
    SymInt rows, int degree) -> (Tensor grad_grad, Tensor grad_displacements)
harmonic_sums(Tensor displacements, Tensor counts, Tensor types, Tensor pair_mask, Tensor table, Tensor rows,
    Tensor slopes, Tensor pieces, float cutoff, int intervals, int degree, int seconds) -> (Tensor first,
    Tensor second, Tensor within, Tensor nearest)
harmonic_sums_backward(Tensor by_first, Tensor by_second, Tensor displacements, Tensor counts, Tensor types,
    Tensor pair_mask, Tensor table, Tensor rows, Tensor slopes, Tensor pieces, float cutoff, int intervals,
    int degree, int seconds) -> Tensor
harmonic_forces(Tensor by_first, Tensor by_second, Tensor most, Tensor nearest, Tensor batch,
    Tensor neighbors, SymInt num_systems, Tensor displacements, Tensor counts, Tensor types, Tensor pair_mask,
    Tensor table, Tensor rows, Tensor slopes, Tensor pieces, float cutoff, int intervals, int degree,
    int seconds) -> (Tensor forces, Tensor virial)
moment_invariants(Tensor scalars, Tensor others, Tensor types, Tensor behind, Tensor forth_index,
    Tensor forth_factor, Tensor forth_offsets, Tensor back_index, Tensor back_factor, Tensor back_offsets,
    int mixed, int made) -> Tensor
moment_invariants_backward(Tensor grad, Tensor scalars, Tensor others, Tensor types, Tensor behind,
    Tensor forth_index, Tensor forth_factor, Tensor forth_offsets, Tensor back_index, Tensor back_factor,
    Tensor back_offsets, int mixed, int made) -> (Tensor, Tensor)
row_moments(Tensor environment, Tensor g, Tensor offsets, bool leaves_rest, Tensor? index, Tensor? order,
    Tensor? node_offsets) -> Tensor
row_moments_backward(Tensor grad, Tensor environment, Tensor g, Tensor offsets, bool leaves_rest,
    Tensor? index, Tensor? order, Tensor? node_offsets) -> (Tensor grad_environment, Tensor grad_g)

// A whole model with splines: energies, forces and virials in one pass, for simulation.
spline_potential_pack(Tensor[] weights, Tensor[] biases, Tensor[] timesteps, int width, int axis, str matmul)
    -> Tensor
spline_potential_why_not(Tensor like, int tables, int intervals, int width, int axis, int[] neurons,
    int extra) -> str
spline_potential(Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images,
    Tensor counts, Tensor mean, Tensor std, Tensor pair_mask, Tensor zeroed, Tensor sel, Tensor padding,
    Tensor tables, Tensor nets, Tensor extra, Tensor scale, Tensor shift, float cutoff, float cutoff_smooth,
    float protection, float s_max, float grading, int width, int axis, int[] neurons, int[] residual,
    bool gated, int activation, float threshold, str matmul, bool atom_virial) -> (Tensor atom_energy,
    Tensor forces, Tensor virial, Tensor within, Tensor nearest, Tensor atom_virial)

// The same of several descriptors side by side, whose lists have an entry each, and further inputs of the
// net.
hybrid_potential_pack(Tensor[] weights, Tensor[] biases, Tensor[] timesteps, int[] width, int[] axis)
    -> Tensor
hybrid_potential(Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images,
    Tensor counts, Tensor[] mean, Tensor[] std, Tensor[] pair_mask, Tensor[] zeroed, Tensor[] sel,
    Tensor[] padding, Tensor[] absent, Tensor[] tables, Tensor nets, Tensor extra, Tensor weight,
    Tensor scale, Tensor shift, float[] cutoff, float[] cutoff_smooth, float[] protection, float[] s_max,
    float[] grading, int[] width, int[] axis, int[] gated, int[] neurons, int[] residual, int activation,
    float threshold, Tensor near_mask, float near_cutoff, float decay, float low, float high,
    Tensor table_mask, Tensor coefficients, float table_first, float table_step, float table_cutoff,
    bool atom_virial) -> (Tensor atom_energy, Tensor forces, Tensor virial, Tensor within, Tensor nearest,
    Tensor grad_extra, Tensor atom_virial, Tensor near_weight)

// The packed net of such a model alone, for rows of features that are there.
fitting_energy(Tensor features, Tensor types, Tensor nets, Tensor weight, Tensor scale, Tensor shift,
    int[] neurons, int[] residual, int activation, float threshold) -> (Tensor atom_energy, Tensor gradient)

// The same with the gradients that a loss on its results has by the tables and the nets, for training.
spline_training(Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images,
    Tensor counts, Tensor mean, Tensor std, Tensor pair_mask, Tensor zeroed, Tensor sel, Tensor padding,
    Tensor tables, Tensor[] nets, Tensor extra, Tensor scale, Tensor shift, float cutoff, float cutoff_smooth,
    float protection, float s_max, float grading, int width, int axis, int[] neurons, int[] residual,
    bool gated) -> (Tensor atom_energy, Tensor forces, Tensor virial, Tensor within, Tensor nearest,
    Tensor saved)
spline_training_backward(Tensor grad_energy, Tensor grad_forces, Tensor grad_virial, Tensor saved,
    Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images, Tensor counts,
    Tensor mean, Tensor std, Tensor pair_mask, Tensor zeroed, Tensor sel, Tensor padding, Tensor tables,
    Tensor[] nets, Tensor extra, Tensor scale, Tensor shift, float cutoff, float cutoff_smooth,
    float protection, float s_max, float grading, int width, int axis, int[] neurons, int[] residual,
    bool gated) -> (Tensor grad_tables, Tensor[] grad_nets)

// Energies of pairs from a table, alone or blended with other energies of the atoms, for simulation; and
// the weights of such a blend.
near_weight(Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images,
    Tensor counts, Tensor near_mask, float near_cutoff, float decay, float low, float high) -> (Tensor weight,
    Tensor within, Tensor nearest)
pair_table(Tensor positions, Tensor cell, Tensor batch, Tensor types, Tensor neighbors, Tensor images,
    Tensor counts, Tensor pair_mask, Tensor coefficients, Tensor weight, Tensor other, Tensor other_forces,
    Tensor other_virial, Tensor other_atom_virial, Tensor near_mask, float first, float step, float cutoff,
    float near_cutoff, float decay, float low, float high, bool atom_virial) -> (Tensor atom_energy,
    Tensor forces, Tensor virial, Tensor within, Tensor nearest, Tensor atom_virial)

// Products of low-bit numbers.
gemm_lowbit(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, ScalarType out_dtype) -> Tensor
quantize(Tensor x, str kind, str per, int groups) -> (Tensor values, Tensor scale)
fake_quantize(Tensor x, str kind, str per, int groups) -> Tensor
lowbit_linear(Tensor x, Tensor weight, str x_kind, str weight_kind, str weight_per, int groups) -> Tensor
pack_ternary(Tensor values) -> Tensor
unpack_ternary(Tensor packed, SymInt rows) -> Tensor
)";

STABLE_TORCH_LIBRARY(mdops, m) {
  std::istringstream lines(kSchemas);
  std::string schema, line;
  const auto define = [&] {
    if (!schema.empty()) m.def(schema.c_str());
  };
  while (std::getline(lines, line)) {
    const size_t from = line.find_first_not_of(' ');
    if (from == std::string::npos || line.compare(from, 2, "//") == 0) continue;
    if (from == 0) define(), schema.clear();
    schema += (from ? " " : "") + line.substr(from);
  }
  define();
}
