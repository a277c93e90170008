"""Statistics of the environment matrix in a training's data, by DeePMD-kit's formulas."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mdops.models.neighborhood import Neighborhood, pair_matrix
from mdops.ops import env_mat

# DeePMD-kit's: the deviation without any data, and the smallest one.
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


class EnvironmentSums:
    """Sums over frames, for the mean and the deviation of the rows. Absent neighbours (zeros) count up to sum(sel), as
    in DeePMD-kit."""

    def __init__(
        self,
        *,
        ntypes: int,
        sel: Sequence[int],
        cutoff_smooth: float,
        mixed: bool = False,
        protection: float = 0.0,
        exclude_types: Sequence[Sequence[int]] = (),
    ) -> None:
        """Takes the number of types; places for neighbours of each type, or, if `mixed`, of all (if there are more, the
        nearest count); the start of the switch and the protection of denominators, A; and pairs of types that do not
        see each other."""
        self._sel, self._mixed = sel, mixed
        self._slots, self._sums, self._squares = (
            np.zeros(ntypes),
            np.zeros((ntypes, 2)),
            np.zeros((ntypes, 2)),
        )
        zero, one = torch.zeros(ntypes, dtype=torch.float64), torch.ones(ntypes, 2, dtype=torch.float64)
        self._plain = zero, one
        self._options = {
            "cutoff_smooth": cutoff_smooth,
            "protection": protection,
            "pair_mask": pair_matrix(exclude_types, ntypes),
        }

    def add(self, pairs: Neighborhood) -> None:
        """Takes all pairs of some frames within the cutoff that they name, in float64."""
        near = dataclasses.replace(pairs, truncates=True).select(self._sel, mixed=self._mixed)
        listed = near.displacements, near.counts, near.types
        rows = env_mat(*listed, *self._plain, cutoff=pairs.cutoff, **self._options).numpy()  # type: ignore[arg-type]
        types = near.types.numpy()
        np.add.at(self._slots, types, sum(self._sel))
        np.add.at(self._sums, types, _columns(rows))
        np.add.at(self._squares, types, _columns(np.square(rows)))

    def result(self) -> EnvironmentStatistics:
        """Of all that was added."""
        seen = self._slots > 0
        count = np.where(seen, self._slots, 1.0)[:, None] * [1, 3]
        # DeePMD-kit also subtracts the mean of x, y and z, though it only depends on the orientation.
        variance = self._squares / count - (self._sums / count) ** 2
        std = np.maximum(np.sqrt(np.clip(variance, 0, None)), _SMALLEST_DEVIATION)
        return EnvironmentStatistics(
            (self._sums / count)[:, 0], np.where(seen[:, None], std, _ABSENT_DEVIATION)
        )


def environment_statistics(frames: Iterable[Neighborhood], **options: Any) -> EnvironmentStatistics:
    """Mean and deviation of the rows of some frames; options as of `EnvironmentSums`."""
    sums = EnvironmentSums(**options)
    for pairs in frames:
        sums.add(pairs)
    return sums.result()


def _columns(rows: np.ndarray) -> np.ndarray:
    """(n, 2): the sums over the radial and over the three angular columns of (n, K, 4)."""
    of_atom = rows.sum(1)
    return np.stack([of_atom[:, 0], of_atom[:, 1:].sum(1)], axis=1)
