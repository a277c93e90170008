"""A whole model with splines in one op, for simulation."""

from typing import Any

import torch

from mdops.ops._register import register_fake


def spline_potential(*args: Any) -> tuple[torch.Tensor, ...]:
    """Energies, forces and virials of a model of one descriptor of sums over neighbours (se_e2_a, se_e2_r, DPA-1
    without attention) whose embedding nets are splines, in one pass.

    On the CPU it works through blocks of atoms that stay in the processor's cache, from moments to forces
    (mathematics.md). On a GPU it is a fixed sequence of kernels that never waits for the host and can be captured
    (inference-step.md); there it computes in float32, its results have the same bits in every run, and an invalid
    input gives NaN in all results of its system. `matmul` names the accuracy of the fitting net's
    products: "float32", on a GPU from pairs of float16 with 22 bits, or "tf32", on a GPU from one float16 with 11 bits,
    which the CPU refuses. Not differentiable: for training, compose
    `spline_moment` with plain PyTorch.
    `mdops.evaluators.one_op` prepares the arguments, in the order of the schema in source/op/library.cpp:

        positions (N, 3) and cell (S, 3, 3) float64; batch, types (N,), neighbors, images (N, K) and
        counts (N, ntypes) int32: as everywhere (docs/reference/ops.md);
        mean (ntypes,), std (ntypes, 2): as for `env_mat`;
        pair_mask, zeroed (ntypes, ntypes) bool: excluded pairs of types, and those of them that are not padding;
        sel (ntypes,) and padding (0,) int32; or sel (1,) and padding (N,), the type of the absent neighbours of each
        atom, if neighbours of all types share slots: as for `spline_moment`;
        tables (ntypes, ntypes * B, width padded to 16): the spline coefficients of each centre's type / N_sel; if
        `gated` (ntypes, (1 + ntypes) * B, ..), those of g_c before those of the g_ct that have the gate;
        nets (ntypes, P), or (1, P) for all types: the fitting nets, from `spline_potential_pack` with the same
        `matmul`;
        extra (N, E): further inputs of the fitting nets;
        scale (ntypes,), or (1,) with one net, and shift (ntypes,), float64: the energy of an atom is
        scale * net + shift, eV;
        cutoff, cutoff_smooth, protection (A), s_max, grading (1/A), width, axis, neurons, residual (0 or 1 for each
        hidden layer), gated, activation (its code), threshold (of silut), matmul and atom_virial, whether that is
        asked for.

    With axis 0 the descriptor is a plain sum (se_e2_r): 1 replaces R, and neighbours in `zeroed` count with s = mean.
    Atoms that share one net for all types are processed together: many types cost no more than few.

    Returns:
        atom_energy (N,) float64, forces (N, 3) float64, virial (S, 3, 3) float64, within (N, ntypes) int32
        and nearest (N,) as from `spline_moment`, and atom_virial (N, 3, 3) float64: of atom j the sum over the pairs
        d = x_j - x_i from other atoms i to it of -dE_i/dd (x) d, eV; (0, 3, 3) unless it is asked for.
    """
    return torch.ops.mdops.spline_potential(*args)


def spline_potential_pack(
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    timesteps: list[torch.Tensor],
    width: int,
    axis: int,
    matmul: str = "float32",
) -> torch.Tensor:
    """One fitting net in the layout of the kernels of this processor or GPU, (P,).

    Args:
        weights: (inputs, outputs) of each layer, the output layer, (inputs, 1), last; the first has width * axis
            inputs, in DeePMD-kit's order, and then the extra ones.
        biases, timesteps: (outputs,) of each layer.
        width, axis: M and M2; a plain sum, with axis 0, has `width` inputs.
        matmul: the least accuracy of products: "float32", "bf16x6", "bf16x3", "bf16", or on a GPU alone "tf32".
    """
    return torch.ops.mdops.spline_potential_pack(weights, biases, timesteps, width, axis, matmul)


def spline_potential_why_not(
    like: torch.Tensor,
    *,
    tables: int,
    intervals: int,
    width: int,
    axis: int,
    neurons: list[int],
    extra: int = 0,
) -> str | None:
    """Why `spline_potential` (and on the CPU `spline_training`) cannot take a model of these sizes; None if it can.

    The limits are those of the device: on a GPU they follow from its shared memory.

    Args:
        like: (any,) a tensor of the model's device and dtype.
        tables, intervals: the number of tables per type of centre, one per type and one more with a gate, and the
            pieces of each spline.
        width, axis: M and M2.
        neurons: of each hidden layer of the fitting nets.
        extra: their inputs beside the descriptor's.
    """
    why = torch.ops.mdops.spline_potential_why_not(like, tables, intervals, width, axis, neurons, extra)
    return why or None


@register_fake("spline_potential")
def _(*args: Any) -> tuple[torch.Tensor, ...]:
    atoms = args[0].shape[0] if args[-1] else 0
    return *blank_results(*args), args[0].new_empty((atoms, 3, 3), dtype=torch.float64)


def blank_results(positions: Any, cell: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    """Energies to `nearest`, of the right shapes and dtypes for the op's arguments."""
    counts, mean = args[4], args[5]
    n, double = positions.shape[0], torch.float64
    return (
        positions.new_empty(n, dtype=double),
        positions.new_empty((n, 3), dtype=double),
        positions.new_empty((cell.shape[0], 3, 3), dtype=double),
        counts.new_empty(counts.shape),
        mean.new_empty(n),
    )


@register_fake("spline_potential_pack")
def _(weights: Any, *args: Any) -> torch.Tensor:
    return weights[0].new_empty(torch.library.get_ctx().new_dynamic_size())
