"""A model of several descriptors side by side in one op, for simulation."""

from typing import Any

import torch

from mdops.ops._register import register_fake


def hybrid_potential(*args: Any) -> tuple[torch.Tensor, ...]:
    """Energies, forces and virials of a model whose fitting net takes several descriptors of sums over neighbours and
    further inputs, in one pass over blocks of atoms, like `spline_potential` for one descriptor.

    Forces and virials are those of sum_i weight_i e_i, with the returned energies e_i. The gradient of that sum by the
    further inputs is a result, so that their part can be added if they depend on positions.
    `mdops.evaluators.one_op` prepares the arguments, in the order of the schema in source/op/library.cpp. Those
    up to `tables`, and from `cutoff` to `gated`, are `spline_potential`'s, from `mean` on as lists with an entry per
    descriptor; all share the list and `counts`. The others:

        absent: for each descriptor (N, ntypes) int32, the number of neighbours of each type that count as absent; or
        (0, ntypes), if it follows from `sel` and the neighbours within the cutoff;
        nets (ntypes, P), or (1, P) for all types: what `hybrid_potential_pack` makes;
        extra (N, E); weight (N,) float64, or (0,) for 1; scale and shift as for `spline_potential`;
        neurons, residual, activation, threshold;
        near_mask to high: those of `near_weight`, of a blend with a pair table, `high` within the longest cutoff; and
        table_mask to table_cutoff: `pair_mask` to `cutoff` of `pair_table`, without weights. Then e_i have the weights
        1 - c_i, of which grad_extra is, and energies, forces and virials are the blend's, (1 - c_i) e_i + c_i t_i. Or
        masks (0, 0) and coefficients (0, 0, 0, 4);
        atom_virial: whether it is asked for.

    Not differentiable. On a GPU it computes in float32, is a fixed sequence of kernels that never waits for the host,
    and answers an invalid input with NaN in all results of its system.

    Returns:
        atom_energy (N,), forces (N, 3), virial (S, 3, 3) float64; within (N, descriptors, ntypes) int32 and nearest
        (N,), that of the longest cutoff; grad_extra (N, E); atom_virial (N, 3, 3) float64, or (0, 3, 3);
        near_weight (N,) float64, c, or (0,).
    """
    return torch.ops.mdops.hybrid_potential(*args)


def hybrid_potential_pack(
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    timesteps: list[torch.Tensor],
    width: list[int],
    axis: list[int],
) -> torch.Tensor:
    """A fitting net in the layout of `hybrid_potential` on the device of its weights, (P,).

    Args:
        weights: (inputs, outputs) of each layer, the output layer, (inputs, 1), last. The first one has width *
            max(axis, 1) inputs for each descriptor, in DeePMD-kit's order, and then the extra ones.
        biases, timesteps: (outputs,) of each layer; the output layer's timestep is not used.
        width, axis: M and M2 of each descriptor; a plain sum, with axis 0, has `width` inputs. There may be no
            descriptor; then all inputs are extra ones.
    """
    return torch.ops.mdops.hybrid_potential_pack(weights, biases, timesteps, width, axis)


@register_fake("hybrid_potential_pack")
def _(weights: Any, *args: Any) -> torch.Tensor:
    return weights[0].new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("hybrid_potential")
def _(positions: Any, cell: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    counts, means, extra, n, double = args[4], args[5], args[14], positions.shape[0], torch.float64
    return (
        positions.new_empty(n, dtype=double),
        positions.new_empty((n, 3), dtype=double),
        positions.new_empty((cell.shape[0], 3, 3), dtype=double),
        counts.new_empty((n, len(means), counts.shape[1])),
        means[0].new_empty(n),
        extra.new_empty(extra.shape),
        positions.new_empty((n if args[-1] else 0, 3, 3), dtype=double),
        positions.new_empty(n if args[-11].shape[0] else 0, dtype=double),
    )
