"""T of se_e2_a with the embedding nets as splines: the sum over neighbours comes first."""

import torch

from mdops.nn.moments import Moments
from mdops.nn.se_e2_a import SeE2A
from mdops.nn.spline import SplineGrid
from mdops.ops.spline_moment import spline_moment


def splined_moments(
    descriptor: SeE2A,
    grid: SplineGrid,
    table: torch.Tensor,
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
) -> Moments:
    """T = A^T C / N_sel from pair vectors (N, K, 3), their counts (N, ntypes) and the centres' types (N,).

    `table` is C (ntypes, ntypes, B, M) of [centre, neighbour], zero for the pairs of types that are masked.
    """
    d = descriptor
    moments, within, nearest = spline_moment(
        displacements,
        counts,
        types,
        d.mean,
        d.std,
        torch.tensor(d.sel, dtype=torch.int32, device=types.device),
        cutoff=d.cutoff,
        cutoff_smooth=d.cutoff_smooth,
        protection=d.protection,
        s_max=grid.s_max,
        intervals=grid.intervals,
        pair_mask=d.pair_mask,
    )
    a = moments.flatten(1, 2)
    t = a.new_zeros(a.shape[0], 4, d.width)
    for c in range(d.ntypes):
        index = torch.nonzero(types == c)[:, 0]
        t = t.index_copy(0, index, a[index].transpose(1, 2) @ table[c].flatten(0, 1))
    t = t / d.slots
    if d.has_masked:
        t = t + d.padding(d.absent(within, types) * d.masked(types), types)
    return Moments(t, within, nearest)
