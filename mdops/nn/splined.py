"""T of se_e2_a with the embedding nets as splines: the sum over neighbours comes first."""

import torch

from mdops.nn.moments import Moments
from mdops.nn.se_e2_a import SeE2A
from mdops.nn.spline import SplineGrid
from mdops.ops.spline_moment import spline_moment


def pair_moments(
    descriptor: SeE2A,
    grid: SplineGrid,
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A (N, ntypes * B, 4), and `within` and `nearest` as of `mdops.ops.spline_moment`, from pair vectors
    (N, K, 3), their counts (N, ntypes) and the centres' types (N,)."""
    d = descriptor
    moments, within, nearest = spline_moment(
        displacements,
        counts,
        types,
        d.mean,
        d.std,
        d.places,
        cutoff=d.cutoff,
        cutoff_smooth=d.cutoff_smooth,
        protection=d.protection,
        s_max=grid.s_max,
        intervals=grid.intervals,
        pair_mask=d.pair_mask,
    )
    return moments.flatten(1, 2), within, nearest


def pair_gradient(
    descriptor: SeE2A,
    grid: SplineGrid,
    gradient: torch.Tensor,
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
) -> torch.Tensor:
    """dE/dd (N, K, 3) from dE/dA (N, ntypes * B, 4); the others as of `pair_moments`."""
    d = descriptor
    return torch.ops.mdops.spline_moment_backward(
        gradient.unflatten(1, (d.ntypes, -1)),
        displacements,
        counts,
        types,
        d.mean,
        d.std,
        d.pair_mask,
        d.cutoff,
        d.cutoff_smooth,
        d.protection,
        grid.s_max,
        False,
    )


def splined_moments(
    descriptor: SeE2A,
    grid: SplineGrid,
    table: torch.Tensor,
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
) -> Moments:
    """T = A^T C / N_sel; arguments as of `pair_moments`.

    `table` is C (ntypes, ntypes, B, M) of [centre, neighbour], zero for the pairs of types that are masked.
    """
    d = descriptor
    a, within, nearest = pair_moments(d, grid, displacements, counts, types)
    t = a.new_zeros(a.shape[0], 4, d.width)
    for c in range(d.ntypes):
        index = torch.nonzero(types == c)[:, 0]
        t = t.index_copy(0, index, a[index].transpose(1, 2) @ table[c].flatten(0, 1))
    t = t / d.slots
    if d.has_masked:
        t = t + d.padding(d.absent(within, types) * d.masked(types), types)
    return Moments(t, within, nearest)
