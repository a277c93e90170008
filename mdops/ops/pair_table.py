"""Energies of pairs from a table, and their weights in a blend with another model."""

from typing import Any

import torch

from mdops.ops._register import register_fake


def near_weight(*args: Any) -> tuple[torch.Tensor, ...]:
    """c of each atom, 1 if its neighbours are near and 0 if they are far, as in ZBL models.

    s is the mean distance of an atom's neighbours with the weights exp(-r / decay), near the smallest; c = 1 - 10 v^3 +
    15 v^4 - 6 v^5 with v = (s - low)/(high - low) within [0, 1]. An atom without neighbours has 0. Not differentiable.
    On a GPU an invalid row has NaN.
    `mdops.evaluators.blended` prepares the arguments, in the order of the schema in source/op/library.cpp:

        positions to counts: as everywhere (docs/reference/ops.md);
        near_mask (ntypes, ntypes) bool: pairs of types that are not neighbours of each other;
        near_cutoff, decay, low, high: A.

    Returns:
        weight (N,) float64; within (N, ntypes) int32 and nearest (N,) float64: the neighbours within the cutoff, and
        the nearest one's distance, masked pairs too.
    """
    return torch.ops.mdops.near_weight(*args)


def pair_table(*args: Any) -> tuple[torch.Tensor, ...]:
    """t_i = 1/2 sum_j u(r_ij), u of each pair of types from a table, with the forces and virials of sum_i weight_i t_i,
    in one pass over the list; all in float64. Not differentiable. On a GPU forces and virials are summed in fixed
    point, to 2.8e-14 eV/A and eV a term; an invalid input, a pair nearer than the table begins, or a pair's term
    beyond 1e9, is answered with NaN in all results of its system.

    With `other`, energies e_i of another model, and the forces and virials of their sum with the weights 1 - c_i, the
    results are those of a blend, (1 - c_i) e_i + c_i t_i, `weight` being c: forces have (t_i - e_i) dc_i/dx, too. The
    arguments:

        positions to counts: as everywhere (docs/reference/ops.md);
        pair_mask (ntypes, ntypes) bool: excluded pairs of types;
        coefficients (ntypes, ntypes, n, 4) float64: the cubics of u between `first` and `first + n step`, of each
        centre and neighbour, in x of [0, 1], that of x^3 first, eV. Beyond them and the cutoff u is 0, below NaN;
        weight, other (N,) float64, or (0,): 1, and no blend. Where the weight is 0 the table is not looked at: t_i is
        given as 0;
        other_forces (N, 3), other_virial (S, 3, 3), other_atom_virial (N, 3, 3) float64, or (0, 3, 3) where that is not
        asked for: of a blend; otherwise (0,);
        near_mask to high: those of `near_weight`, for a blend;
        first, step, cutoff, A; atom_virial: whether that is asked for.

    Returns:
        atom_energy (N,), forces (N, 3), virial (S, 3, 3) float64; within (N, ntypes) int32 and nearest (N,) float64 of
        the cutoff, masked pairs too, but of a blend 0 and the cutoff, which `near_weight` looks at; atom_virial (N, 3,
        3) float64, or (0, 3, 3).
    """
    return torch.ops.mdops.pair_table(*args)


@register_fake("near_weight")
def _(positions: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    counts, n = args[5], positions.shape[0]
    return positions.new_empty(n), counts.new_empty(counts.shape), positions.new_empty(n)


@register_fake("pair_table")
def _(positions: Any, cell: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    counts, n = args[4], positions.shape[0]
    return (
        positions.new_empty(n),
        positions.new_empty((n, 3)),
        positions.new_empty((cell.shape[0], 3, 3)),
        counts.new_empty(counts.shape),
        positions.new_empty(n),
        positions.new_empty((n if args[-1] else 0, 3, 3)),
    )
