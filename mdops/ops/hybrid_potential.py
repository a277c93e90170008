"""A model of several descriptors side by side in one op, for simulation."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import register_fake


def hybrid_potential(*args: Any) -> tuple[torch.Tensor, ...]:
    """Energies, forces and virials of a model whose fitting net stands on several descriptors of sums over neighbours
    and on further inputs, in one pass over blocks of atoms, as `spline_potential` has it for one descriptor.

    Forces and virials are those of sum_i weight_i e_i, with e_i the energies that are given. The gradient of that sum
    by the further inputs is a result, so that who made them from positions can add what they give.
    `mdops.evaluators.fused_parts` prepares the arguments, in the order of the schema in source/op/library.cpp. Those
    up to `tables`, and from `cutoff` to `gated`, are `spline_potential`'s, from `mean` on as lists with an entry a
    descriptor; all have the list and `counts` in common. The others:

        absent: of each descriptor (N, ntypes) int32, how many neighbours of each type count as absent ones; or (0,
        ntypes), where `sel` and the neighbours within the cutoff say it;
        nets (ntypes, P), or (1, P) for all types: what `pack_net` makes;
        extra (N, E); weight (N,) float64, or (0,) for 1; scale and shift as for `spline_potential`;
        neurons, residual, activation, threshold; atom_virial: whether that is asked for.

    Not differentiable. It runs on the CPU.

    Returns:
        atom_energy (N,), forces (N, 3), virial (S, 3, 3) float64; within (N, descriptors, ntypes) int32 and nearest
        (N,), that of the longest cutoff; grad_extra (N, E); atom_virial (N, 3, 3) float64, or (0, 3, 3).
    """
    return torch.ops.mdops.hybrid_potential(*args)


def folded_rows(rows: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """A net's weights (M * max(M2, 1), n) of one descriptor's features as the op has them: each pair of equal
    features, D[k, l] = D[l, k] for k, l < M2, once, with the sum of their weights.

    Args:
        width, axis: M and M2; with axis 0, of a plain sum, nothing changes.
    """
    if axis == 0:
        return rows
    square = rows.view(width, axis, -1)
    head = square[:axis]
    twice = head + head.transpose(0, 1)
    below, on = torch.tril_indices(axis, axis), torch.arange(axis)
    twice[on, on] = head[on, on]
    return torch.cat([twice[below[0], below[1]], square[axis:].flatten(0, 1)])


def pack_net(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    timesteps: Sequence[torch.Tensor],
    descriptors: Sequence[tuple[int, int]],
) -> torch.Tensor:
    """A fitting net in the layout of the op, (P,).

    Args:
        weights: (inputs, outputs) of each layer, the output layer, (inputs, 1), last. The first one has width *
            max(axis, 1) inputs for each descriptor, and then the extra ones.
        biases, timesteps: (outputs,) of each layer; the output layer's timestep does not matter.
        descriptors: width and axis of each.
    """
    sizes = [width * max(axis, 1) for width, axis in descriptors]
    parts = weights[0].split([*sizes, weights[0].shape[0] - sum(sizes)])
    folded = [folded_rows(rows, *shape) for rows, shape in zip(parts, descriptors, strict=False)]
    first = torch.cat([*folded, parts[-1]])
    layers = zip([first, *weights[1:]], biases, timesteps, strict=True)
    return torch.cat([x.flatten() for layer in layers for x in layer][:-1])


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
    )
