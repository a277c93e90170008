"""Statistics of the environment matrix in a training's data, by DeePMD-kit's formulas."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdops.models.neighborhood import Neighborhood, pair_matrix
from mdops.ops import env_mat

# DeePMD-kit's: the deviation of what no atom has, and the smallest one.
_ABSENT_DEVIATION, _SMALLEST_DEVIATION = 0.1, 0.01


@dataclass(frozen=True)
class EnvironmentStatistics:
    """Of the rows of the environment matrix, by the centre's type.

    Attributes:
        mean: (ntypes,), of the radial column, 1/A.
        std: (ntypes, 2), deviations of the radial column and of the three others, 1/A.
    """

    mean: np.ndarray
    std: np.ndarray


def environment_statistics(
    frames: Iterable[Neighborhood],
    *,
    ntypes: int,
    sel: Sequence[int],
    cutoff_smooth: float,
    mixed: bool = False,
    protection: float = 0.0,
    exclude_types: Sequence[Sequence[int]] = (),
) -> EnvironmentStatistics:
    """Mean and deviation of the rows, with absent neighbours (zeros) counted up to sum(sel), as DeePMD-kit.

    Args:
        frames: all pairs of some frames within the descriptor's cutoff, in float64.
        ntypes: how many types there are.
        sel: places for neighbours of each type, or, if `mixed`, of all; of more neighbours only the nearest count.
        cutoff_smooth, protection: of the switch and of the denominators, A.
        exclude_types: pairs of types that do not see each other.
    """
    slots, sums, squares = np.zeros(ntypes), np.zeros((ntypes, 2)), np.zeros((ntypes, 2))
    mask = pair_matrix(exclude_types, ntypes)
    zero, one = torch.zeros(ntypes, dtype=torch.float64), torch.ones(ntypes, 2, dtype=torch.float64)
    for pairs in frames:
        near = dataclasses.replace(pairs, truncates=True).select(sel, mixed=mixed)
        types = near.types
        rows = env_mat(
            near.displacements,
            near.counts,
            types,
            zero,
            one,
            cutoff=pairs.cutoff,
            cutoff_smooth=cutoff_smooth,
            protection=protection,
            pair_mask=mask,
        ).numpy()
        np.add.at(slots, types.numpy(), sum(sel))
        np.add.at(sums, types.numpy(), _columns(rows))
        np.add.at(squares, types.numpy(), _columns(np.square(rows)))
    seen = slots > 0
    count = np.where(seen, slots, 1.0)[:, None] * [1, 3]
    # DeePMD-kit subtracts the mean of x, y and z too, though it only tells how the structures are turned.
    variance = squares / count - (sums / count) ** 2
    std = np.maximum(np.sqrt(np.clip(variance, 0, None)), _SMALLEST_DEVIATION)
    return EnvironmentStatistics((sums / count)[:, 0], np.where(seen[:, None], std, _ABSENT_DEVIATION))


def _columns(rows: np.ndarray) -> np.ndarray:
    """(n, 2): the sums over the radial and over the three angular columns of (n, K, 4)."""
    of_atom = rows.sum(1)
    return np.stack([of_atom[:, 0], of_atom[:, 1:].sum(1)], axis=1)
